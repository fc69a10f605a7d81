"""How the ``stentor`` command ends, in one place.

====  ==========================================================================================================
code  meaning
====  ==========================================================================================================
0     done; a server: told to end by SIGTERM or SIGINT, and every request had its whole answer
1     failed while running: no such model, port in use, disk full, the engine gave up
2     used wrongly: a flag, a variable, a value, a file of options
130   a server: told to end by SIGINT, and requests were cut off, by ``--shutdown-timeout`` or a second signal; any
      other command: interrupted
143   the same by SIGTERM
====  ==========================================================================================================

130 and 143 are what a shell reports of a command that SIGINT (2) or SIGTERM (15) has killed: 128 and the number.
"""

import signal
from typing import Final

DONE: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT


def cut_off_by(number: int) -> int:
    """The code of a server that was told to end by this signal and did not finish all requests."""
    return 128 + number
