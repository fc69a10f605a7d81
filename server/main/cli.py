"""The ``stentor`` command: starts the slowest process before its own imports.

The worker waits for torch's imports, which do not depend on the command line. So the fork server starts first, and its
environment contains no options, among which are keys.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

from stentor.engine.channel import ChannelError
from stentor.engine.processes.fork_server_owner import ForkServer
from stentor.protocols.ipc.config import WORKER_MODULE

from ..common.exit_codes import INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    open_closed_streams()
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        with contextlib.ExitStack() as held:
            fork_server = None
            if given[:1] == ["serve"] and not {"-h", "--help"}.intersection(given):
                with contextlib.suppress(ChannelError, OSError):  # the engines' start meets the same, and says so
                    fork_server = ForkServer(WORKER_MODULE)
                    held.callback(fork_server.close)
            from .commands import run  # late: a quarter of the server's imports

            return run(given, fork_server)
    except KeyboardInterrupt:  # during these imports, or the end of the fork server
        return INTERRUPTED


def open_closed_streams() -> None:
    """Open ``/dev/null`` in place of closed standard streams.

    Otherwise a socket or the store gets the number of one, and what is printed is written to it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # Python has left them out
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", buffering=1, closefd=False)


if __name__ == "__main__":
    sys.exit(main())
