"""The engine process by a clock that a busy machine does not move: it goes while a worker is stopped, and is an hour on
where this process was stopped itself and goes on."""

import os
import signal
import sys
import time
from functools import partial

import anyio

from stentor.engine.core import entry
from stentor.engine.core.loop import EngineLoop
from stentor.loadtest.processes import stopped, tree


class Clock:
    """In seconds."""

    def __init__(self) -> None:
        self._passed = self._missed = 0.0
        self._looked = time.monotonic()
        signal.signal(signal.SIGCONT, self._go_on)

    def __call__(self) -> float:
        now = time.monotonic()
        if any(map(stopped, tree(os.getpid())[1:])):
            self._passed += now - self._looked
        self._looked = now
        return self._passed

    def _go_on(self, *_: object) -> None:
        self._missed = 3600.0

    async def sleep(self, seconds: float) -> None:
        """What this process has missed it has slept through: it does little else."""
        await anyio.sleep(seconds)
        self._passed += self._missed
        self._missed = 0.0


if __name__ == "__main__":
    clock = Clock()
    vars(entry)["EngineLoop"] = partial(EngineLoop, clock=clock, sleep=clock.sleep)
    sys.exit(entry.main())
