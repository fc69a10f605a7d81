"""What the operator has asked of the engine: to pause, to sleep, to forget.

Each :class:`Control` is answered, in order, once it has taken effect.

Sleep is a death of the worker that was asked for::

    AWAKE ── sleep ──► no step is planned ── none in flight ──► the worker is killed ── dead ──► ASLEEP
      ▲                                                                                            │
      └──────────────────────────────── the next worker is ready ◄──────────── wake ───────────────┘
"""

import asyncio
from typing import Final, Protocol, assert_never

from stentor.protocols.ipc.actors import Control

from .scheduler import Scheduler
from .worker_group import WorkerGroup

_ASLEEP: Final = "the engine was told to sleep"


class WeightsOwner(Protocol):
    """Has the memory files of prepared weights (:class:`.entry.WorkerKeeper`)."""

    def discard_weights(self) -> None: ...


class Operator:
    """Owned by the engine loop, which asks it whether steps may run."""

    def __init__(self, scheduler: Scheduler, weights: WeightsOwner) -> None:
        self._scheduler = scheduler
        self._weights = weights
        self._paused = False
        self._asleep = False
        """Whether no worker is to run."""
        self._discards = False
        """Whether this sleep drops prepared weights."""
        self._retired = False
        """Whether the worker was killed for a sleep, and its death has not been told."""
        self._next_start: asyncio.Future[float] | None = None
        """Of the worker that follows one that was retired; it waits for the result."""
        self._unanswered: list[Control] = []

    @property
    def halts(self) -> bool:
        """Whether no step may be planned."""
        return self._paused or self._asleep

    def take(self, control: Control) -> None:
        match control.operation:
            case "pause":
                self._paused = True
            case "resume":
                self._paused = False
            case "sleep" | "discard":
                self._asleep = True
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

    def answers(self, serving: bool) -> list[int]:
        """Numbers of the controls that have taken effect since the last call. ``serving``: a worker can run steps."""
        count = 0
        while count < len(self._unanswered) and self._has_effect(self._unanswered[count], serving):
            count += 1
        done, self._unanswered = self._unanswered[:count], self._unanswered[count:]
        return [control.number for control in done]

    def retires(self, worker: WorkerGroup) -> bool:
        """Kills a worker that serves and has no step in flight, if the engine is to sleep; whether it did.
        :meth:`mourns` is to be called when it is dead."""
        if not self._asleep or self._scheduler.in_flight:
            return False
        worker.kill(_ASLEEP)
        self._retired = True
        return True

    def mourns(self, next_start: asyncio.Future[float]) -> bool:
        """A worker is dead; whether it was retired. If so, the next one starts when ``next_start`` gets a result, which
        is the seconds to wait, and this object sets it."""
        if not self._retired:
            return False
        self._retired, self._next_start = False, next_start
        if self._asleep:
            self._discard_weights()
        else:
            self._wake()
        return True

    def _has_effect(self, control: Control, serving: bool) -> bool:
        if self._paused and self._scheduler.in_flight:
            return False  # whoever paused has first been told all that the steps in flight bring
        match control.operation:
            case "sleep" | "discard":
                return self._next_start is not None or not self._asleep
            case "wake":
                return serving or self._asleep
            case _:
                return True

    def _wake(self) -> None:
        self._asleep = self._discards = False
        start, self._next_start = self._next_start, None
        if start is not None and not start.done():  # else nobody is left to start it
            start.set_result(0.0)

    def _discard_weights(self) -> None:
        """Where no worker has them mapped; else its death comes first."""
        if self._discards and self._next_start is not None:
            self._weights.discard_weights()
