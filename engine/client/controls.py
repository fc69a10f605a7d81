"""Operations on the engine as a whole: pausing, sleeping, other weights, resets, profiles, loading an adapter."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal, TypeVar

import anyio

from stentor.protocols.ipc.actors import Control, ControlDone, ControlOperation
from stentor.protocols.ipc.adapters import AdapterRef, AdapterWarm, WarmAdapter
from stentor.protocols.ipc.config import Weights

from .launcher import EngineLauncher
from .send_queue import SendQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ControlFailed(Exception):
    """The engine did not do what it was told; why, in one line."""

    def __init__(self, why: str, weights: Weights | None = None) -> None:
        """``weights``: the ones that stay in use, if it was told to load others."""
        super().__init__(why)
        self.weights = weights


async def on_all(engines: Iterable[T], operation: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """Run an operation on several engines at once. Raises one of the :class:`ControlFailed` after all have ended."""
    failures: list[ControlFailed] = []

    async def one(engine: T) -> None:
        try:
            await operation(engine)
        except ControlFailed as failure:  # not through the group, which would cancel the others
            failures.append(failure)

    async with anyio.create_task_group() as tasks:
        for engine in engines:
            tasks.start_soon(one, engine)
    if failures:
        raise failures[0]


class Controls:
    """Sends operations to the present engine, each with a number by which the engine answers.

    Pause, sleep and other weights last over the loss of an engine.
    """

    def __init__(self, queue: SendQueue, launcher: EngineLauncher, wake: Callable[[], None]) -> None:
        """``wake`` is called once the engine has something to answer."""
        self._queue = queue
        self._launcher = launcher
        self._wake = wake
        self._loaded_weights = launcher.weights
        """The last ones that a worker has loaded."""
        self._refusal = ""
        """Why a new engine could not load other weights, until the caller has been told."""
        self._next = 0
        self._asked: dict[int, asyncio.Future[ControlDone | None]] = {}
        """Operations that the present engine has not answered. The result is None if the engine is lost."""
        self._loading: dict[int, asyncio.Future[AdapterWarm | None]] = {}
        """Awaited adapters by ticket. The result is None if there will be no worker to load it."""
        self.paused = False
        """Whether steps are stopped, also for later engines."""
        self._sleep: Literal["sleep", "discard"] | None = None
        """The sleep that was asked for, also of later engines; None while awake."""
        self._serving = False
        """Whether an engine is ready."""
        self._found = asyncio.Event()
        """Set while an engine is ready, while none is to start, and once there will be none."""
        self._woken: asyncio.Event | None = None
        """Set by :meth:`wake` to let an engine start. None unless one is held back."""

    def __bool__(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._asked or self._loading)

    @property
    def weights(self) -> Weights:
        """The weights that the engine serves, or loads now."""
        return self._launcher.weights

    async def pause(self) -> None:
        """Stop steps until :meth:`resume`, also those of later engines. Returns once the last results are delivered.

        Requests are accepted and wait.
        """
        self.paused = True
        await self._carry_out("pause")

    async def resume(self) -> None:
        self.paused = False
        await self._carry_out("resume")

    async def sleep(self, *, discard: bool = False) -> None:
        """End the worker, which frees the device's memory, until :meth:`wake`; requests are accepted and wait.

        No engine is started meanwhile in place of one that is lost. With ``discard``, prepared weights are dropped, so
        the next worker reads the files again.
        """
        self._sleep = "discard" if discard else "sleep"
        self._end_loading()
        if discard and self._woken is not None:
            self._launcher.discard_weights()
        self._launcher.end_start()
        await self._see_through(self._sleep)

    async def wake(self) -> None:
        """Start a worker; returns when it is ready. Requests continue after their delivered tokens.

        Raises :class:`ControlFailed` if weights that were given during the sleep cannot be loaded; then the worker has
        the former ones.
        """
        self._sleep = None
        if self._woken is not None:
            self._found.clear()
            self._woken.set()
        done = await self._see_through("wake")
        refusal, self._refusal = self._refusal, ""
        if done is not None and done.error:
            self._launcher.use_weights(self._loaded_weights)
            refusal = done.error
        if refusal:
            raise ControlFailed(refusal, self.weights)
        if done is not None and self._sleep is None:
            self._loaded_weights = self.weights

    async def reload(self, weights: Weights) -> None:
        """Have the next worker load other weights of the same architecture, and end the present one at once; returns
        when the next is ready. Requests continue after their delivered tokens; nothing computed before is found.

        While it sleeps, the weights are only noted. Raises :class:`ControlFailed` if they cannot be loaded; the former
        ones then stay in use.
        """
        if not self._serving and self._woken is not None:
            self._launcher.use_weights(weights)
            return
        done = await self._carry_out("reload", weights)
        if done is None:
            raise ControlFailed("the engine is away, and the next one loads the former weights", self.weights)
        if done.error:
            raise ControlFailed(done.error, self.weights)
        self._launcher.use_weights(weights)
        if self._sleep is None:
            self._loaded_weights = weights

    async def start_profile(self) -> None:
        """Trace the worker's steps. Raises :class:`ControlFailed`."""
        await self._insist("start_profile")

    async def stop_profile(self) -> None:
        """Write the trace. Raises :class:`ControlFailed`."""
        await self._insist("stop_profile")

    async def reset_encoder_cache(self) -> None:
        """Forget encoded media that no request holds."""
        await self._carry_out("reset_encoder_cache")

    async def reset_prefix_cache(self, *, recompute: bool = False) -> None:
        """Forget all cached prefixes. With ``recompute``, running requests also recompute their tokens."""
        await self._carry_out("reset_prefix_cache")
        if recompute:
            await self._carry_out("recompute")

    async def load(self, adapter: AdapterRef) -> AdapterWarm | None:
        """Load an adapter before any request names it; None if the engine is lost or goes to sleep meanwhile."""
        ticket, self._next = self._next, self._next + 1
        answer: asyncio.Future[AdapterWarm | None] = asyncio.get_running_loop().create_future()
        self._loading[ticket] = answer
        self._queue.warm(WarmAdapter(ticket, adapter))
        self._wake()
        try:
            return await answer
        finally:
            self._loading.pop(ticket, None)

    # ---- for the client

    def answered(self, done: ControlDone) -> None:
        asked = self._asked.pop(done.number, None)
        if asked is not None and not asked.done():
            asked.set_result(done)

    def loaded(self, warm: AdapterWarm) -> None:
        if (answer := self._loading.get(warm.ticket)) is not None and not answer.done():
            answer.set_result(warm)

    @property
    def asleep(self) -> bool:
        """Whether a sleep was asked for, and no wake since."""
        return self._sleep is not None

    async def awake(self) -> None:
        """Hold back the start of an engine for as long as a sleep lasts: its worker would only end again."""
        while self._sleep is not None:
            if self._sleep == "discard":
                self._launcher.discard_weights()
            self._woken = asyncio.Event()
            self._found.set()
            try:
                await self._woken.wait()
            finally:
                self._woken = None

    def begin(self) -> None:
        """Pass pause and sleep to a new engine that has no requests yet."""
        self._serving = True
        self._loaded_weights = self.weights
        self._found.set()
        if self.paused:
            self._tell("pause")
        if self._sleep is not None:
            self._tell(self._sleep)

    def revert_weights(self, why: str) -> bool:
        """Whether the engine that was lost before it was ready was to load weights that no worker has loaded: the next
        one loads the former ones."""
        if self.weights == self._loaded_weights:
            return False
        logger.error("new weights cannot be loaded, the former ones stay in use: %s", why)
        self._refusal = why
        self._launcher.use_weights(self._loaded_weights)
        return True

    def end(self) -> None:
        """Complete all operations: the engine is gone, so nothing runs or is cached."""
        self._serving = False
        self._found.clear()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)
        self._asked.clear()
        self._end_loading()

    def give_up(self) -> None:
        """End like :meth:`end`, and for good: there will be no other engine."""
        self.end()
        self._found.set()

    def _end_loading(self) -> None:
        for answer in self._loading.values():
            if not answer.done():
                answer.set_result(None)

    async def _insist(self, operation: ControlOperation) -> None:
        """Raises :class:`ControlFailed`, also if there is no engine."""
        done = await self._carry_out(operation)
        if done is None or done.error:
            raise ControlFailed("the engine is away" if done is None else done.error)

    async def _see_through(self, operation: ControlOperation) -> ControlDone | None:
        """Returns once an engine has carried out an operation, this one or the next, or none is to start: an engine
        that is lost meanwhile may have a successor, whose worker holds memory."""
        while True:
            await self._found.wait()
            done = await self._carry_out(operation)
            if self._found.is_set():
                return done

    async def _carry_out(self, operation: ControlOperation, weights: Weights | None = None) -> ControlDone | None:
        """Returns the answer when an operation has taken effect, or None if the engine is gone. Without an engine there
        is nothing to do: nothing runs or is cached, and the next one gets the paused state."""
        if not self._serving:
            return None
        asked: asyncio.Future[ControlDone | None] = asyncio.get_running_loop().create_future()
        self._asked[self._next] = asked
        self._tell(operation, weights)
        self._wake()
        return await asked

    def _tell(self, operation: ControlOperation, weights: Weights | None = None) -> None:
        self._queue.control(Control(self._next, operation, weights))
        self._next += 1
