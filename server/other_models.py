"""Opens what is served beside the chat model: what hears, what speaks, and what makes samples of uploads."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.supervisor import Supervisor

from .config import Config
from .engines import Engines
from .listening import StartError
from .state import ServerState

# Each kind is imported where it is opened: a server without it need not wait for what it brings.


async def open_others(
    config: Config, state: ServerState, engines: Engines, supervisor: Supervisor, at_end: AsyncExitStack
) -> Callable[[], Awaitable[None]]:
    """Fills in what ``state`` lacks, before routes are made of it; what runs by itself becomes a child of
    ``supervisor``. Returns what waits until that can be used.

    Raises :class:`.listening.StartError`, as does what it returns.
    """
    waits: list[Callable[[], Awaitable[None]]] = []
    try:
        if "transcription" in engines.clients:
            from .audio.decode import AudioDecoder
            from .transcription.errors import TranscriptionModelError
            from .transcription.opening import open_transcription

            client, folder = engines.clients["transcription"], Path(config.transcription.path)
            try:
                state.transcription = await anyio.to_thread.run_sync(
                    open_transcription, config.transcription, client, folder
                )
            except TranscriptionModelError as error:
                raise StartError(str(error)) from error
            state.audio = AudioDecoder()
            at_end.push_async_callback(state.audio.close)
        if config.speech.model is not None:
            from .speech.opening import open_speech

            state.speech = speech = await anyio.to_thread.run_sync(open_speech, config)
            state.others = {**state.others, "speech": speech}
            supervisor.start("the speech model", speech.run)
            waits.append(speech.wait_started)
    except CheckpointError as error:
        raise StartError(str(error)) from error

    async def wait() -> None:
        for one in waits:
            await one()

    return wait
