"""Runs a worker's steps between its mailbox and its results: one at a time, or one ahead."""

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from stentor.protocols.ipc.actors import Failed, Profiled
from stentor.protocols.ipc.adapters import AdapterLoaded, ReadsAdapters
from stentor.protocols.ipc.steps import Masks, StepPlan

from ...channel import PeerDied
from ...layers.linear.rank_group import RankLost
from ...processes.exception_groups import one_line
from ..device.device import Mark
from ..device.graphs import CaptureError
from ..device.lease import AloneOnDevice, DeviceLease
from ..device.prefault import Prefault
from ..passes.pass_graphs import PassGraphs, advance_all
from .async_compute import AsyncCompute, AsyncRunner, Launched
from .pending import Pending
from .sync_compute import Forwarded, SyncRunner

logger = logging.getLogger(__name__)

Names = Mapping[int, str]
"""Request name by slot. Never mutated once handed out, since its step may fail much later."""
NAMED: Final = 16
"""Most requests that one log line names."""


class RowNames:
    """The names as of the last plan. A step that neither adds nor frees rows costs nothing."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def after(self, plan: StepPlan) -> Names:
        """Apply the next plan; returns the names of its rows."""
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
    """The names of a step's requests, for a log line."""
    found = sorted({names.get(row.slot, "") or "an unnamed request" for row in plan.rows})
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return (", ".join(found[:NAMED]) or "nobody") + more


_LOOK_SECONDS = 0.25
"""Interval at which a busy worker checks whether a step has failed or all are done."""
_SWITCH_SECONDS = 0.0005
_END_SECONDS = 5.0
_IDLE_SECONDS = 0.005
"""Idle time after which the device counts as free; between two steps of a busy worker less passes."""

Send = Callable[[object], None]
Told = AdapterLoaded | ReadsAdapters | Profiled
T = TypeVar("T")


class AwaitingMasks(msgspec.Struct, Generic[T], frozen=True):
    """A step between its halves: its forward has run or is queued, and its masks have not come."""

    plan: StepPlan
    names: Names
    forwarded: T


class Executor(Protocol):
    """Takes plans in order and sends a result for each, or one :class:`Failed` in place of the rest.

    The masks of a step with masked rows come after its plan and before the next one.
    """

    @property
    def failed(self) -> bool:
        """Whether it has sent :class:`Failed`, so that the worker must end."""

    def take(self, plan: StepPlan) -> None: ...

    def mask(self, masks: Masks) -> None: ...

    def tell(self, message: Told) -> None:
        """Send a message that is no result; all messages have one sender."""

    def rest(self) -> float | None:
        """Do background work while no message waits. Returns the seconds until the next call; None: after a message."""

    def close(self) -> None:
        """End; results that are not there yet are dropped."""


class SyncExecutor:
    """Runs one step at a time and waits for it."""

    def __init__(
        self,
        runner: SyncRunner,
        send: Send,
        lease: DeviceLease | None = None,
        prefault: Prefault | None = None,
        graphs: Sequence[PassGraphs] = (),
    ) -> None:
        """Between steps, while no message comes, pages of the KV cache are faulted in, or ``graphs`` captured."""
        self._runner = runner
        self._send = send
        self._lease = lease or AloneOnDevice()
        self._prefault = prefault
        self._graphs = graphs
        self._idle_from = 0.0
        self._names = RowNames()
        self._held: AwaitingMasks[Forwarded] | None = None
        self.failed = False

    def take(self, plan: StepPlan) -> None:
        if self.failed:
            return
        names = self._names.after(plan)
        if self._prefault is not None:
            self._prefault.note(plan)
        try:
            check_turn(plan, self._held)
            self._lease.begin()
            if plan.masked:
                self._held = AwaitingMasks(plan, names, self._runner.forward(plan))
                self._leave_device()
                return
            result = self._runner.step(plan)
        except Exception as error:
            self._fail(step_failure(plan, names, error))
            return
        self._leave_device()
        self._send(result)

    def mask(self, masks: Masks) -> None:
        if self.failed:
            return
        held, self._held = self._held, None
        if (wrong := unexpected(masks, held)) or held is None:
            self._fail(Failed(wrong))
            return
        try:
            self._lease.begin()
            result = self._runner.finish(self._runner.draw(held.forwarded, masks))
        except Exception as error:
            self._fail(step_failure(held.plan, held.names, error))
            return
        self._leave_device()
        self._send(result)

    def _leave_device(self) -> None:
        self._lease.end()
        self._idle_from = time.monotonic()

    def tell(self, message: Told) -> None:
        self._send(message)

    def _fail(self, failure: Failed) -> None:
        self.failed = True
        self._send(failure)

    def rest(self) -> float | None:
        if self._graphs:
            return self._capture(self._graphs)
        if self._prefault is None or not self._prefault.wanted:
            return None
        if (left := self._idle_from + _IDLE_SECONDS - time.monotonic()) > 0:
            return left
        self._prefault.take_one()
        return 0.0

    def _capture(self, graphs: Sequence[PassGraphs]) -> float | None:
        """Do a piece of work towards capturing a graph; returns seconds until the next, None if all are captured."""
        if self._held is not None:
            return None  # its logits are where a capture would write others
        left = self._idle_from + _IDLE_SECONDS - time.monotonic()
        try:
            seconds = advance_all(graphs, busy=left > 0)
        except CaptureError as error:
            self._fail(capture_failure(error))
            return 0.0
        return seconds if seconds is None or left <= 0 else min(seconds, left)

    def close(self) -> None:
        pass


