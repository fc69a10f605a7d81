"""Several engines that each run the whole model, behind the interface of one (data parallelism).

A request goes to the engine that its client chose, or that served its session, or else to the one that has computed
most of its prompt, unless that one is much busier than another. Engines share nothing: one that dies recovers its own
requests, while the others go on and take new ones.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import anyio
import msgspec

from stentor.protocols.ipc.actors import EngineReady, Stats
from stentor.protocols.ipc.adapters import AdapterRef, AdapterWarm
from stentor.protocols.ipc.config import Weights

from ..processes.exception_groups import first_cause
from .client import EngineClient
from .controls import ControlFailed, Controls, on_all
from .errors import EngineUnavailable
from .outages import RecoveryObserver, add_counters
from .request import EngineRequest
from .send_queue import VocabularySource
from .stream import RequestStream

logger = logging.getLogger(__name__)

_PIECE_TOKENS: Final = 64
"""Prompts are compared in pieces of this length."""
_MOST_PIECES: Final = 1 << 16
"""Pieces that are remembered, least recently used first out."""
_MOST_SESSIONS: Final = 1 << 16
"""Sessions that are remembered, least recently used first out."""
_SLACK: Final = 4
"""Requests by which an engine may be busier than the idlest and still be chosen for its prefix."""


class EngineChoice(msgspec.Struct, frozen=True):
    """Which engine is to serve a request, as its client asked."""

    engine: int | None = None
    """The number of the engine; None: any."""
    session: bytes = b""
    """Requests of one session go to one engine, while that one runs; empty: none."""


_ANY: Final = EngineChoice()

engine_choice: ContextVar[EngineChoice] = ContextVar("engine_choice", default=_ANY)
"""The choice for the request of the running task; a variable, since several parts of the server submit for one."""


class EngineReplicas:
    """Several engines with the interface of one :class:`.client.EngineClient`."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self._clients = tuple(clients)
        self.size: Final = len(self._clients)
        """How many engines it began with."""
        self._router = Router(len(self._clients))
        self.controls = ReplicaControls(lambda: self._living, self._router)
        self._combined: tuple[list[EngineReady], EngineReady] | None = None
        """The engines' latest messages of readiness, and the message made of them."""

    @property
    def _living(self) -> list[EngineClient]:
        """The engines that have not been given up."""
        return [client for client in self._clients if client.failure is None]

    @property
    def failure(self) -> str | None:
        """Why no engine runs any more; None while one does."""
        return None if self._living else self._clients[0].failure

    @property
    def stalled(self) -> str | None:
        """Why no engine can run a step at present; None if one can."""
        living = self._living
        if not living or any(client.stalled is None for client in living):
            return None
        return living[0].stalled

    @property
    def ready(self) -> EngineReady | None:
        """The combined limits of the engines that have not been given up; None until each of these has been ready."""
        clients = self._living or self._clients
        ready = [each for client in clients if (each := client.ready) is not None]
        if len(ready) < len(clients):
            return None
        if self._combined is None or ready != self._combined[0]:
            note = f"{len(ready)} engines run the whole model each; memory is that of the first"
            combined = msgspec.structs.replace(
                ready[0],
                num_blocks=sum(each.num_blocks for each in ready),
                max_model_len=min(each.max_model_len for each in ready),
                max_num_seqs=sum(each.max_num_seqs for each in ready),
                notes=[*ready[0].notes, note],
            )
            self._combined = ready, combined
        return self._combined[1]

    @property
    def stats(self) -> Stats:
        """Sums, also of the counters of engines that were given up; usage of memory is the mean of the others."""
        first, *others = stats = [client.stats for client in self._clients]
        waiting_for = dict(first.waiting_for)
        for each in others:
            for resource, count in each.waiting_for.items():
                waiting_for[resource] = waiting_for.get(resource, 0) + count
        return msgspec.structs.replace(
            add_counters(first, *others),
            running=sum(each.running for each in stats),
            waiting=sum(each.waiting for each in stats),
            free_blocks=sum(each.free_blocks for each in stats),
            kv_usage=sum(each.kv_usage for each in stats) / max(1, len(self._living)),
            host_usage=sum(each.host_usage for each in stats) / max(1, len(self._living)),
            waiting_for=waiting_for,
            running_adapters=sorted({number for each in stats for number in each.running_adapters}),
            waiting_adapters=sorted({number for each in stats for number in each.waiting_adapters}),
        )

    @property
    def engine_restarts(self) -> int:
        return sum(client.engine_restarts for client in self._clients)

    @property
    def live_requests(self) -> int:
        return sum(client.live_requests for client in self._clients)

    def watch_recoveries(self, observer: RecoveryObserver) -> None:
        for client in self._clients:
            client.watch_recoveries(observer)

    def set_vocabulary(self, source: VocabularySource) -> None:
        for client in self._clients:
            client.set_vocabulary(source)

    def submit(self, request: EngineRequest) -> RequestStream:
        """See :meth:`.client.EngineClient.submit`; raises as that of the engine that was chosen.

        An engine that the client chose gets the request in whatever state it is.
        """
        wish = engine_choice.get()
        living = [number for number, client in enumerate(self._clients) if client.failure is None]
        able = [number for number in living if self._clients[number].stalled is None] or living or [0]
        if wish.engine is not None:
            able = [wish.engine]
        loads = {number: self._clients[number].live_requests for number in able}
        named = request.session or wish.session
        session = (request.salt, named) if named else None
        root = (request.salt, None if request.adapter is None else request.adapter.number)
        return self._clients[self._router.choose(request.prompt, root, loads, session)].submit(request)

    async def load_adapter(self, adapter: AdapterRef) -> AdapterWarm:
        """Load an adapter on every engine; the answer is the first refusal, if any. Raises
        :class:`.errors.EngineUnavailable`."""
        answers = [await client.load_adapter(adapter) for client in self._living]
        if not answers:
            raise EngineUnavailable(self.failure or "no engine runs")
        return next((answer for answer in answers if answer.error), answers[0])

    async def wait_started(self) -> EngineReady:
        """Waits until every engine is ready. Raises :class:`.errors.EngineUnavailable` as soon as one ends before."""
        failure: BaseException
        try:
            async with anyio.create_task_group() as tasks:
                for client in self._clients:
                    tasks.start_soon(client.wait_started)
            ready = self.ready
            assert ready is not None
            return ready
        except* EngineUnavailable as group:
            failure = first_cause(group)
        raise failure

    async def run(self) -> None:
        """Runs all engines until each has been given up, or the task is cancelled."""
        async with anyio.create_task_group() as tasks:
            for number, client in enumerate(self._clients):
                tasks.start_soon(self._run, number, client)

    async def _run(self, number: int, client: EngineClient) -> None:
        await client.run()
        if left := len(self._living):
            logger.error("engine %d was given up, %d serve on: %s", number, left, client.failure)


