"""How the ``stentor`` command ends, in one place.

====  ==============================================================================================================
code  meaning
====  ==============================================================================================================
0     success; for a server: it was stopped by SIGTERM or SIGINT, and every request was answered completely
1     failed while running: no such model, port in use, disk full, the engine gave up
2     wrong usage: an unknown or invalid flag, environment variable, value or file of options
130   for a server: it was stopped by SIGINT and cut off running requests, at the end of ``--shutdown-timeout``, at a
      second signal, or at once while it slept; for any other command: it was interrupted by SIGINT (Ctrl-C)
143   for a server: it was stopped by SIGTERM and cut off running requests, at the end of ``--shutdown-timeout``, at a
      second signal, or at once while it slept; for any other command: it was ended by SIGTERM
====  ==============================================================================================================

130 and 143 are 128 plus the number of the signal, SIGINT (2) or SIGTERM (15), as a shell reports them.
"""

import signal
from typing import Final

DONE: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT


def cut_off_by(number: int) -> int:
    """Exit code of a server that this signal ended before it finished all requests."""
    return 128 + number
