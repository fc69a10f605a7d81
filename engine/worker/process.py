"""The worker process: tied to its owner first, and only then loaded with all that is heavy."""

import gc
import sys

from ..channel import Endpoint, PeerDied
from ..process import become_child


def main() -> int:
    inherited = become_child("stentor-worker")
    # collections while a million objects are imported find nothing, and what was imported stays
    gc.disable()
    from .service import Worker  # late: torch takes seconds, in which a worker not yet tied would outlive its owner

    gc.freeze()
    gc.enable()

    engine = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        return Worker(engine).run()
    except PeerDied:
        return 0


if __name__ == "__main__":
    sys.exit(main())