AnyEngineClient = EngineClient | EngineReplicas
"""One engine, or several that run the same model."""


class ReplicaControls:
    """The controls of several engines with the interface of one :class:`.controls.Controls`."""

    def __init__(self, living: Callable[[], list[EngineClient]], router: "Router") -> None:
        """``living`` returns the engines that have not been given up."""
        self._living = living
        self._router = router

    async def pause(self) -> None:
        await self._all(Controls.pause)

    async def resume(self) -> None:
        await self._all(Controls.resume)

    async def sleep(self, *, discard: bool = False) -> None:
        await self._all(partial(Controls.sleep, discard=discard))

    async def wake(self) -> None:
        """Start a worker of every engine; returns when all are ready. All have the same weights then, as far as they
        can. Raises as :meth:`.controls.Controls.wake`."""
        try:
            await self._all(Controls.wake)
        except ControlFailed as failure:
            await self._go_back(failure)
            raise

    async def reload(self, weights: Weights) -> None:
        """Load other weights in every engine; if one cannot, all go on with the former ones. Raises as
        :meth:`.controls.Controls.reload`."""
        self._router.forget()
        try:
            await self._all(lambda controls: controls.reload(weights))
        except ControlFailed as failure:
            await self._go_back(failure)
            raise

    async def start_profile(self) -> None:
        await self._all(Controls.start_profile)

    async def stop_profile(self) -> None:
        await self._all(Controls.stop_profile)

    async def reset_encoder_cache(self) -> None:
        await self._all(Controls.reset_encoder_cache)

    async def reset_prefix_cache(self, *, recompute: bool = False) -> None:
        self._router.forget()
        await self._all(partial(Controls.reset_prefix_cache, recompute=recompute))

    async def _go_back(self, failure: ControlFailed) -> None:
        """Have the other engines load the weights that one has kept."""
        kept = failure.weights
        if kept is not None:
            others = [client.controls for client in self._living() if client.controls.weights != kept]
            await on_all(others, lambda controls: controls.reload(kept))

    async def _all(self, operation: Callable[[Controls], Coroutine[Any, Any, None]]) -> None:
        await on_all([client.controls for client in self._living()], operation)


class Router:
    """Chooses engines by the sessions and prefixes that they were given before. Plain data: no I/O, no clock."""

    def __init__(self, engines: int) -> None:
        self._engines = engines
        self._given: OrderedDict[int, int] = OrderedDict()
        """The engine that got a prefix last, by the hash of the prefix: least recently used first."""
        self._sessions: OrderedDict[int, int] = OrderedDict()
        """The engine that got a session last, by the hash of the session: least recently used first."""
        self._turn = 0

    def choose(self, prompt: Sequence[int], root: object, loads: dict[int, int], session: object = None) -> int:
        """The engine for a prompt among the keys of ``loads``, which is live requests by engine.

        ``root`` tells prompts apart that share no cache: their salt and adapter. A ``session`` stays where it was,
        however busy. Equally idle engines take turns.
        """
        pieces = list(_pieces(prompt, root))
        sessions = [] if session is None else [hash(session)]
        chosen = self._sessions.get(sessions[0]) if sessions else None
        if chosen is None or chosen not in loads:
            chosen = self._by_prefix(pieces, loads)
        _note(self._given, pieces, chosen, _MOST_PIECES)
        _note(self._sessions, sessions, chosen, _MOST_SESSIONS)
        return chosen

    def _by_prefix(self, pieces: Sequence[int], loads: dict[int, int]) -> int:
        idlest = min(loads.values())
        for piece in reversed(pieces):
            engine = self._given.get(piece)
            if engine is not None and loads.get(engine, idlest + _SLACK + 1) <= idlest + _SLACK:
                return engine
        self._turn += 1
        return min(loads, key=lambda engine: (loads[engine], (engine - self._turn) % self._engines))

    def forget(self) -> None:
        self._given.clear()
        self._sessions.clear()


def _note(given: OrderedDict[int, int], keys: Sequence[int], engine: int, most: int) -> None:
    for key in keys:
        given[key] = engine
        given.move_to_end(key)
    while len(given) > most:
        given.popitem(last=False)


def _pieces(prompt: Sequence[int], root: object) -> Iterator[int]:
    """Hashes of prefixes, each of one piece more. Collisions only send a request to an engine without its prefix."""
    before = hash(root)
    for start in range(0, len(prompt) - _PIECE_TOKENS + 1, _PIECE_TOKENS):
        before = hash((before, tuple(prompt[start : start + _PIECE_TOKENS])))
        yield before
