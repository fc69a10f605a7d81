"""How a worker's steps run between its mailbox and its results: in turn, or one ahead."""

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from stentor.protocols.ipc.actors import Failed
from stentor.protocols.ipc.adapters import AdapterLoaded
from stentor.protocols.ipc.steps import Masks, StepPlan

from ..channel import PeerDied
from ..layers.rank_group import RankLost
from ..processes.exception_groups import one_line
from .async_compute import AsyncCompute, AsyncRunner, Launched
from .device import Mark
from .device_lease import AloneOnDevice, DeviceLease
from .graphs import CaptureError
from .pending import Pending
from .prefault import Prefault
from .sync_compute import Forwarded, SyncRunner

logger = logging.getLogger(__name__)

Names = Mapping[int, str]
"""By slot; never changed once handed out, for the step that it belongs to may fail much later."""
NAMED: Final = 16
"""Requests that one log line names at most."""


class RowNames:
    """The names as of the last plan. A step that brings no row and frees none costs nothing."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def after(self, plan: StepPlan) -> Names:
        """Takes the next plan; the names of the rows that it finds."""
        if not plan.new and not plan.freed:
            return self._names
        names = self._names.copy()
        for slot in plan.freed:
            names.pop(slot, None)
        for row in plan.new:
            names[row.slot] = row.request
        if logger.isEnabledFor(logging.DEBUG):
            for row in plan.new:
                logger.debug(
                    "step %d: slot %d takes a row of %d tokens",
                    plan.step,
                    row.slot,
                    len(row.tokens),
                    extra={"request_id": row.request},
                )
        self._names = names
        return names


def names_in(plan: StepPlan, names: Names) -> str:
    """The requests that a step has rows of, for a log line."""
    found = sorted({names.get(row.slot, "") or "an unnamed request" for row in plan.rows})
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return (", ".join(found[:NAMED]) or "nobody") + more


_LOOK_SECONDS = 0.25
"""How often a worker whose steps run looks whether one of them has failed, or all are done."""
_SWITCH_SECONDS = 0.0005
_END_SECONDS = 5.0
_IDLE_SECONDS = 0.005
"""Without a message; between two steps of a busy worker less goes by."""

Send = Callable[[object], None]
T = TypeVar("T")


@dataclass(frozen=True)
class AwaitingMasks(Generic[T]):
    """A step between its two halves: its forward has run, or has been queued, and its masks have not come."""

    plan: StepPlan
    names: Names
    forwarded: T


class Executor(Protocol):
    """Takes plans in order and sends a result for each, or one :class:`Failed` in place of all that is left.

    The masks of a step that has masked rows come after its plan and before the next one.
    """

    @property
    def failed(self) -> bool:
        """Whether it has sent :class:`Failed`; the worker is to end."""

    def take(self, plan: StepPlan) -> None: ...

    def mask(self, masks: Masks) -> None: ...

    def tell(self, loaded: AdapterLoaded) -> None:
        """Sends word of an adapter: there is one writer."""

    def rest(self) -> float | None:
        """Work for when no message waits. Returns seconds until there may be more of it; None: after a message."""

    def close(self) -> None:
        """The worker ends; results that are not there yet are dropped."""


class SyncExecutor:
    """One step after the other, each waited for."""

    def __init__(
        self, runner: SyncRunner, send: Send, lease: DeviceLease | None = None, pages: Prefault | None = None
    ) -> None:
        """``pages`` are those of the KV cache, which are taken while no message comes."""
        self._runner = runner
        self._send = send
        self._turns = lease or AloneOnDevice()
        self._pages = pages
        self._idle_from = 0.0
        self._names = RowNames()
        self._held: AwaitingMasks[Forwarded] | None = None
        self.failed = False

    def take(self, plan: StepPlan) -> None:
        if self.failed:
            return
        names = self._names.after(plan)
        if self._pages is not None:
            self._pages.note(plan)
        try:
            check_turn(plan, self._held)
            self._turns.begin()
            if plan.masked:
                self._held = AwaitingMasks(plan, names, self._runner.forward(plan))
                self._turns.end()
                self._idle_from = time.monotonic()
                return
            result = self._runner.step(plan)
        except Exception as error:
            self._fail(step_failure(plan, names, error))
            return
        self._turns.end()
        self._idle_from = time.monotonic()
        self._send(result)

    def mask(self, masks: Masks) -> None:
        if self.failed:
            return
        held, self._held = self._held, None
        if (wrong := unexpected(masks, held)) or held is None:
            self._fail(Failed(wrong))
            return
        try:
            self._turns.begin()
            result = self._runner.finish(self._runner.draw(held.forwarded, masks))
        except Exception as error:
            self._fail(step_failure(held.plan, held.names, error))
            return
        self._turns.end()
        self._idle_from = time.monotonic()
        self._send(result)

    def tell(self, loaded: AdapterLoaded) -> None:
        self._send(loaded)

    def _fail(self, failure: Failed) -> None:
        self.failed = True
        self._send(failure)

    def rest(self) -> float | None:
        if self._pages is None or not self._pages.wanted:
            return None
        if (left := self._idle_from + _IDLE_SECONDS - time.monotonic()) > 0:
            return left
        self._pages.take_one()
        return 0.0

    def close(self) -> None:
        pass


class AsyncExecutor:
    """Steps are launched as their plans come; a thread waits for each and sends its result.

    The thread is there because a device's events have no descriptor to sleep on beside the mailbox's doorbell.
    It waits with the interpreter's lock released and is the only one that sends, whatever happens: the ring has one
    writer. So results go in order and the one ``Failed`` after them, without a lock of our own. What it shares with a
    launch is a pool of pinned buffers; all else that it reads, a :class:`Pending` owns. A step that fails waits to hear
    whether the capture that runs beside it does.

    While a step waits for its masks the device is lent to others who wait for it, once the forward has run.
    """

    def __init__(
        self, runner: AsyncRunner, compute: AsyncCompute, send: Send, lease: DeviceLease | None = None
    ) -> None:
        """``compute`` is the runner's."""
        self._runner = runner
        self._compute = compute
        self._send = send
        self._turns = lease or AloneOnDevice()
        self._names = RowNames()
        self._held: AwaitingMasks[Launched] | None = None
        self._forwarded: Mark | None = None
        """The end of its forward."""
        self._lent = False
        """Whether others may have the device until its masks come."""
        self._idle_from = 0.0
        """When the last step ended."""
        self._queue: queue.SimpleQueue[tuple[Pending, Names] | AdapterLoaded | Failed | None] = queue.SimpleQueue()
        self._capturing = threading.Lock()
        self._capture_failed: Failed | None = None
        """What is told in place of whatever a step fails with that was on its way meanwhile."""
        self._failed = threading.Event()
        # a finished step must not wait for the lock as long as Python's default while another is launched or captured
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread = threading.Thread(target=self._finish_all, name="finish-steps", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        return self._failed.is_set()

    def take(self, plan: StepPlan) -> None:
        if self.failed:
            return
        names = self._names.after(plan)
        try:
            check_turn(plan, self._held)
            self._turns.begin()
            if plan.masked:
                self._held = AwaitingMasks(plan, names, self._runner.forward(plan))
                self._forwarded = self._compute.mark()
                return
            self._queue.put((self._runner.launch(plan), names))
        except Exception as error:
            self._fail(step_failure(plan, names, error))

    def mask(self, masks: Masks) -> None:
        if self.failed:
            return
        held, self._held = self._held, None
        if (wrong := unexpected(masks, held)) or held is None:
            self._fail(Failed(wrong))
            return
        try:
            if self._lent:
                self._lent = False
                self._turns.begin()
            self._queue.put((self._runner.draw(held.forwarded, masks), held.names))
        except Exception as error:
            self._fail(step_failure(held.plan, held.names, error))

    def tell(self, loaded: AdapterLoaded) -> None:
        self._queue.put(loaded)

    def rest(self) -> float | None:
        if self._held is not None:
            # what lies between its two halves on the device is in the very tensors that a capture would use
            return self._lend_device()
        pending = self._compute.pending > 0
        left = self._idle_from + _IDLE_SECONDS - time.monotonic()
        try:
            seconds = self._capture(busy=pending or left > 0)
        except Exception as error:
            return self._fail_between_steps(error)
        if pending:
            return _LOOK_SECONDS if seconds is None else min(seconds, _LOOK_SECONDS)
        return seconds if seconds is None or left <= 0 else min(seconds, left)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(_END_SECONDS)

    def _capture(self, *, busy: bool) -> float | None:
        """See :meth:`.async_compute.AsyncCompute.advance`."""
        with self._capturing:
            try:
                return self._compute.advance(busy=busy)
            except CaptureError as error:
                self._capture_failed = failure = capture_failure(error)
        self._fail(failure)
        return 0.0

    def _lend_device(self) -> float:
        """Seconds until it is to be called again, where no masks have come by then."""
        if not self._lent and self._forwarded is not None and self._turns.is_wanted():
            try:
                done = self._forwarded.reached()
            except Exception as error:  # of the device, on the way
                return self._fail_between_steps(error)
            if done:
                self._turns.end()
                self._lent = True
        return _LOOK_SECONDS if self._lent else min(_LOOK_SECONDS, self._turns.look_seconds)

    def _fail_between_steps(self, error: Exception) -> float:
        logger.error("the worker failed between two steps", exc_info=error)
        self._fail(Failed(f"the worker failed between two steps: {type(error).__name__}"))
        return 0.0

    def _fail(self, failure: Failed) -> None:
        """After the results of the steps that were launched before, unless one of those fails first.

        Where one of them does not end nobody is told why: the engine hears of the end of this process.
        """
        self._queue.put(failure)
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            logger.error("%s; a step before it does not end", failure.message)
        self._failed.set()

    def _finish_all(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, Failed):
                    self._send(item)
                    return
                if isinstance(item, AdapterLoaded):
                    self._send(item)
                    continue
                pending, names = item
                try:
                    result = self._runner.finish(pending)
                except Exception as error:
                    self._failed.set()
                    failure = step_failure(pending.plan, names, error)
                    with self._capturing:
                        failure = self._capture_failed or failure
                    self._send(failure)
                    return
                self._turns.end()
                self._idle_from = time.monotonic()
                self._send(result)
        except PeerDied:
            pass  # the thread that receives is told too, and ends the worker
        except Exception as error:
            # nobody else would notice that this thread is gone, and the engine would wait for ever
            logger.exception("a result could not be sent")
            self._failed.set()
            self._send(Failed(f"the worker failed to send a result: {type(error).__name__}"))


def check_turn(plan: StepPlan, held: "AwaitingMasks[T] | None") -> None:
    """Raises ValueError for a plan that comes while a step still waits for its masks."""
    if held is not None:
        raise ValueError(f"step {plan.step} came before the masks of step {held.plan.step}")


def unexpected(masks: Masks, held: "AwaitingMasks[T] | None") -> str:
    """What is wrong with masks that are not those waited for; "" where they are."""
    if held is not None and (masks.epoch, masks.step) == (held.plan.epoch, held.plan.step):
        return ""
    expected = "none were expected" if held is None else f"those of step {held.plan.step} were expected"
    return f"the worker failed: masks of step {masks.step} came, {expected}"


def capture_failure(error: CaptureError) -> Failed:
    """Logs the error; what follows is the engine's to say."""
    logger.error("a CUDA graph could not be captured: the worker ends", exc_info=error)
    return Failed(str(error), graphs=True)


def step_failure(plan: StepPlan, names: Names, error: Exception) -> Failed:
    """Logs the error that is being handled, with whose rows the step had, and says it in one line."""
    if isinstance(error, RankLost):
        return Failed(one_line(error), of_peer=True)
    logger.exception("step %d failed; it had rows of %s", plan.step, names_in(plan, names))
    return Failed(f"the worker failed in step {plan.step}: {type(error).__name__}")
