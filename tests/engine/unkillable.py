"""Children that a kill does not end, as one that the kernel holds in a call of a driver."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from stentor.engine.processes.process import Child

C = TypeVar("C", bound="Unkillable")


class Unkillable(Child):
    """It is given up at once, where nothing else is said."""

    dying_seconds = 0.0

    def _signal(self, number: signal.Signals) -> None:
        pass

    def let_die(self) -> None:
        """What held it lets go."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class SlowToDie(Unkillable):
    """It is waited for, and dies when the test lets it."""

    dying_seconds = 3600.0


@contextmanager
def unkillable(kind: type[C]) -> Iterator[C]:
    process = subprocess.Popen(["sleep", "60"])
    child = kind(process, "the worker")
    try:
        yield child
    finally:
        child.let_die()
        child.close()
        with suppress(ChildProcessError):
            os.waitpid(process.pid, 0)
        process.returncode = -9
