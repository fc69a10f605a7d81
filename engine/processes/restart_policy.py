"""Counts the failures in a row of a process, and says when the next is started and when none is."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """What follows a failure. Delays and spans are seconds."""

    max_failures: float
    """Failures in a row after which there is no other start: 1 allows none at all, ``math.inf`` any number."""
    max_first_failures: float = math.inf
    """The same until the first :meth:`Restarts.ready`, where it is less than ``max_failures``."""
    first_delay: float = 0.1
    """Before the start that follows the second failure in a row; the one after the first follows at once."""
    max_delay: float = 10.0
    """Each delay is twice the one before, up to this."""
    healthy_after: float = 300.0
    """A life that goes on for so long once it is ready ends a row: kills of an idle child, minutes apart, are none."""


class Restarts:
    """The row of failures of one engine, worker or other child, over all of its lives.

    A row ends with progress and with a long life. An excused failure is none of the row.
    """

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        """The first life begins now."""
        self._policy: Final = policy
        self._clock = clock
        self._began = clock()
        self._was_ready = False
        self._excused = False
        self.in_a_row = 0
        self.total = 0
        """Starts in place of another."""

    def ready(self) -> None:
        """A life begins to do its work; :attr:`RestartPolicy.max_first_failures` is past. What it took to get ready is
        not counted: a large model may load for longer than a life has to last."""
        self._was_ready = True
        self._began = self._clock()

    def progressed(self) -> None:
        """A life has done some of its work, or the failures before have been explained: they are no row with those to
        come."""
        self.in_a_row = 0

    def excuse(self) -> None:
        """The next failure says nothing of the child: it does not count."""
        self._excused = True

    def failed(self, *, final: bool = False) -> float | None:
        """A life is over. Returns the seconds after which the next begins, or None where none does: it is ``final``, or
        one too many in a row."""
        policy = self._policy
        now = self._clock()
        if now - self._began >= policy.healthy_after:
            self.in_a_row = 0
        self.in_a_row += not self._excused
        self._excused = False
        first = math.inf if self._was_ready else policy.max_first_failures
        if final or self.in_a_row >= min(policy.max_failures, first):
            return None
        self.total += 1
        delay = self._delay()
        self._began = now + delay
        return delay

    def _delay(self) -> float:
        if self.in_a_row <= 1:
            return 0.0
        doublings = min(self.in_a_row - 2, 64)  # more would overflow, and are past any limit
        return min(self._policy.first_delay * 2.0**doublings, self._policy.max_delay)
