"""Pause, sleep and cache resets, as the operator asked for them.

Each :class:`Control` is answered in order, once it has taken effect.

A sleep is a planned death of the worker::

    AWAKE ── sleep ──► no step is planned ── none in flight ──► the worker is killed ── dead ──► ASLEEP
      ▲                                                                                            │
      └──────────────────────────────── the next worker is ready ◄──────────── wake ───────────────┘

A worker that starts is ended at once, and one that dies by itself gets no successor before the engine wakes.
"""

import asyncio
from typing import Final, Protocol, assert_never

from stentor.protocols.ipc.actors import Control

from .scheduler import Scheduler
from .worker_group import WorkerGroup

ASLEEP: Final = "the engine was told to sleep"


class WeightsOwner(Protocol):
    """Keeps the memory files of prepared weights (:class:`.entry.WorkerKeeper`)."""

    def discard_weights(self) -> None: ...


class Operator:
    """The state that controls set. The engine loop owns it and asks it before each step."""

    def __init__(self, scheduler: Scheduler, weights: WeightsOwner) -> None:
        self._scheduler = scheduler
        self._weights = weights
        self._paused = False
        self.asleep = False
        """Whether no worker may run."""
        self._discards = False
        """Whether this sleep discards prepared weights."""
        self._retired = False
        """Whether the worker was killed for a sleep and its death has not been reported."""
        self._next_start: asyncio.Future[float] | None = None
        """Resolved to start the successor of a retired worker, with the seconds to wait. None unless asleep."""
        self._unanswered: list[Control] = []

    @property
    def halts(self) -> bool:
        """Whether no step may be planned."""
        return self._paused or self.asleep

    def take(self, control: Control) -> None:
        """Apply a control; :meth:`take_answered` returns its number once it has taken effect."""
        match control.operation:
            case "pause":
                self._paused = True
            case "resume":
                self._paused = False
            case "sleep" | "discard":
                self.asleep = True
                self._discards |= control.operation == "discard"
                self._discard_weights()
            case "wake":
                self._wake()
            case "reset_prefix_cache":
                self._scheduler.reset_prefix_cache()
            case "recompute":
                self._scheduler.recompute()
            case other:
                assert_never(other)
        self._unanswered.append(control)

    def take_answered(self, serving: bool) -> list[int]:
        """Numbers of the controls that have taken effect since the last call. ``serving``: a worker can run steps."""
        count = 0
        while count < len(self._unanswered) and self._has_effect(self._unanswered[count], serving):
            count += 1
        done, self._unanswered = self._unanswered[:count], self._unanswered[count:]
        return [control.number for control in done]

    def retire(self, worker: WorkerGroup) -> bool:
        """Kill a serving worker if the engine is to sleep and no step is in flight; returns whether it was killed.

        The caller reports the death to :meth:`worker_died`.
        """
        if not self.asleep or self._scheduler.in_flight:
            return False
        worker.kill(ASLEEP)
        self._retired = True
        return True

    def worker_died(self, next_start: asyncio.Future[float], *, retired: bool = False) -> bool:
        """Whether the dead worker had been retired, by :meth:`retire` or, ``retired``, while it started. If so,
        ``next_start`` is resolved when the engine wakes."""
        if not self._retired and not retired:
            return False
        self._retired = False
        if not self.holds_back(next_start) and not next_start.done():
            next_start.set_result(0.0)
        return True

    def holds_back(self, next_start: asyncio.Future[float]) -> bool:
        """Whether the engine is to sleep. If so, ``next_start`` of the dead worker's successor is resolved when it
        wakes."""
        if not self.asleep:
            return False
        self._next_start = next_start
        self._discard_weights()
        return True

    def _has_effect(self, control: Control, serving: bool) -> bool:
        if self._paused and self._scheduler.in_flight:
            return False  # the client gets all results of a step before the answer to a pause
        match control.operation:
            case "sleep" | "discard":
                return self._next_start is not None or not self.asleep
            case "wake":
                return serving or self.asleep
            case _:
                return True

    def _wake(self) -> None:
        self.asleep = self._discards = False
        start, self._next_start = self._next_start, None
        if start is not None and not start.done():  # done if the task that waits for it was cancelled
            start.set_result(0.0)

    def _discard_weights(self) -> None:
        """Only once the worker is dead, since it maps them."""
        if self._discards and self._next_start is not None:
            self._weights.discard_weights()
