"""Pause, sleep, new weights, resets and profiles, as the operator asked for them.

Each :class:`Control` is answered in order, once it has taken effect.

A sleep is a planned death of the worker::

    AWAKE ── sleep ──► no step is planned ── none in flight ──► the worker is killed ── dead ──► ASLEEP
      ▲                                                                                            │
      └──────────────────────────────── the next worker is ready ◄──────────── wake ───────────────┘

A worker that starts is ended at once, and one that dies by itself gets no successor before the engine wakes.

New weights are such a sleep from which the engine wakes at once, with another configuration of the worker::

    AWAKE ── reload ──► the worker is killed ── dead ──► the next one starts with the new weights ── ready ──► AWAKE
                                                              │ lost before it is ready                        ▲
                                                              └──► the next one starts with the former ones ───┘
"""

import asyncio
import logging
from typing import Final, Literal, Protocol, assert_never

from stentor.protocols.ipc.actors import Control, ControlDone, Profile
from stentor.protocols.ipc.config import Weights

from .scheduler import Scheduler
from .worker_group import WorkerGroup

logger = logging.getLogger(__name__)

ASLEEP: Final = "the engine was told to sleep"
_RELOADS: Final = "the engine was told to load other weights"
_LOADING: Final = ("reload", "wake")
"""Operations after which a worker may load other weights."""
_MOST_PROFILED_STEPS: Final = 2000
"""A trace takes memory for each step until it is written."""


class WeightsOwner(Protocol):
    """Configures workers, and keeps the memory files of prepared weights (:class:`.entry.WorkerKeeper`)."""

    def discard_weights(self) -> None: ...

    def use_weights(self, weights: Weights) -> None: ...

    def revert_weights(self) -> None: ...


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
        """Whether the worker was killed as planned and its death has not been reported."""
        self._next_start: asyncio.Future[float] | None = None
        """Resolved to start the successor of a retired worker, with the seconds to wait. None unless asleep."""
        self._new_weights: Weights | None = None
        """The weights that the next worker is to load."""
        self._on_trial = False
        """Whether no worker with the latest weights has been ready."""
        self._failure = ""
        """Why the latest weights are not in use, until the client has been told."""
        self._profile = _Profile(scheduler)
        self._unanswered: list[Control] = []

    @property
    def halts(self) -> bool:
        """Whether no step may be planned."""
        return self._paused or self.asleep or self._new_weights is not None or self._profile.halts

    def take(self, control: Control) -> None:
        """Apply a control; :meth:`take_answered` returns its answer once it has taken effect."""
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
            case "reload":
                self._new_weights = control.weights
                if self._next_start is not None:
                    self._use_new_weights()
            case "reset_prefix_cache":
                self._scheduler.reset_prefix_cache()
            case "reset_encoder_cache":
                self._scheduler.reset_encoder_cache()
            case "recompute":
                self._scheduler.recompute()
            case "start_profile" | "stop_profile":
                self._profile.want(control.operation, able=not self.asleep)
            case other:
                assert_never(other)
        self._unanswered.append(control)

    def take_answered(self, serving: bool) -> list[ControlDone]:
        """Answers to the controls that have taken effect since the last call. ``serving``: a worker can run steps."""
        count = 0
        while count < len(self._unanswered) and self._has_effect(self._unanswered[count], serving):
            count += 1
        done, self._unanswered = self._unanswered[:count], self._unanswered[count:]
        answers = [ControlDone(control.number, self._error_of(control)) for control in done]
        if any(control.operation in _LOADING for control in done):
            self._failure = ""
        return answers

    def retire(self, worker: WorkerGroup) -> bool:
        """Kill a serving worker if none is to run, or one with other weights, and no step is in flight; returns whether
        it was killed.

        The caller reports the death to :meth:`worker_died`.
        """
        reason = ASLEEP if self.asleep else _RELOADS if self._new_weights is not None else ""
        if not reason or self._scheduler.in_flight:
            return False
        worker.kill(reason)
        self._retired = True
        return True

    def worker_died(self, next_start: asyncio.Future[float], why: str, *, retired: bool = False) -> bool:
        """Note that the worker is dead; returns whether that is no loss to report.

        It is none after :meth:`retire`, if its start was ended (``retired``), or if it could not load new weights: then
        the former ones are used again. In these cases ``next_start`` is resolved when the next worker is to start.
        """
        self._profile.lost()
        if self._on_trial and not (self._retired or retired):
            self._on_trial, self._failure = False, why
            logger.error("new weights cannot be loaded, the former ones stay in use: %s", why)
            self._weights.revert_weights()
        elif not (self._retired or retired):
            return False
        self._retired = False
        if not self.holds_back(next_start) and not next_start.done():
            next_start.set_result(0.0)
        return True

    def holds_back(self, next_start: asyncio.Future[float]) -> bool:
        """Whether the engine is to sleep, now that the worker is dead. If so, ``next_start`` of its successor is
        resolved when it wakes."""
        self._use_new_weights()
        if not self.asleep:
            return False
        self._next_start = next_start
        self._discard_weights()
        return True

    def worker_ready(self) -> None:
        self._on_trial = False

    def profile_order(self) -> Profile | None:
        """The order to begin or end a trace, for a serving worker; returned once. None if there is none."""
        return self._profile.order()

    def planned(self) -> None:
        """Count a step that was planned."""
        self._profile.planned()

    def profiled(self, error: str) -> None:
        """Note that the worker has begun or written its trace, or failed to: ``error``."""
        self._profile.answered(error)

    def _has_effect(self, control: Control, serving: bool) -> bool:
        if self._paused and self._scheduler.in_flight:
            return False  # the client gets all results of a step before the answer to a pause
        match control.operation:
            case "sleep" | "discard":
                return self._next_start is not None or not self.asleep
            case "wake":
                return serving or self.asleep
            case "reload":
                return self._new_weights is None and (serving or self.asleep)
            case "start_profile" | "stop_profile":
                return not self._profile.halts
            case _:
                return True

    def _error_of(self, control: Control) -> str:
        if control.operation in _LOADING:
            return self._failure
        return self._profile.error if control.operation in ("start_profile", "stop_profile") else ""

    def _wake(self) -> None:
        self.asleep = self._discards = False
        start, self._next_start = self._next_start, None
        if start is not None and not start.done():  # done if the task that waits for it was cancelled
            start.set_result(0.0)

    def _use_new_weights(self) -> None:
        """Configure the next worker with the new weights, if there are any. Call it only once the worker is dead."""
        weights, self._new_weights = self._new_weights, None
        if weights is not None:
            self._weights.use_weights(weights)
            self._weights.discard_weights()
            self._on_trial = True

    def _discard_weights(self) -> None:
        """Discard prepared weights if this sleep does. Only once the worker is dead, since it maps them."""
        if self._discards and self._next_start is not None:
            self._weights.discard_weights()


