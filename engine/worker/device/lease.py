"""A worker's use of a device that workers of other models share.

A step takes the lease (:mod:`...sharing.lease`) when it begins and releases it when it ends. If a step is launched
before the previous one has ended, the lease is held on, until others have waited for a slice: then the steps in
progress end, the others have their turn, and the next step is launched afterwards. A step that waits for its masks also
releases the device between its halves, so late masks delay nobody else.
"""

import math
import threading
from typing import Protocol

import torch

from ...sharing.lease import SLICE_SECONDS, Member


class DeviceLease(Protocol):
    """The device is held between :meth:`begin` and :meth:`end`. Steps may overlap; the last to end releases it.

    A step that waits for its masks may be ended for that time and begun again.
    """

    look_seconds: float
    """How often to call :meth:`is_wanted`."""

    def begin(self) -> None:
        """Block until the device is held. Called by one thread only."""

    def end(self) -> None:
        """End a step; may be called by another thread."""

    def is_wanted(self) -> bool:
        """Whether others have waited for a slice while the device is held."""


class AloneOnDevice:
    """A device that no other model uses."""

    look_seconds = math.inf

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def is_wanted(self) -> bool:
        return False


class SharedDevice:
    """A member of a lease. If a step fails and leaves it held, the end of the process releases it."""

    look_seconds = SLICE_SECONDS

    def __init__(self, member: Member) -> None:
        self._member = member
        self._changed = threading.Condition()
        self._steps = 0
        """Steps begun and not ended; the lease is held while there are any."""

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
        """Let others compute between the parts of a step, if it is the only one and they have waited for a slice."""
        if device.type == "cuda":  # the queued work must be done first
            torch.cuda.synchronize(device)
        with self._changed:
            if self._steps == 1:
                self._member.yield_device()
