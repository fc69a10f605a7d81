"""A worker's turn on a device that workers of other models compute on as well.

A step takes the lease (:mod:`..sharing.lease`) when it begins and gives it back at its end. Where a step is launched
before the one ahead of it has ended, the lease is kept between them, until others have waited for a slice: then what is
on its way ends, they have their turn, and only after it the next step is launched. So is a step that waits for its
masks between its halves: whoever is late with them holds nobody up but itself.
"""

import math
import threading
from typing import Protocol

import torch

from ..sharing.lease import SLICE_SECONDS, Member


class DeviceLease(Protocol):
    """Between :meth:`begin` and :meth:`end` the device is ours. Steps may overlap; the last to end gives it back.

    A step that waits for its masks may be ended for as long as that takes, and be begun once more.
    """

    look_seconds: float
    """How often to ask :meth:`is_wanted`."""

    def begin(self) -> None:
        """Blocks until it is our turn. Called by one thread only."""

    def end(self) -> None:
        """A step that was begun has ended; another thread may say so."""

    def is_wanted(self) -> bool:
        """Whether others have waited for a slice while the device is ours."""


class AloneOnDevice:
    """Nobody else computes there."""

    look_seconds = math.inf

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def is_wanted(self) -> bool:
        return False


class SharedDevice:
    """One member of a lease. What a step that fails leaves held, the end of the process gives back."""

    look_seconds = SLICE_SECONDS

    def __init__(self, member: Member) -> None:
        self._member = member
        self._changed = threading.Condition()
        self._steps = 0
        """Begun and not ended; the lease is held while there are any."""

    def begin(self) -> None:
        with self._changed:
            if self._steps and self._member.is_wanted():
                self._changed.wait_for(lambda: not self._steps)
            if not self._steps:
                self._member.acquire()
            self._steps += 1

    def end(self) -> None:
        with self._changed:
            self._steps -= 1
            if not self._steps:
                self._member.release()
                self._changed.notify()

    def is_wanted(self) -> bool:
        with self._changed:
            return self._steps > 0 and self._member.is_wanted()

    def yield_device(self, device: torch.device) -> None:
        """Between the parts of a step that is the only one: lets others in, where they have waited for a slice."""
        if device.type == "cuda":  # what was queued must be done
            torch.cuda.synchronize(device)
        with self._changed:
            if self._steps == 1:
                self._member.yield_device()