class _Profile:
    """The worker's trace::

    OFF ── start ──► no step is in flight ──► ordered ── answered ──► ON ── stop, or many steps ──► … ──► OFF
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._on = False
        self._wanted: Literal["start_profile", "stop_profile"] | None = None
        """The order that the worker has not answered; None: none."""
        self._ordered = False
        """Whether that order has been sent to the worker."""
        self._steps = 0
        self.error = ""
        """Of the last order."""

    @property
    def halts(self) -> bool:
        return self._wanted is not None

    def want(self, operation: Literal["start_profile", "stop_profile"], *, able: bool = True) -> None:
        """``able``: whether there is a worker, or one is starting."""
        starts = operation == "start_profile"
        if not able:
            self.error = "there is no worker: the engine sleeps"
        elif starts != self._on:
            self._wanted, self.error = operation, ""
        else:
            self.error = "a profile is being taken already" if starts else "no profile is being taken"

    def order(self) -> Profile | None:
        if self._wanted is None or self._ordered or self._scheduler.in_flight:
            return None
        self._ordered = True
        return Profile(self._wanted == "start_profile")

    def planned(self) -> None:
        self._steps += self._on
        if self._steps >= _MOST_PROFILED_STEPS:
            self.want("stop_profile")

    def answered(self, error: str) -> None:
        self._on = self._wanted == "start_profile" and not error
        self._wanted, self._ordered, self._steps, self.error = None, False, 0, error

    def lost(self) -> None:
        """The worker is dead, and its trace with it."""
        if self._wanted is not None:
            self.answered("the worker was lost, and its profile with it")
        self._on, self._steps = False, 0
