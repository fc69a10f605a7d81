"""One server's parts, composed: every family of routes gets those that it uses."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from stentor.engine.client.replicas import AnyEngineClient
from stentor.engine.model_config.media_spec import MediaSpec

from ..api.audio.speech import SpeechServices
from ..api.audio.transcriptions import TranscriptionServices
from ..api.chat.route import ChatServices
from ..api.embeddings.requests import EmbeddingServices
from ..api.ops.weights import WeightServices
from ..api.realtime.services import RealtimeServices
from ..api.responses.services import ResponseServices
from ..asr.asking import Asking
from ..asr.model import TranscriptionModel
from ..asr.streaming import StreamingTranscriptionModel
from ..audio.decode import AudioDecoder
from ..batches.runner import BatchRunner
from ..config.config import Config
from ..config.model_facts import ModelFacts
from ..config.model_registry import ModelRegistry, ModelRole
from ..config.models import ModelConfig
from ..generation.chat_model import ChatModel
from ..generation.transcription import ChatTranscriber
from ..grammar.checker import Grammars
from ..media.chat_media import ChatMedia
from ..media.collect import Accepted
from ..media.processor import MediaProcessor
from ..middleware.access_control import AccessControl
from ..observability.figures import AdapterFigures, WeightFigures
from ..observability.metrics import Metrics
from ..observability.observer import Observer
from ..pooling.model import EmbeddingModel
from ..state.admission_control import AdmissionControl, ModelRunner
from ..state.engine_control import Controls, EngineControl
from ..state.live_responses import LiveResponses
from ..state.other_weights import OtherWeights
from ..state.store_services import StoreServices
from ..storage.database import Database
from ..text.grammar_tokens import token_bytes_of
from ..tools.gateway import McpGateway
from ..tts.model import SpeechModel
from .main_model import open_main
from .text_side import TextSide


@dataclass(frozen=True)
class TranscribingChat:
    """A chat model that only transcribes."""

    config: ModelConfig
    client: AnyEngineClient
    text: TextSide
    vocab_size: int
    media: ChatMedia
    asking: Asking
    """Its transcription prompt."""


@dataclass(frozen=True)
class AuxiliaryModels:
    """Models beside the chat model; None for each that is not configured."""

    transcription: TranscriptionModel | StreamingTranscriptionModel | TranscribingChat | None = None
    decoder: AudioDecoder | None = None
    """Decodes uploaded audio; present with a transcription model."""
    embedding: EmbeddingModel | None = None
    speech: SpeechModel | None = None


@dataclass(frozen=True)
class ServerState:
    """Owned by the server process."""

    config: Config
    access: AccessControl
    observer: Observer
    """Notified of every request that has ended."""
    metrics: Metrics
    admission: AdmissionControl
    control: EngineControl
    registry: ModelRegistry
    chat: ChatModel
    auxiliary: AuxiliaryModels
    store: Database
    """Stored objects."""
    batches: BatchRunner
    responses: LiveResponses
    gateway: McpGateway
    weights: WeightServices
    """Of the main model."""
    transcription: TranscriptionModel | StreamingTranscriptionModel | ChatTranscriber | None = None
    """The separate transcription model, if there is one."""
    transcriber: ChatTranscriber | None = None
    """The chat model, where it transcribes."""

    @property
    def media_processors(self) -> list[MediaProcessor]:
        """Processors of the models with media."""
        embedding, transcription = self.auxiliary.embedding, self.transcription
        every = [self.chat.media, None if embedding is None else embedding.media]
        if isinstance(transcription, ChatTranscriber):
            every.append(transcription.chat.media)
        return [media.processor for media in every if media is not None and media.processor is not None]

    @cached_property
    def for_store(self) -> StoreServices:
        return StoreServices(self.config.store, self.store, self.admission, self.batches)

    @cached_property
    def for_chat(self) -> ChatServices:
        return ChatServices(self.chat, self.store)

    @cached_property
    def for_responses(self) -> ResponseServices:
        connection = self.config.limits.connection
        owner = self.access.keys.owner
        return ResponseServices(
            self.chat, self.store, self.responses, self.gateway, owner, connection, self.batches.suspects
        )

    @cached_property
    def for_realtime(self) -> RealtimeServices:
        return RealtimeServices(
            self.config.realtime,
            self.config.limits.connection,
            self.chat,
            self.transcription or self.transcriber,
            self.auxiliary.speech,
            self.access.secrets,
            self.config.http.host,
        )

    @cached_property
    def for_transcription(self) -> TranscriptionServices:
        return TranscriptionServices(
            self.admission, self.registry, self.transcription, self.auxiliary.decoder, self.transcriber
        )

    @cached_property
    def for_speech(self) -> SpeechServices:
        return SpeechServices(self.admission, self.registry, self.auxiliary.speech, self.chat.pool)

    @cached_property
    def for_embeddings(self) -> EmbeddingServices:
        return EmbeddingServices(
            self.config.model, self.admission, self.registry, self.auxiliary.embedding, self.chat.loop_turns
        )


def compose(
    config: Config,
    client: AnyEngineClient,
    text: TextSide,
    vocab_size: int,
    *,
    access: AccessControl,
    observer: Observer,
    metrics: Metrics,
    registry: ModelRegistry,
    store: Database,
    auxiliary: AuxiliaryModels,
    spec: MediaSpec | None = None,
    media: ChatMedia | None = None,
    asking: Asking | None = None,
    facts: ModelFacts | None = None,
    runners: Mapping[ModelRole, ModelRunner],
    controls: Collection[Controls],
) -> ServerState:
    """``client`` and ``text`` are the main model's, ``runners`` those of all models, and ``controls`` of all engines.

    ``spec`` has the chat model's media, ``media`` their processor and that of documents, ``asking`` the transcription
    prompt if it transcribes. ``facts`` are the main model's.
    """
    admission = AdmissionControl(config.limits.request, config.overload, metrics, runners)
    control = EngineControl(admission, controls, client.controls, config.model.weight_version)
    others = OtherWeights(config.engine.worker, config.model.weights_folder, partial(open_main, config))
    WeightFigures(metrics.registry, config.model.served_names[0], control)
    grammars = Grammars(lambda: token_bytes_of(text.pool.tokenizer, text.defaults.eos_token_ids), config.limits.grammar)
    if config.engine.worker.enable_lora:
        most, name_of = config.engine.worker.max_loras, registry.adapters.name_of
        AdapterFigures(config.model.served_names[0], most, lambda: client.stats, name_of, metrics.registry)
    chat = ChatModel(
        config=config.model,
        client=client,
        pool=text.pool,
        renderer=text.renderer,
        output=text.output,
        grammars=grammars,
        vocab_size=vocab_size,
        defaults=text.defaults,
        admission=admission,
        registry=registry,
        metrics=metrics,
        accepted=Accepted.of(spec, config.media),
        media=media,
        facts=facts or ModelFacts(),
    )
    transcription: TranscriptionModel | StreamingTranscriptionModel | ChatTranscriber | None
    if isinstance(asked := auxiliary.transcription, TranscribingChat):
        transcription = ChatTranscriber(_for_transcription(asked, chat), asked.asking)
    else:
        transcription = asked
    return ServerState(
        config=config,
        access=access,
        observer=observer,
        metrics=metrics,
        admission=admission,
        control=control,
        registry=registry,
        chat=chat,
        auxiliary=auxiliary,
        store=store,
        batches=BatchRunner(store, config.store.max_batches, access.keys.owner, config.limits.request),
        responses=LiveResponses(config.store.max_background),
        gateway=McpGateway(config.mcp),
        weights=WeightServices(control, admission, others, config.engine.worker, metrics),
        transcription=transcription,
        transcriber=None if asking is None else ChatTranscriber(chat, asking),
    )


def _for_transcription(asked: TranscribingChat, chat: ChatModel) -> ChatModel:
    """Shares with ``chat`` what the server's models have in common."""
    return ChatModel(
        config=asked.config,
        client=asked.client,
        pool=asked.text.pool,
        renderer=asked.text.renderer,
        output=asked.text.output,
        grammars=chat.grammars,
        vocab_size=asked.vocab_size,
        defaults=asked.text.defaults,
        admission=chat.admission,
        registry=chat.registry,
        metrics=chat.metrics,
        media=asked.media,
        loop_turns=chat.loop_turns,
        role="transcription",
    )
