"""Memory that was taken for large requests goes back to the system once they are over."""

import gc
from collections.abc import Callable
from typing import Final

import anyio

from stentor.engine.processes.freed_memory import GROWN, give_back, resident_bytes

LOOK_SECONDS: Final = 5.0
_PATIENT_LOOKS: Final = 12


class Trimmer:
    """Trims this process where it has grown: soon after it has, and once a minute as long as it stays large, for what
    was in use then may have been freed since."""

    def __init__(self, resident: Callable[[], int] = resident_bytes, give_back: Callable[[], None] = give_back) -> None:
        self._resident = resident
        self._give_back = give_back
        self._least = self._accepted = resident()
        self._looks = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            if self.is_due():
                await anyio.to_thread.run_sync(self.trim)

    def is_due(self) -> bool:
        """To be called every :data:`LOOK_SECONDS`."""
        self._looks += 1
        resident = self._resident()
        self._least = min(self._least, resident)
        patient = self._looks % _PATIENT_LOOKS == 0
        return resident >= (self._least if patient else self._accepted) + GROWN

    def trim(self) -> None:
        gc.collect()  # what only cycles hold: an idle server would keep it for hours
        self._give_back()
        self._accepted = self._resident()
