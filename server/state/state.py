"""What the routes of one server share: the models it serves and the requests that are live."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import anyio

from stentor.engine.client.client import EngineClient
from stentor.protocols.common.limits import Limits

from ..batches.runner import BatchRunner
from ..common.errors import Overloaded, ShutDown, Unavailable
from ..common.loop_turns import LoopTurns
from ..config.config import RealtimeConfig, StoreConfig
from ..config.limits import ConnectionLimits, GrammarLimits, OverloadConfig
from ..config.model_registry import ModelRegistry, ModelRole, ServedModel
from ..config.models import JsonWhitespace
from ..grammar.checker import Grammars
from ..http.sse import KEEP_ALIVE_SECONDS
from ..middleware.access_control import AccessControl
from ..observability.metrics import Metrics
from ..observability.observer import Observer
from ..overload.memory_budget import MemoryBudget, default_budget
from ..overload.queue_slots import AdmissionQueue
from ..overload.request_context import RequestContext
from ..parsing.output import OutputFormat
from ..storage.database import Database
from ..storage.opening import make_store
from ..text.grammar_tokens import special_tokens_of, token_bytes_of
from ..text.pool import TokenizerPool
from ..text.renderers.hf import TemplateRenderer
from ..text.renderers.interface import Renderer
from ..tools.gateway import Gateway
from .live_responses import LiveResponses

if TYPE_CHECKING:
    from ..asr.model import TranscriptionModel
    from ..asr.streaming import StreamingTranscriptionModel
    from ..audio.decode import AudioDecoder
    from ..pooling.model import EmbeddingModel
    from ..tts.model import SpeechModel


class ModelRunner(Protocol):
    """Whatever runs a model, in processes of its own."""

    @property
    def ready(self) -> object | None:
        """None until it can be used for the first time."""

    @property
    def stalled(self) -> str | None:
        """Why it cannot run at present, while what was lost is replaced; requests are taken and wait."""

    @property
    def failure(self) -> str | None:
        """Why it has been given up."""


@dataclass(frozen=True)
class GenerationDefaults:
    """What the model's ``generation_config.json`` says; a request's own values beat these."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    eos_token_ids: tuple[int, ...] = ()


