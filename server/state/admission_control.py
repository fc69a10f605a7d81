"""Admission of requests, and the live requests: checked first by every family of routes."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

import anyio

from stentor.engine.client.replicas import EngineReplicas
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.actors import Stats

from ..common.errors import PAUSED, Aborted, Overloaded, ShutDown, Unavailable, engine_gone
from ..config.limits import OverloadConfig
from ..config.model_registry import ModelRole
from ..observability.metrics import Metrics
from ..observability.request import RequestRecord, current_record
from ..overload.memory_budget import MemoryBudget, default_budget
from ..overload.queue_slots import AdmissionQueue
from ..overload.request_context import RequestContext


class ModelBackend(Protocol):
    """Runs one model in processes of its own: an engine client, or the speech model."""

    @property
    def ready(self) -> object | None:
        """None until it is ready for the first time."""

    @property
    def stalled(self) -> str | None:
        """Why it cannot run at present, while a crashed process is replaced; requests are accepted and wait."""

    @property
    def failure(self) -> str | None:
        """Why it has been given up."""


class AdmissionControl:
    """Owned by the server process. Admits requests, counts those that are live, and refuses all while it drains."""

    def __init__(
        self, limits: Limits, overload: OverloadConfig, metrics: Metrics, backends: Mapping[ModelRole, ModelBackend]
    ) -> None:
        """``backends`` are those of all models."""
        self.limits: Final = limits
        """Limits of one request."""
        self.overload: Final = overload
        self.queue: Final = AdmissionQueue(overload)
        # the other half is the tokenizer pool's
        self.memory: Final = MemoryBudget((overload.max_inflight_bytes or default_budget()) // 2)
        """For all that is held for clients."""
        self.draining = False
        """Once true, requests are refused."""
        self.paused = False
        """While true, requests for generation are refused; probes are answered as ever."""
        self.weight_header: tuple[bytes, bytes] | None = None
        """Of every answer of the main model, once the version of its weights has a name."""
        self.weight_version = ""
        """Of the main model's weights."""
        self._metrics = metrics
        self._backends = backends
        self._live: dict[RequestContext, RequestRecord | None] = {}
        """Requests for generation."""
        self._transfers: set[RequestContext] = set()
        self._one_ended = anyio.Event()

    @property
    def live_requests(self) -> int:
        """Requests for generation and transfers of files, between admission and the last byte of their response."""
        return len(self._live) + len(self._transfers)

    def check_available(self, kind: ModelRole = "chat") -> None:
        """Raises Unavailable while the model of this kind starts, after any failed, and while the server drains."""
        self._check_open()
        self.check_alive()
        backend = self._backends.get(kind)
        if backend is not None and backend.ready is None:
            raise Unavailable("The model is still loading; try again shortly.", "starting")

    def _check_open(self) -> None:
        if self.draining:
            raise Unavailable("The server is shutting down and takes no new requests.", "draining")

    def engines_of(self, kind: ModelRole) -> int:
        """How many engines run the model that serves this kind; the main one where it has none of its own."""
        backend = self._backends.get(kind, self._backends.get("chat"))
        return backend.size if isinstance(backend, EngineReplicas) else 1

    def stats_of(self, kind: ModelRole) -> Stats | None:
        """Of the engines of that model, as :meth:`engines_of`; None for what is no engine."""
        stats = getattr(self._backends.get(kind, self._backends.get("chat")), "stats", None)
        return stats if isinstance(stats, Stats) else None

    def check_ready(self) -> None:
        """Raises Unavailable unless every model is ready and no crashed process is being replaced. Meanwhile new
        requests are accepted and wait."""
        for kind in self._backends:
            self.check_available(kind)
        if any(backend.stalled is not None for backend in self._backends.values()):
            raise Unavailable("The engine is recovering; new requests wait until it is back.", "recovering")

    def check_alive(self) -> None:
        """Raises Unavailable once an engine has been given up: the server is about to end."""
        if any(backend.failure is not None for backend in self._backends.values()):
            raise engine_gone()

    @contextmanager
    def admit(
        self,
        timeout: float | None = None,
        kind: ModelRole = "chat",
        *,
        body_to_come: bool = False,
        priority: int | None = None,
    ) -> Iterator[RequestContext]:
        """Counts one request to a model of this kind, which has ``timeout`` seconds, or with 0 as many as it takes;
        None: as many as the operator gives every request. With ``body_to_come``, its slot is taken by
        :meth:`..overload.queue_slots.QueueSlot.arrived`. ``priority``: that of its head, if any.

        Raises Unavailable and Overloaded, the latter also from the inside.
        """
        try:
            self.check_available(kind)
            if self.paused:
                raise Unavailable(PAUSED, "paused")
            queue_slot = self.queue.enter(self.memory.share(), body_to_come=body_to_come)
        except (Unavailable, Overloaded) as refusal:
            self._count_refusal(refusal)
            raise
        seconds = self.overload.request_timeout if timeout is None else timeout
        context = RequestContext(queue_slot, seconds, priority)
        self._live[context] = current_record.get()
        with self._counted(context):
            yield context

    @contextmanager
    def transfer(self) -> Iterator[RequestContext]:
        """Counts one transfer of a file, for which no model is needed. Raises Unavailable while the server drains."""
        try:
            self._check_open()
        except Unavailable as refusal:
            self._count_refusal(refusal)
            raise
        context = RequestContext(self.queue.pass_by(), 0.0)
        self._transfers.add(context)
        with self._counted(context):
            yield context

    @contextmanager
    def _counted(self, context: RequestContext) -> Iterator[None]:
        try:
            yield
        except Overloaded as refusal:
            self._count_refusal(refusal)
            raise
        finally:
            if context.ended_by is not None and context.ended_by.code is not None:
                self._metrics.cut_off[context.ended_by.code].inc()
            context.queue_slot.close()
            self._live.pop(context, None)
            self._transfers.discard(context)
            self._one_ended.set()

    def cut_off(self, *, transfers: bool = True) -> None:
        """Ends every live request with an error, if ``transfers`` those of files, too."""
        for context in (*self._live, *(self._transfers if transfers else ())):
            context.cut_short(ShutDown())

    def abort(self, request_ids: Collection[str] | None = None) -> int:
        """Ends live requests for generation with an error: those of the ids, or all. How many they are.

        An id is that of the header ``x-request-id``, or that of an answer, which is the same behind a prefix. A prompt
        with an id of its own ends with what it has, without an error.
        """
        wanted = None if request_ids is None else {*request_ids, *(each.partition("-")[2] for each in request_ids)}
        found = [
            context
            for context, record in self._live.items()
            if wanted is None or (record is not None and record.request_id in wanted)
        ]
        for context in found:
            context.cut_short(Aborted())
        parts = [end for context in self._live for id, end in context.parts.items() if wanted and id in wanted]
        for end in parts:
            end()
        return len(found) + len(parts)

    def _count_refusal(self, refusal: Unavailable | Overloaded) -> None:
        if refusal.code is not None:
            self._metrics.rejected[refusal.code].inc()

    async def drained(self, timeout: float, unless: Callable[[], bool] = lambda: False) -> bool:
        """Waits up to ``timeout`` seconds for the last live request, or until :meth:`look_again` finds that ``unless``
        holds; False if some are left."""
        with anyio.move_on_after(timeout):
            await self._wait_until(lambda: not self.live_requests or unless())
        return not self.live_requests

    @property
    def generates(self) -> bool:
        """Whether a request for generation is live."""
        return bool(self._live)

    async def generated(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait for the last live request for generation, or until :meth:`look_again` finds that ``unless`` holds."""
        await self._wait_until(lambda: not self._live or unless())

    def look_again(self) -> None:
        """Have :meth:`generated` and :meth:`drained` check ``unless`` again."""
        self._one_ended.set()

    async def _wait_until(self, over: Callable[[], bool]) -> None:
        while not over():
            if self._one_ended.is_set():
                self._one_ended = anyio.Event()
            await self._one_ended.wait()
