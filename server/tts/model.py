"""The speech model, for one event loop: synthesises sentence by sentence, callers in turn (see :mod:`.fairness`).

How a sentence is made is a :class:`Synthesis`: one at a time by the voices of the speech process, or many at once by a
language model (:mod:`.language_model`).

::

    speaking = model.speak(deltas, voice="alloy", speed=1.0)
    try:
        async for spoken in speaking:
            …  # spoken.pcm says spoken.text
    finally:
        await speaking.aclose()

A sentence is made while the one before plays, and not earlier: a caller is only a few ahead of what it has read.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from stentor.engine.sharing.cpu_plan import plan_cpus
from stentor.engine.sharing.cpu_topology import read_topology
from stentor.engine.tts.backend import Part
from stentor.engine.tts.client import SentenceFailed, SpeechClient, SpeechUnavailable
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.speech import SpeechPiece, StartSpeech

from ..common.errors import Overloaded, ServerError, Unavailable
from ..config.config import Config
from ..http.listening import StartError
from ..observability.request import current_request_id
from .fairness import Turns
from .sentences import sayable
from .speaking import Origin, Speaking, Spoken

if TYPE_CHECKING:
    from stentor.engine.tts.voices import Voices

__all__ = ["Speaking", "SpeechFailed", "SpeechModel", "SpeechObserver", "Spoken"]

logger = logging.getLogger(__name__)

MAX_CALLERS: Final = 256
"""Texts that are being spoken, or wait for that."""
_RETRY_SECONDS: Final = 1
OPENAI_VOICES: Final = frozenset(
    ("alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse", "marin", "cedar")
)
"""Clients name one of them by habit; each is the default voice, unless a voice has the name."""
_SHOWN_VOICES: Final = 16


class SpeechFailed(ServerError):
    code = "speech_failed"

    def __init__(self) -> None:
        super().__init__("A part of the text could not be spoken; the log of the server says why.")


class SpeechObserver(Protocol):
    """Notified of events; see :mod:`.metrics`."""

    def began(self) -> None: ...

    def first_audio(self, seconds: float) -> None:
        """Since the text began to come."""

    def made(self, audio_seconds: float, seconds: float) -> None:
        """A sentence."""

    def ended(self) -> None: ...

    def restarted(self) -> None:
        """A process was lost, and another one started."""


class Synthesis(Protocol):
    """Makes sentences."""

    @property
    def at_once(self) -> int:
        """Sentences that are made at the same time."""

    @property
    def tags(self) -> frozenset[str]:
        """Marks in angle brackets that it reads; others are left out."""

    @property
    def ready(self) -> bool: ...

    @property
    def stalled(self) -> str | None: ...

    @property
    def failure(self) -> str | None: ...

    async def make(self, text: str, speaking: Speaking, on_part: Part) -> SpeechPiece:
        """The sound of one sentence of a text: ``on_part`` gets what is made before its end, and the rest is returned.

        Raises :class:`SentenceFailed`, :class:`SpeechUnavailable` and :class:`..common.errors.ServerError`.
        """

    def close(self) -> None: ...


class ProcessSpeech:
    """Sentences one after the other, by the speech process alone."""

    at_once: Final = 1
    tags: Final = frozenset[str]()
    ready: Final = True
    stalled: Final = None
    failure: Final = None

    def __init__(self, client: SpeechClient) -> None:
        self._client = client

    async def make(self, text: str, speaking: Speaking, on_part: Part) -> SpeechPiece:
        return await self._client.synthesize(text, speaking.voice, speaking.speed, on_part)

    def close(self) -> None:
        """There is nothing to close."""


class SpeechModel:
    """Owns the speech process; :meth:`run` must be running."""

    def __init__(
        self, names: tuple[str, ...], voices: "Voices", client: SpeechClient, synthesis: Synthesis | None = None
    ) -> None:
        """``names`` are those that clients use, never empty. Without ``synthesis`` the process speaks."""
        self.names: Final = names
        self.voices: Final = tuple(place.name for place in voices.places)
        self.sample_rate: Final = voices.sample_rate
        self._any_speed = voices.any_speed
        self._whole_texts = voices.whole_texts
        self._client = client
        self._synthesis: Final[Synthesis] = ProcessSpeech(client) if synthesis is None else synthesis
        self._callers: Turns[Speaking] = Turns()
        self._changed = asyncio.Event()
        self._observer: SpeechObserver | None = None

    @property
    def default_voice(self) -> str:
        return self.voices[0]

    @property
    def ready(self) -> object | None:
        """None until all that it needs was ready for the first time."""
        return self if self._client.ready and self._synthesis.ready else None

    @property
    def stalled(self) -> str | None:
        """Why nothing can be spoken just now, while the process is replaced."""
        return self._client.stalled or self._synthesis.stalled

    @property
    def failure(self) -> str | None:
        """Why nothing will ever be spoken."""
        return self._client.failure or self._synthesis.failure

    @property
    def restarts(self) -> int:
        return self._client.restarts

    @property
    def pid(self) -> int | None:
        """Pid of the process, while there is one."""
        return self._client.pid

    @property
    def callers(self) -> int:
        return len(self._callers)

    def watch(self, observer: SpeechObserver) -> None:
        self._observer = observer
        self._client.on_restart = observer.restarted

    def voice(self, name: str | None, param: str = "voice") -> str:
        """The voice of a request; None is the default. Raises BadRequest naming ``param``."""
        if name is None or (name in OPENAI_VOICES and name not in self.voices):
            return self.default_voice
        if name in self.voices:
            return name
        known = ", ".join(f"`{voice}`" for voice in self.voices[:_SHOWN_VOICES])
        more = " and more, which GET /v1/audio/voices lists" if len(self.voices) > _SHOWN_VOICES else ""
        raise BadRequest(
            f"`{param}`: there is no voice `{name[:64]}`; there are {known}{more}.", param, "invalid_value"
        )

    def check_speed(self, speed: float, param: str = "speed") -> None:
        """Raises BadRequest naming ``param`` if the voices cannot speak at ``speed``."""
        if speed != 1.0 and not self._any_speed:
            raise BadRequest(f"`{param}`: the voices of this model speak at a speed of 1 only.", param, "invalid_value")

    def speak(
        self, text: str | AsyncIterator[str], *, voice: str | None = None, speed: float = 1.0, salt: str = ""
    ) -> Speaking:
        """Begins at once. Close the result, an iterator of :class:`Spoken`.

        ``speed`` is in [0.25, 4]; texts share cached prefixes only under the same ``salt``. ``text`` may come in
        deltas, which a separate task reads; the iterator raises its error behind the earlier audio. Raises BadRequest
        for an unknown voice or a speed that the model does not have, and Overloaded.
        """
        chosen = self.voice(voice)
        self.check_speed(speed)
        if len(self._callers) >= MAX_CALLERS:
            raise Overloaded(
                f"{MAX_CALLERS} texts are being spoken, as many as this server speaks at once; try again later.",
                "speech_full",
                _RETRY_SECONDS,
            )
        origin = Origin(salt, current_request_id())
        speaking = Speaking(text, chosen, speed, self._changed.set, self._left, origin, whole=self._whole_texts)
        if not speaking.left:
            self._callers.join(speaking)
            if self._observer is not None:
                self._observer.began()
            self._changed.set()
        return speaking

    async def run(self) -> None:
        """Until it is cancelled, or the process cannot be started at all."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._take_turns)
            await self._client.run()
            tasks.cancel_scope.cancel()

    async def wait_started(self) -> None:
        """Until it can speak. Raises :class:`..http.listening.StartError`."""
        try:
            await self._client.wait_started()
        except SpeechUnavailable as error:
            raise StartError(f"Cannot serve the speech model: {error}") from error

    def close(self) -> None:
        """After :meth:`run`."""
        self._synthesis.close()

    async def _take_turns(self) -> None:
        places = anyio.Semaphore(self._synthesis.at_once)
        async with anyio.create_task_group() as tasks:
            while True:
                await places.acquire()
                while (speaking := self._callers.next()) is None:
                    self._changed.clear()
                    await self._changed.wait()
                work = anyio.CancelScope()
                tasks.start_soon(self._say, speaking, speaking.take(work), work, places)

    async def _say(self, speaking: Speaking, piece: str, work: anyio.CancelScope, places: anyio.Semaphore) -> None:
        """Speaks its next sentence, which was taken; ``work`` cancels it."""
        failure: Exception | None = None
        done = False
        try:
            with work:
                try:
                    await self._make(speaking, piece)
                    done = True
                except SentenceFailed as error:
                    logger.warning("a sentence was not spoken: %s", error)
                    failure = SpeechFailed()
                except SpeechUnavailable as error:
                    why = "The speech model is not available; the request may be sent again."
                    failure = Unavailable(why, "failed")
                    failure.__cause__ = error
                except ServerError as error:
                    failure = error
            if not done:
                speaking.fail(failure)
        finally:
            places.release()
            self._changed.set()

    async def _make(self, speaking: Speaking, piece: str) -> None:
        """Delivers the sound of a sentence."""
        parts = 0

        def part(pcm: bytes) -> None:
            nonlocal parts
            parts += len(pcm)
            self._sounded(speaking, pcm)
            speaking.deliver_part(piece, pcm)

        said = sayable(piece, self._synthesis.tags)
        if not said:
            speaking.deliver(piece, b"")
            return
        made = await self._synthesis.make(said, speaking, part)
        if self._observer is not None:
            self._observer.made((parts + len(made.pcm)) / 2 / self.sample_rate, made.seconds)
        self._sounded(speaking, made.pcm)
        speaking.deliver(piece, made.pcm)

    def _sounded(self, speaking: Speaking, pcm: bytes) -> None:
        """Counts the first audio of a text."""
        if self._observer is not None and pcm and not speaking.has_audio:
            self._observer.first_audio(time.monotonic() - speaking.arrival)

    def _left(self, speaking: Speaking) -> None:
        if speaking in self._callers:
            self._callers.leave(speaking)
            if self._observer is not None:
                self._observer.ended()


def open_speech(config: Config) -> SpeechModel:
    """Opens ``config.speech``, which must be located. Raises
    :class:`~stentor.engine.loading.errors.CheckpointError`."""
    from stentor.engine.tts.voices import read_voices  # servers without a voice need none of its forms

    voices = read_voices(Path(config.speech.path), config.speech.voices)
    logs = config.engine.worker
    start = StartSpeech(voices.backend, voices.places, speech_threads(config), logs.log_level, logs.log_format)
    return SpeechModel(config.speech.served_names, voices, SpeechClient(start))


def speech_threads(config: Config) -> int:
    """Threads of the speech process."""
    return config.speech.threads or _share(plan_cpus(read_topology()).threads)


def _share(cores: int) -> int:
    """Default threads: a sentence takes a fraction of its duration, and the chat model needs the cores at the same
    time."""
    return max(1, min(4, cores // 2))
