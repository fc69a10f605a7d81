"""The ``stentor`` command: starts the slowest process before its own imports.

The worker waits for torch's imports, which do not depend on the command line. So the fork server starts first, and its
environment contains no options, among which are keys.
"""

import contextlib
import sys
from collections.abc import Sequence

from stentor.engine.channel import ChannelError
from stentor.engine.processes.fork_server_owner import ForkServer
from stentor.protocols.ipc.config import WORKER_MODULE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    with contextlib.ExitStack() as held:
        fork_server = None
        if given[:1] == ["serve"] and not {"-h", "--help"}.intersection(given):
            with contextlib.suppress(ChannelError, OSError):  # the engines' start meets the same, and says so
                fork_server = ForkServer(WORKER_MODULE)
                held.callback(fork_server.close)
        from .commands import run  # late: a quarter of the server's imports

        return run(given, fork_server)


if __name__ == "__main__":
    sys.exit(main())
