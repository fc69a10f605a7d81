"""The worker's entry point: ties the process to its owner before the heavy imports."""

import argparse
import gc
import sys

from ..channel import Endpoint, PeerDied
from ..processes.process import become_child


def preload() -> None:
    """Import what a worker needs, before it is forked."""
    from . import service  # noqa: F401  # late, as in main


def main() -> int:
    inherited = become_child("stentor-worker")
    parser = argparse.ArgumentParser(prog="stentor-worker", allow_abbrev=False)
    parser.add_argument("--weights-fd", type=int)
    parser.add_argument("--lease-fd", type=int)
    parser.add_argument("--arena-fd", type=int)
    parser.add_argument("--meeting-fd", type=int)
    given = parser.parse_args(inherited.arguments)
    # collections find nothing while a million objects are imported, and imported objects stay
    gc.disable()
    # late: importing torch takes seconds, in which a worker that is not tied yet could outlive its owner
    from .service import Worker

    gc.freeze()
    gc.enable()

    engine = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        return Worker(engine, given.weights_fd, given.lease_fd, given.arena_fd, given.meeting_fd).run()
    except PeerDied:
        return 0


if __name__ == "__main__":
    sys.exit(main())