@dataclass
class ServerState:
    """Owned by the server process; read by routes, changed by :mod:`..app.lifecycle` and the requests themselves."""

    served_names: tuple[str, ...]
    """Never empty; the first is the one that metrics carry."""
    client: EngineClient
    pool: TokenizerPool
    metrics: Metrics
    vocab_size: int
    """Token ids that a client may name lie in [0, vocab_size)."""
    root: str = ""
    """What the operator asked to be served, for the model card; empty means the first served name."""
    defaults: GenerationDefaults = GenerationDefaults()
    trusts_templates: bool = False
    """Whether requests may bring chat templates of their own."""
    output: OutputFormat = field(default_factory=OutputFormat)
    """How the model writes reasoning and tool calls."""
    json_whitespace: JsonWhitespace = "indented"
    """What JSON may have where a grammar constrains it."""
    access: AccessControl = field(default_factory=AccessControl)
    keep_alive: float = KEEP_ALIVE_SECONDS
    observer: Observer = field(default_factory=Observer)
    """Is told of every request that has ended."""
    created: int = field(default_factory=lambda: int(time.time()))
    limits: Limits = field(default_factory=Limits)
    """Of what one request may ask for."""
    draining: bool = False
    """Once true, requests for generation are refused."""
    overload: OverloadConfig = field(default_factory=OverloadConfig)
    grammar_limits: GrammarLimits = field(default_factory=GrammarLimits)
    writes: Renderer | None = None
    """How conversations become prompts; None: by the model's chat template. See :attr:`renderer`."""
    max_batches: int = StoreConfig().max_batches
    """That may be open at a time."""
    max_file_bytes: int = StoreConfig().max_file_bytes
    """Of a file that a client brings."""
    store: Database = field(default_factory=lambda: make_store(StoreConfig()))
    """What outlives a request."""
    socket_messages: int = ConnectionLimits().max_messages_per_second
    """That are read a second from one WebSocket; 0 is no limit."""
    realtime: RealtimeConfig = field(default_factory=RealtimeConfig)
    """What one realtime session may be."""
    responses: LiveResponses = field(default_factory=LiveResponses)
    """Those of the Responses API that are being made."""
    mcp: Gateway = field(default_factory=Gateway)
    """Through which tools on other servers are reached."""
    registry: ModelRegistry = field(default_factory=lambda: ModelRegistry([]))
    """Of all models; empty means the chat model alone, under :attr:`served_names`."""
    chats: bool = True
    """Whether there is a chat model; otherwise :attr:`client` is that of the only model which has an engine."""
    transcription: "TranscriptionModel | StreamingTranscriptionModel | None" = None
    """None where none is served; so for the next three."""
    embedding: "EmbeddingModel | None" = None
    speech: "SpeechModel | None" = None
    audio: "AudioDecoder | None" = None
    """Makes samples of what clients upload."""
    others: Mapping[ModelRole, ModelRunner] = field(default_factory=dict)
    """What runs the models besides the chat model's."""
    queue: AdmissionQueue = field(init=False)
    memory: MemoryBudget = field(init=False)
    """For all that is held for clients."""
    turns: LoopTurns = field(default_factory=LoopTurns)
    """For whatever would keep the event loop from all other requests."""
    grammars: Grammars = field(init=False)
    """Whatever grammar a request brings is tried there before the engine is given it."""
    _live: set[RequestContext] = field(default_factory=set)
    _idle: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        if self.chats and self.registry.of_kind("chat") is None:
            self.registry = ModelRegistry([ServedModel("chat", self.served_names, self.root), *self.registry])
        self.batches = BatchRunner(self.store, self.max_batches, self.access.keys.owner, self.limits)
        self.renderer: Renderer = TemplateRenderer(self.pool) if self.writes is None else self.writes
        self.queue = AdmissionQueue(self.overload)
        # the other half is the tokenizer pool's
        self.memory = MemoryBudget((self.overload.max_inflight_bytes or default_budget()) // 2)
        tokenizer, eos = self.pool.tokenizer, self.defaults.eos_token_ids
        self.grammars = Grammars(lambda: token_bytes_of(tokenizer, eos), self.grammar_limits)

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """Ids of special tokens by their text, as grammars name them."""
        return special_tokens_of(self.pool.tokenizer)

    @property
    def max_model_len(self) -> int | None:
        """Longest sequence, prompt and output; None until the engine is ready."""
        ready = self.client.ready
        return None if ready is None else ready.max_model_len

    @property
    def live_requests(self) -> int:
        """Requests for generation and transfers of files, between admission and the last byte of their response."""
        return len(self._live)

    def check_available(self, kind: ModelRole = "chat") -> None:
        """Raises Unavailable while the model of this kind starts, after any failed, and while the server drains."""
        self._check_open()
        self.check_alive()
        runs = self._runs.get(kind)
        if runs is not None and runs.ready is None:
            raise Unavailable("The model is still loading; try again shortly.", "starting")

    def _check_open(self) -> None:
        if self.draining:
            raise Unavailable("The server is shutting down and takes no new requests.", "draining")

    def check_ready(self) -> None:
        """As :meth:`check_available` for every model, and while what was lost under one is being replaced: new requests
        are taken and wait."""
        for kind in self._runs:
            self.check_available(kind)
        if any(runs.stalled is not None for runs in self._runs.values()):
            raise Unavailable("The engine is recovering; new requests wait until it is back.", "recovering")

    def check_alive(self) -> None:
        """Raises Unavailable once an engine has been given up: the server is about to end."""
        if any(runs.failure is not None for runs in self._runs.values()):
            raise Unavailable("The engine has stopped; the server cannot generate.", "failed")

    @property
    def _runs(self) -> Mapping[ModelRole, ModelRunner]:
        return {"chat": self.client, **self.others}

    def resolve_model(self, name: str | None) -> str:
        """The served name of the chat model that a request meant; None means the first.

        Raises BadRequest as :meth:`..config.model_registry.ModelRegistry.resolve` does.
        """
        return self.registry.resolve(name, "chat")

    @contextmanager
    def live(self, timeout: float = 0.0, kind: ModelRole = "chat") -> Iterator[RequestContext]:
        """Counts one request to a model of this kind, which has ``timeout`` seconds, or with 0 as many as it takes.

        Raises Unavailable and Overloaded, the latter also from the inside.
        """
        try:
            self.check_available(kind)
            permit = self.queue.enter(self.memory.share())
        except (Unavailable, Overloaded) as refusal:
            self._count_refusal(refusal)
            raise
        with self._counted(RequestContext(permit, timeout)) as context:
            yield context

    @contextmanager
    def transfer(self) -> Iterator[RequestContext]:
        """Counts one transfer of a file, for which no model is needed. Raises Unavailable while the server drains."""
        try:
            self._check_open()
        except Unavailable as refusal:
            self._count_refusal(refusal)
            raise
        with self._counted(RequestContext(self.queue.pass_by(), 0.0)) as context:
            yield context

    @contextmanager
    def _counted(self, context: RequestContext) -> Iterator[RequestContext]:
        if not self._live:
            self._idle = anyio.Event()
        self._live.add(context)
        try:
            yield context
        except Overloaded as refusal:
            self._count_refusal(refusal)
            raise
        finally:
            if context.ended_by is not None and context.ended_by.code is not None:
                self.metrics.cut_off[context.ended_by.code].inc()
            context.permit.close()
            self._live.remove(context)
            if not self._live:
                self._idle.set()

    def cut_off(self) -> None:
        """Ends every live request with an error."""
        for context in tuple(self._live):
            context.cut_short(ShutDown())

    def _count_refusal(self, refusal: Unavailable | Overloaded) -> None:
        if refusal.code is not None:
            self.metrics.rejected[refusal.code].inc()

    async def drained(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds for the last live request; False if some are left."""
        with anyio.move_on_after(timeout):
            while self._live:
                await self._idle.wait()
        return not self._live
