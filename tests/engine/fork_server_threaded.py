"""A worker whose imports leave a thread, which would not survive a fork."""

import sys
import threading
import time

from stentor.tests.engine.fork_server_programs import main

__all__ = ["main", "preload"]


def preload() -> None:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
