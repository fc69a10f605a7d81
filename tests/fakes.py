"""Stand-ins that behave: an engine without a model, a tokenizer whose tokens are bytes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from stentor.engine.client.client import EngineClient
from stentor.engine.client.controls import ControlFailed
from stentor.engine.client.errors import EngineAsleep, EngineUnavailable
from stentor.engine.client.media import Media
from stentor.engine.client.request import EngineRequest
from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.actors import (
    EngineReady,
    Fault,
    Finished,
    FinishReason,
    PromptDone,
    SequenceTokens,
    Stats,
    Thinking,
)
from stentor.protocols.ipc.adapters import AdapterRef, AdapterWarm
from stentor.protocols.ipc.config import EngineConfig, Weights, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import ExpertShape, TokenLogprobs
from stentor.server.app.state import AuxiliaryModels, OpenedChat, ServerState, compose
from stentor.server.app.text_side import TextSide
from stentor.server.asr.asking import Asking
from stentor.server.config.config import DEFAULTS, Config, RealtimeConfig, StoreConfig
from stentor.server.config.limits import ConnectionLimits, GrammarLimits, LimitsConfig, OverloadConfig
from stentor.server.config.model_registry import ModelRegistry, ModelRole, ServedModel
from stentor.server.config.models import JsonWhitespace, LogprobsMode, ModelConfig
from stentor.server.generation.chat_model import GenerationDefaults
from stentor.server.grammar.checker import Grammars
from stentor.server.media.chat_media import ChatMedia
from stentor.server.media.collect import Accepted
from stentor.server.middleware.access_control import AccessControl
from stentor.server.observability.metrics import Metrics
from stentor.server.observability.observer import Observer
from stentor.server.parsing.output import OutputFormat
from stentor.server.pooling.model import EmbeddingModel
from stentor.server.storage.database import Database
from stentor.server.storage.opening import make_store
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.renderers.choose import TemplateRenderer
from stentor.server.text.renderers.interface import Renderer
from stentor.server.text.tokenizers.pieces import byte_alphabet
from stentor.server.text.tokenizers.tokenizer import Tokenizer
from stentor.server.tools.gateway import McpGateway

BOS, EOS = 256, 257
VOCAB_SIZE = 258
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' and not message.tool_call_id %}"
    "{{ raise_exception('a tool needs its call') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
ANSWER = "Héllo wörld, 😀 — this is what the fake engine says, over and over. "

Event = PromptDone | SequenceTokens | Finished
Answer = Callable[[list[int], int], Sequence[int]]


def byte_tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """256 bytes, then ``<s>`` and ``</s>``; the id of a byte is its value."""
    vocab = {spelled: byte for byte, spelled in byte_alphabet().items()}
    backend = Backend(BPE(vocab, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"}, template)


@cache
def byte_pool() -> TokenizerPool:
    """One for all servers of a test run; it holds nothing of a request."""
    return TokenizerPool(byte_tokenizer())


def says(text: str, *, repeat: bool = False) -> Answer:
    """The same text for every choice, then EOS; or again and again."""
    tokens = list(text.encode())

    def answer(_prompt: list[int], _index: int) -> Sequence[int]:
        return tokens * (4096 // len(tokens)) if repeat else [*tokens, EOS]

    return answer


def logprobs_of(token: int, top: int, ids: Sequence[int] = ()) -> TokenLogprobs:
    """``ids``: in place of the likeliest tokens."""
    if ids:
        return TokenLogprobs(token, -0.25, 1, [(each, -0.25 if each == token else -each / 2) for each in ids])
    alternatives = [(token, -0.25), *(((token + step) % 128, -1.0 - step) for step in range(1, 21))]
    return TokenLogprobs(token, -0.25, 1, alternatives[:top])


class FakeStream:
    """Events of one request: a prompt, then ``burst`` tokens a choice at every step."""

    def __init__(self, engine: "FakeEngine", rid: int, prompt: list[int], params: SamplingParams, n: int) -> None:
        self.prompt = prompt
        self.params = params
        self.aborted: list[int] = []
        self.steps = 0
        """Steps that have been delivered; asking for the next one means that these were taken."""
        self._engine = engine
        self._rid = rid
        self._rest = {index: list(engine.answer(prompt, index))[: params.max_tokens] for index in range(n)}
        self._ended: list[Finished] = []
        self._prompt_done = False

    def skip(self, resumed: list[list[int]]) -> None:
        """Goes on after what has been delivered before."""
        for index, tokens in enumerate(resumed):
            rest = self._rest[index]
            assert rest[: len(tokens)] == tokens, "it would not have said that"
            del rest[: len(tokens)]
            if tokens and tokens[-1] in self.params.eos_token_ids:
                self._ended.append(self._end(index, "stop"))
            elif not rest:
                self._ended.append(self._end(index, "length"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Event]:
        await self._engine.pace()
        self.steps += 1
        events: list[Event] = []
        if not self._prompt_done and self._rest:
            self._prompt_done = True
            events.append(PromptDone(self._rid, self._engine.cached_tokens, 0.5, 0.25, self._prompt_logprobs()))
        for index in list(self._rest):
            events.extend(self._step(index))
        if self._engine.failure is not None:
            events = [self._end(index, "error") for index in list(self._rest)]
        events += self._ended
        self._ended = []
        if not events:
            raise StopAsyncIteration
        return events

    def routed_experts(self, index: int, drawn: int) -> bytes:
        """Of each position its number, modulo 256."""
        assert self._engine.ready is not None
        assert self._engine.ready.experts is not None
        assert self.params.routed_experts is not None
        positions = range(self.params.routed_experts, len(self.prompt) + drawn - 1)
        return b"".join(bytes([at % 256]) * self._engine.ready.experts.token_bytes for at in positions)

    def abort(self, index: int = -1) -> None:
        self.aborted.append(index)
        for one in list(self._rest) if index < 0 else [index]:
            if self._rest.pop(one, None) is not None:
                self._ended.append(Finished(self._rid, one, "abort", None, None))

    @property
    def live(self) -> bool:
        return bool(self._rest)

    def _step(self, index: int) -> list[Event]:
        rest, params = self._rest[index], self.params
        taken = rest[: self._engine.burst]
        stops = [place for place, token in enumerate(taken) if token in params.eos_token_ids + params.stop_token_ids]
        if stops:
            taken = taken[: stops[0] + 1]
        del rest[: len(taken)]
        logprobs = None
        if params.logprobs is not None:
            logprobs = [logprobs_of(token, params.logprobs, params.logprob_token_ids) for token in taken]
        events: list[Event] = [SequenceTokens(self._rid, index, taken, logprobs)]
        if stops:
            matched = taken[-1] if taken[-1] in params.stop_token_ids else None
            events.append(self._end(index, "stop", matched))
        elif not rest:
            events.append(self._end(index, "length"))
        return events

    def _end(self, index: int, reason: FinishReason, stop_token: int | None = None) -> Finished:
        del self._rest[index]
        message = "0xdeadbeef in /srv/secret/worker.py" if reason == "error" else None
        return Finished(self._rid, index, reason, stop_token, message, self._engine.fault if reason == "error" else "")

    def _prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        top = self.params.prompt_logprobs
        if top is None:
            return None
        return [None, *(logprobs_of(token, top) for token in self.prompt[1:])]


class FakeEngine:
    """Takes the place of the engine client.

    Every step of a stream waits ``delay`` seconds, and for :attr:`gate` while that is closed.
    """

    def __init__(
        self,
        *,
        max_model_len: int = 512,
        answer: Answer | None = None,
        delay: float = 0.0,
        experts: ExpertShape | None = None,
    ) -> None:
        self.ready: EngineReady | None = EngineReady(64, 16, max_model_len, [], [], experts=experts, max_num_seqs=4)
        self.failure: str | None = None
        self.fault: Fault = ""
        """Of what ends while it has a failure."""
        self.stalled: str | None = None
        self.engine_restarts = 0
        self.stats = Stats(1, 2, 0.5, 3, 40, 30, 5, 32)
        self.answer = answer or says(ANSWER, repeat=True)
        self.delay = delay
        self.burst = 1
        self.cached_tokens = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.streams: list[FakeStream] = []
        self.submitted: list[tuple[list[int], int, str]] = []
        """Seeds, priority and salt of every request."""
        self.names: list[str] = []
        self.grammars: list[str] = []
        """Of every request; this engine does not keep to them."""
        self.thinking: list[Thinking | None] = []
        self.media: list[Sequence[Media]] = []
        self.told: list[str] = []
        """By its controls, which it is itself."""
        self.controls = self
        self.adapters: list[AdapterRef | None] = []
        """Of every request."""
        self.loaded: list[AdapterRef] = []
        """Those that were loaded before any request."""
        self.refuses_adapters = ""
        """Why none can be loaded."""
        self.loaded_weights: list[Weights] = []
        self.refuses_weights = ""
        """Why none can be loaded."""
        self._runs = asyncio.Event()
        self._runs.set()

    async def pause(self) -> None:
        self.told.append("pause")
        self._runs.clear()

    async def resume(self) -> None:
        self.told.append("resume")
        self._runs.set()

    async def sleep(self, *, discard: bool = False) -> None:
        self.told.append("discard" if discard else "sleep")

    async def wake(self) -> None:
        self.told.append("wake")

    async def reset_prefix_cache(self, *, recompute: bool = False) -> None:
        self.told.append("recompute" if recompute else "reset_prefix_cache")

    async def reset_encoder_cache(self) -> None:
        self.told.append("reset_encoder_cache")

    async def reload(self, weights: Weights) -> None:
        self.told.append("reload")
        if self.refuses_weights:
            raise ControlFailed(self.refuses_weights)
        self.loaded_weights.append(weights)

    async def start_profile(self) -> None:
        self.told.append("start_profile")

    async def stop_profile(self) -> None:
        self.told.append("stop_profile")

    async def load_adapter(self, adapter: AdapterRef) -> AdapterWarm:
        if self.told[-1:] == ["sleep"]:
            raise EngineAsleep
        self.loaded.append(adapter)
        return AdapterWarm(0, self.refuses_adapters)

    async def pace(self) -> None:
        await asyncio.sleep(self.delay)
        await self.gate.wait()
        await self._runs.wait()

    def submit(self, request: EngineRequest) -> FakeStream:
        if self.failure is not None or self.ready is None:
            raise EngineUnavailable(self.failure or "starting")
        self.submitted.append((request.seeds, request.priority, request.salt))
        self.names.append(request.name)
        self.adapters.append(request.adapter)
        self.grammars.append(request.grammar)
        self.thinking.append(request.thinking)
        self.media.append(request.media)
        stream = FakeStream(self, len(self.streams), request.prompt, request.params, len(request.seeds))
        self.streams.append(stream)
        if request.resumed is not None:
            stream.skip(request.resumed)
        return stream

    @property
    def live(self) -> int:
        return sum(stream.live for stream in self.streams)


def fake_state(
    engine: FakeEngine | EngineClient | None = None,
    *,
    access: AccessControl | None = None,
    observer: Observer | None = None,
    pool: TokenizerPool | None = None,
    renderer: Renderer | None = None,
    output: OutputFormat | None = None,
    limits: Limits = DEFAULTS.limits.request,
    overload: OverloadConfig = DEFAULTS.overload,
    connection: ConnectionLimits = DEFAULTS.limits.connection,
    grammar: GrammarLimits = DEFAULTS.limits.grammar,
    realtime: RealtimeConfig = DEFAULTS.realtime,
    store: Database | None = None,
    storing: StoreConfig = DEFAULTS.store,
    gateway: McpGateway | None = None,
    grammars: Grammars | None = None,
    served_names: tuple[str, ...] = ("fake/model", "fake"),
    root: str = "",
    trusts_templates: bool = True,
    json_whitespace: JsonWhitespace = "indented",
    logprobs_mode: LogprobsMode = "raw_logprobs",
    force_include_usage: bool = False,
    per_request_metrics: bool = False,
    vocab_size: int = VOCAB_SIZE,
    eos_token_ids: tuple[int, ...] = (EOS,),
    most_tokens: int | None = None,
    registry: ModelRegistry | None = None,
    transcription: Any = None,
    decoder: Any = None,
    embedding: EmbeddingModel | None = None,
    speech: Any = None,
    runners: Mapping[ModelRole, Any] | None = None,
    media: Callable[[CollectorRegistry], ChatMedia] | None = None,
    worker: WorkerConfig | None = None,
    weights_folder: Path | None = None,
    spec: MediaSpec | None = None,
    asking: Asking | None = None,
) -> ServerState:
    """A server's state over a fake engine. ``registry`` may leave out the chat model, and ``runners`` its engine.

    ``media`` makes what a model needs that takes what ``spec`` says, with its metrics in a registry.
    """
    client: Any = engine or FakeEngine()
    tokens = byte_pool() if pool is None else pool
    models = [] if registry is None else list(registry)
    if all(model.kind != "chat" for model in models):
        models.insert(0, ServedModel("chat", served_names, root, ("transcription",) if asking else ()))
    metrics = Metrics(served_names[0], client)
    config = Config(
        EngineConfig(worker or WorkerConfig("")),
        ModelConfig(
            root,
            served_as=served_names,
            weights_folder=weights_folder,
            trust_request_chat_template=trusts_templates,
            json_whitespace=json_whitespace,
            logprobs_mode=logprobs_mode,
            force_include_usage=force_include_usage,
            per_request_metrics=per_request_metrics,
        ),
        limits=LimitsConfig(limits, connection, grammar=grammar),
        overload=overload,
        realtime=realtime,
        store=storing,
    )
    text = TextSide(
        tokens,
        TemplateRenderer(tokens) if renderer is None else renderer,
        OutputFormat() if output is None else output,
        GenerationDefaults(eos_token_ids=eos_token_ids, most_tokens=most_tokens),
    )
    main = OpenedChat(
        config.model,
        client,
        text,
        vocab_size,
        None if media is None else media(metrics.registry),
        Accepted.of(spec, config.media),
        asking,
    )
    state = compose(
        config,
        main,
        access=access or AccessControl(),
        observer=observer or Observer(),
        metrics=metrics,
        registry=ModelRegistry(models, None if registry is None else registry.adapters),
        store=make_store(storing) if store is None else store,
        auxiliary=AuxiliaryModels(transcription, decoder, embedding, speech),
        backends={"chat": client, **(runners or {})},
        controls=[client.controls],
    )
    if grammars is not None:
        state = replace(state, chat=replace(state.chat, grammars=grammars))
    return state if gateway is None else replace(state, gateway=gateway)
