"""A worker that no fork server can import what it needs for."""

import os
import sys

from stentor.tests.engine.fork_server_programs import main

__all__ = ["main", "preload"]


def preload() -> None:
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
