"""One server's parts, composed: every family of routes gets those that it uses."""

from collections.abc import Collection, Mapping
from functools import cached_property, partial

import msgspec

from stentor.engine.client.replicas import AnyEngineClient

from ..api.audio.speech import SpeechServices
from ..api.audio.transcriptions import TranscriptionServices
from ..api.chat.route import ChatServices
from ..api.embeddings.requests import EmbeddingServices
from ..api.ops.weights import WeightServices
from ..api.realtime.common.services import RealtimeServices
from ..api.responses.services import ResponseServices
from ..asr.asking import Asking
from ..asr.model import TranscriptionModel
from ..asr.streaming import StreamingTranscriptionModel
from ..audio.decode import AudioDecoder
from ..batches.runner import BatchRunner
from ..common.loop_turns import LoopTurns
from ..config.config import Config
from ..config.model_facts import ModelFacts
from ..config.model_registry import ModelRegistry, ModelRole
from ..config.models import ModelConfig
from ..generation.aligning import Aligner, aligner_of
from ..generation.chat_model import ChatModel
from ..generation.picture_prompt import PicturePrompt
from ..generation.transcription import ChatTranscriber
from ..grammar.checker import Grammars
from ..media.chat_media import ChatMedia
from ..media.collect import TEXT_ONLY, Accepted
from ..media.processor import MediaProcessor
from ..middleware.access_control import AccessControl
from ..observability.figures import AdapterFigures, WeightFigures
from ..observability.metrics import Metrics
from ..observability.observer import Observer
from ..pooling.model import EmbeddingModel
from ..state.admission_control import AdmissionControl, ModelBackend
from ..state.engine_control import Controls, EngineControl
from ..state.live_responses import LiveResponses
from ..state.other_weights import OtherWeights
from ..state.store_services import StoreServices
from ..storage.database import Database
from ..text.tokenizers.grammar_tokens import token_bytes_of
from ..tools.gateway import McpGateway
from ..tts.model import SpeechModel
from .main_model import open_main
from .text_side import TextSide


class OpenedChat(msgspec.Struct, frozen=True):
    """The parts of a chat model that its checkpoint and its engine determine."""

    config: ModelConfig
    client: AnyEngineClient
    text: TextSide
    vocab_size: int
    media: ChatMedia | None = None
    """The processor of its media and of documents."""
    accepted: Accepted = TEXT_ONLY
    """The media that it takes."""
    asking: Asking | None = None
    """Its transcription prompt; None if it does not transcribe."""
    facts: ModelFacts = msgspec.field(default_factory=ModelFacts)
    decoder_start: tuple[int, ...] = ()
    """The tokens with which the decoder of an encoder-decoder begins."""
    picture: PicturePrompt | None = None
    """How it is asked about a picture, if that is all that it writes about."""
    prompt_width: int = 0
    """Numbers of an embedding that a prompt may bring; 0: it may bring none."""


class AuxiliaryModels(msgspec.Struct, frozen=True):
    """Models beside the chat model; None for each that is not configured."""

    transcription: TranscriptionModel | StreamingTranscriptionModel | OpenedChat | None = None
    """An :class:`OpenedChat` has a transcription prompt."""
    decoder: AudioDecoder | None = None
    """Decodes uploaded audio; present with a transcription model."""
    embedding: EmbeddingModel | None = None
    speech: SpeechModel | None = None


class ServerState(msgspec.Struct, frozen=True, dict=True):
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
            self.for_responses,
            self.config.http.host,
        )

    @cached_property
    def for_transcription(self) -> TranscriptionServices:
        return TranscriptionServices(
            self.admission,
            self.registry,
            self.transcription,
            self.auxiliary.decoder,
            self.transcriber,
            self.config.model.force_include_usage,
        )

    @cached_property
    def for_speech(self) -> SpeechServices:
        return SpeechServices(self.admission, self.registry, self.auxiliary.speech, self.chat.pool)

    @cached_property
    def for_embeddings(self) -> EmbeddingServices:
        return EmbeddingServices(
            self.config.model, self.admission, self.registry, self.auxiliary.embedding, self.chat.loop_turns, self.chat
        )


class _Shared(msgspec.Struct, frozen=True):
    """What the server's chat models have in common."""

    grammars: Grammars
    admission: AdmissionControl
    registry: ModelRegistry
    metrics: Metrics
    loop_turns: LoopTurns


def _chat_model(opened: OpenedChat, role: ModelRole, shared: _Shared) -> ChatModel:
    return ChatModel(
        config=opened.config,
        client=opened.client,
        pool=opened.text.pool,
        renderer=opened.text.renderer,
        output=opened.text.output,
        grammars=shared.grammars,
        vocab_size=opened.vocab_size,
        defaults=opened.text.defaults,
        admission=shared.admission,
        registry=shared.registry,
        metrics=shared.metrics,
        accepted=opened.accepted,
        media=opened.media,
        facts=opened.facts,
        loop_turns=shared.loop_turns,
        prompt_width=opened.prompt_width,
        decoder_start=opened.decoder_start,
        picture=opened.picture,
        role=role,
    )


def compose(
    config: Config,
    main: OpenedChat,
    *,
    access: AccessControl,
    observer: Observer,
    metrics: Metrics,
    registry: ModelRegistry,
    store: Database,
    auxiliary: AuxiliaryModels,
    backends: Mapping[ModelRole, ModelBackend],
    controls: Collection[Controls],
) -> ServerState:
    """``backends`` are those of all models, and ``controls`` those of all engines."""
    worker, text = config.engine.worker, main.text
    admission = AdmissionControl(config.limits.request, config.overload, metrics, backends)
    control = EngineControl(admission, controls, main.client.controls, config.model.weight_version)
    others = OtherWeights(worker, config.model.weights_folder, partial(open_main, config))
    WeightFigures(metrics.registry, config.model.served_names[0], control)
    grammars = Grammars(lambda: token_bytes_of(text.pool.tokenizer, text.defaults.eos_token_ids), config.limits.grammar)
    if worker.enable_lora:
        name_of = registry.adapters.name_of
        AdapterFigures(
            config.model.served_names[0], worker.max_loras, lambda: main.client.stats, name_of, metrics.registry
        )
    shared = _Shared(grammars, admission, registry, metrics, LoopTurns())
    chat = _chat_model(main, "chat", shared)
    aligner = aligner_of(auxiliary.embedding)
    transcription: TranscriptionModel | StreamingTranscriptionModel | ChatTranscriber | None
    if isinstance(opened := auxiliary.transcription, OpenedChat):
        assert opened.asking is not None
        transcription = _transcriber(_chat_model(opened, "transcription", shared), opened.asking, aligner)
    else:
        transcription = opened
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
        weights=WeightServices(control, admission, others, worker, metrics),
        transcription=transcription,
        transcriber=None if main.asking is None else _transcriber(chat, main.asking, aligner),
    )


def _transcriber(chat: ChatModel, asking: Asking, aligner: Aligner | None) -> ChatTranscriber:
    return ChatTranscriber(chat, asking.with_tokens(chat.pool.tokenizer.added_texts), aligner=aligner)