class AsyncExecutor:
    """Launches steps as their plans come; a thread waits for each and sends its result.

    A thread is needed because a device's events have no descriptor to wait for beside the mailbox's doorbell. It waits
    without the interpreter's lock, and it alone sends, since the ring has one writer. So results go in order, and the
    one ``Failed`` after them, without another lock. It shares only a pool of pinned buffers with a launch; everything
    else that it reads belongs to a :class:`Pending`. If a step fails during a capture, the capture's failure is
    reported instead.

    While a step waits for its masks, others may use the device once the forward has run.
    """

    def __init__(
        self, runner: AsyncRunner, compute: AsyncCompute, send: Send, lease: DeviceLease | None = None
    ) -> None:
        """``compute`` is the runner's."""
        self._runner = runner
        self._compute = compute
        self._send = send
        self._lease = lease or AloneOnDevice()
        self._names = RowNames()
        self._held: AwaitingMasks[Launched] | None = None
        self._forwarded: Mark | None = None
        """The end of its forward."""
        self._lent = False
        """Whether others may use the device until its masks come."""
        self._idle_from = 0.0
        """When the last step ended."""
        self._queue: queue.SimpleQueue[tuple[Pending, Names] | Told | Failed | None] = queue.SimpleQueue()
        self._capturing = threading.Lock()
        self._capture_failed: Failed | None = None
        """Reported in place of the failure of any step that was in progress meanwhile."""
        self._failed = threading.Event()
        # a finished step must not wait for the interpreter's lock for Python's default interval
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
            self._lease.begin()
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
                self._lease.begin()
            self._queue.put((self._runner.draw(held.forwarded, masks), held.names))
        except Exception as error:
            self._fail(step_failure(held.plan, held.names, error))

    def tell(self, message: Told) -> None:
        self._queue.put(message)

    def rest(self) -> float | None:
        if self._held is not None:
            # a capture would use the tensors that hold its intermediate results
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
        """Do a piece of work towards capturing a graph; returns seconds until the next, None if all are captured."""
        with self._capturing:
            try:
                return self._compute.advance(busy=busy)
            except CaptureError as error:
                self._capture_failed = failure = capture_failure(error)
        self._fail(failure)
        return 0.0

    def _lend_device(self) -> float:
        """Release the device between a step's halves if others want it; returns the seconds until the next call."""
        if not self._lent and self._forwarded is not None and self._lease.is_wanted():
            try:
                done = self._forwarded.reached()
            except Exception as error:  # an error of the device
                return self._fail_between_steps(error)
            if done:
                self._lease.end()
                self._lent = True
        return _LOOK_SECONDS if self._lent else min(_LOOK_SECONDS, self._lease.look_seconds)

    def _fail_between_steps(self, error: Exception) -> float:
        logger.error("the worker failed between two steps", exc_info=error)
        self._fail(Failed(f"the worker failed between two steps: {type(error).__name__}"))
        return 0.0

    def _fail(self, failure: Failed) -> None:
        """Report a failure after the results of the steps in progress, unless one of those fails first.

        If one of them does not end, no reason is sent: the engine notices the end of this process.
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
                if isinstance(item, Told):
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
                self._lease.end()
                self._idle_from = time.monotonic()
                self._send(result)
        except PeerDied:
            pass  # the receiving thread gets the error too, and ends the worker
        except Exception as error:
            # nobody else would notice the end of this thread, and the engine would wait for ever
            logger.exception("a result could not be sent")
            self._failed.set()
            self._send(Failed(f"the worker failed to send a result: {type(error).__name__}"))


def check_turn(plan: StepPlan, held: "AwaitingMasks[T] | None") -> None:
    """Raise ValueError for a plan that comes while a step waits for its masks."""
    if held is not None:
        raise ValueError(f"step {plan.step} came before the masks of step {held.plan.step}")


def unexpected(masks: Masks, held: "AwaitingMasks[T] | None") -> str:
    """Why these masks are not the expected ones; "" if they are."""
    if held is not None and (masks.epoch, masks.step) == (held.plan.epoch, held.plan.step):
        return ""
    expected = "none were expected" if held is None else f"those of step {held.plan.step} were expected"
    return f"the worker failed: masks of step {masks.step} came, {expected}"


def capture_failure(error: CaptureError) -> Failed:
    """Log the error; returns the message to the engine, which decides how to go on."""
    logger.error("a CUDA graph could not be captured: the worker ends", exc_info=error)
    return Failed(str(error), graphs=True)


def step_failure(plan: StepPlan, names: Names, error: Exception) -> Failed:
    """Log the current error with the step's requests; returns the message to the engine."""
    if isinstance(error, RankLost):
        return Failed(one_line(error), of_peer=True)
    logger.exception("step %d failed; it had rows of %s", plan.step, names_in(plan, names))
    return Failed(f"the worker failed in step {plan.step}: {type(error).__name__}")
