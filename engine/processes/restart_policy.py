"""Counts a process's consecutive failures, and decides whether and when to restart it."""

import math
import time
from collections.abc import Callable
from typing import Final

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True):
    """When to restart after a failure. Times are in seconds."""

    max_failures: float
    """Consecutive failures after which it is not restarted: 1 forbids restarts, ``math.inf`` allows any number."""
    max_first_failures: float = math.inf
    """Consecutive failures before the first :meth:`Restarts.ready`, if lower."""
    first_delay: float = 0.1
    """Delay after the second consecutive failure; after the first there is none."""
    max_delay: float = 10.0
    """Limit of the delay, which doubles with each further failure."""
    healthy_after: float = 300.0
    """A run that lasts this long once ready resets the count, so that rare kills of an idle child do not add up."""


class Restarts:
    """The consecutive failures of one engine, worker or other child.

    Progress and a long run reset the count. An excused failure does not count.
    """

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        """The first run begins now."""
        self._policy: Final = policy
        self._clock = clock
        self._began = clock()
        self._was_ready = False
        self._excused = False
        self.in_a_row = 0
        self.total = 0
        """Restarts."""

    def ready(self) -> None:
        """Record that a run is ready for work; :attr:`RestartPolicy.max_first_failures` no longer applies.

        The run's time counts from here, because a large model may take longer to load than a healthy run must last.
        """
        self._was_ready = True
        self._began = self._clock()

    def progressed(self) -> None:
        """Reset the count: the process made progress, or its failures are explained."""
        self.in_a_row = 0

    def excuse(self) -> None:
        """Do not count the next failure, of which the child is not the cause."""
        self._excused = True

    def failed(self, *, final: bool = False) -> float | None:
        """Record the end of a run. Returns the seconds until the next start, or None if there must be none.

        There is none after a ``final`` failure or too many consecutive ones.
        """
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
        doublings = min(self.in_a_row - 2, 64)  # more would overflow and exceed any limit
        return min(self._policy.first_delay * 2.0**doublings, self._policy.max_delay)
