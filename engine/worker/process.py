"""The worker process: tied to its owner first, and only then loaded with all that is heavy."""

import argparse
import gc
import sys

from ..channel import Endpoint, PeerDied
from ..processes.process import become_child


def preload() -> None:
    """Imports what a worker needs, before it is forked."""
    from . import service  # noqa: F401  # late, as in main


def main() -> int:
    inherited = become_child("stentor-worker")
    parser = argparse.ArgumentParser(prog="stentor-worker", allow_abbrev=False)
    parser.add_argument("--weights-fd", type=int)
    parser.add_argument("--lease-fd", type=int)
    parser.add_argument("--arena-fd", type=int)
    parser.add_argument("--meeting-fd", type=int)
    given = parser.parse_args(inherited.arguments)
    # collections while a million objects are imported find nothing, and what was imported stays
    gc.disable()
    from .service import Worker  # late: torch takes seconds, in which a worker not yet tied would outlive its owner

    gc.freeze()
    gc.enable()

    engine = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        return Worker(engine, given.weights_fd, given.lease_fd, given.arena_fd, given.meeting_fd).run()
    except PeerDied:
        return 0


if __name__ == "__main__":
    sys.exit(main())
