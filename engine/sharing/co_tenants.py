"""An engine's view of the other models on its worker's device."""

import time
from collections.abc import Callable
from typing import Final

from .lease import peek

_RECENT_SECONDS: Final = 2.0
"""A model that computed this recently will soon again, as transcription does while somebody speaks."""


class CoTenants:
    """Reads the lease; the engine itself is not a member."""

    def __init__(self, fd: int, number: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``number`` is that of the engine's own worker. ``fd`` is not closed here."""
        self._fd = fd
        self._number = number
        self._clock = clock
        self._before = self._virtual_times()
        self._until = 0.0

    def worker_waits(self) -> bool:
        """Whether the own worker waits while another holds the device. A worker that does not take a free device may
        hang."""
        members = peek(self._fd)
        return members[self._number].waits and any(member.holds for member in members)

    def are_busy(self) -> bool:
        """Whether other members compute, wait, or did so within the last :data:`_RECENT_SECONDS`."""
        others = [member for number, member in enumerate(peek(self._fd)) if number != self._number]
        times = [member.virtual for member in others]
        now = self._clock()
        if times != self._before or any(member.waits or member.holds for member in others):
            self._before = times
            self._until = now + _RECENT_SECONDS
        return now < self._until

    def _virtual_times(self) -> list[int]:
        return [member.virtual for number, member in enumerate(peek(self._fd)) if number != self._number]
