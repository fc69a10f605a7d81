"""The client of the speech process: starts and restarts it, and sends sentences, or codes of them."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import Final, NoReturn

import anyio

from stentor.protocols.ipc.speech import (
    AbortSpeech,
    DecodeCodes,
    Phonemes,
    Phonemize,
    SpeechFailed,
    SpeechJob,
    SpeechOutbox,
    SpeechPart,
    SpeechPiece,
    SpeechReady,
    SpeechRefused,
    StartSpeech,
    Synthesize,
    decode_speech_outbox,
    encode_speech,
)

from ..channel import ChannelError, ChannelPair, Endpoint
from ..processes.process import Child, spawn
from ..processes.restart_policy import RestartPolicy, Restarts
from ..processes.silence import Silence
from ..processes.supervisor import PermanentFailure
from .backend import Part, keep_whole
from .process import MODULE

logger = logging.getLogger(__name__)

_RING: Final = 1 << 21
"""Bytes: holds a sentence of about twenty seconds."""
_LOAD_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 2.0
"""Interval of time-out checks."""
_SENTENCE_SECONDS: Final = 30.0
_SECONDS_PER_CHAR: Final = 0.5
"""At a speed of 1; many times the duration on a busy machine."""
_SECONDS_PER_CODE: Final = 0.1
"""As much, for a sentence that is spoken by a language model: at least 50 codes a second."""
_POLICY: Final = RestartPolicy(math.inf, max_first_failures=3, healthy_after=60.0)
"""A spoken sentence resets the count of deaths too."""
_MANY_DEATHS: Final = 6
"""Consecutive deaths after which no request waits for the next process."""
_TRIES: Final = 2
"""Processes that may die with a sentence."""


class SpeechUnavailable(Exception):
    """No speech is available; the message is one line."""


class SentenceFailed(Exception):
    """This sentence cannot be spoken, others can; the message is one line."""


class _Refused(Exception):
    """The process cannot use the voices."""


class _Job:
    def __init__(self, request: SpeechJob, on_part: Part) -> None:
        self.request: Final = request
        self.on_part: Final = on_part
        self.future: Final[asyncio.Future[SpeechPiece | Phonemes]] = asyncio.get_running_loop().create_future()
        self.deaths = 0
        """Processes that died while working on it."""
        self._received = 0
        """Bytes of audio that the caller has."""
        self._again = 0
        """Bytes that this process will send and the caller has."""

    def sent_again(self) -> None:
        """Another process makes it from its beginning."""
        self._again = self._received

    def news(self, pcm: bytes) -> bytes:
        """The part of ``pcm`` that the caller has not received yet."""
        again = min(self._again, len(pcm))
        self._again -= again
        self._received += len(pcm) - again
        return pcm[again:]


class SpeechClient:
    """Runs one process at a time, within :meth:`run`'s event loop."""

    def __init__(self, start: StartSpeech, module: str = MODULE, patience: float = 1.0) -> None:
        """``module``: run by the process. ``patience``: multiplies the time limit of a sentence."""
        self._start = start
        self._module = module
        self._patience = patience
        self._jobs: dict[int, _Job] = {}
        """In order of arrival; the process works on the first."""
        self._next_job = 0
        self._endpoint: Endpoint | None = None
        """Endpoint of a process that is ready; else None."""
        self._child: Child | None = None
        self._silence = Silence(self._cpu_seconds, 2 * _LOOK_SECONDS)
        self._restarts = Restarts(_POLICY)
        self._stuck = False
        """Whether the last process could not be killed."""
        self._was_ready = asyncio.Event()
        self.on_restart: Callable[[], None] = _nothing
        """Called whenever a process is started in place of another."""
        self.failure: str | None = None
        """Why there is no process and will be none."""
        self._why: str | None = None

    @property
    def ready(self) -> bool:
        """Whether a process has been ready."""
        return self._was_ready.is_set() and self.failure is None

    @property
    def _up(self) -> bool:
        return self._endpoint is not None

    @property
    def stalled(self) -> str | None:
        """Why nothing can be spoken at present, while another process starts."""
        return None if self._up or not self.ready else self._why or "another speech process starts"

    @property
    def restarts(self) -> int:
        """Processes started in place of another."""
        return self._restarts.total

    @property
    def pid(self) -> int | None:
        """The pid of the process; None if there is none."""
        return None if self._child is None else self._child.pid

    async def wait_started(self) -> None:
        """Wait until the first process is ready. Raises :class:`SpeechUnavailable`."""
        await self._was_ready.wait()
        if self.failure is not None:
            raise SpeechUnavailable(self.failure)

    async def synthesize(self, text: str, voice: str, speed: float, on_part: Part = keep_whole) -> SpeechPiece:
        """Synthesize one sentence; if cancelled, it is stopped. If the process dies, the next one gets the sentence.

        ``on_part`` gets the audio of a voice that makes it bit by bit; the rest is returned.

        Raises :class:`SentenceFailed` and :class:`SpeechUnavailable`.
        """
        made = await self._ask(Synthesize(self._number(), text, voice, speed), on_part)
        assert isinstance(made, SpeechPiece), "the process answers a sentence with samples"
        return made

    async def decode(self, codes: list[int], *, first: int, skip: int, keep: int) -> SpeechPiece:
        """Decode codes as :class:`~stentor.protocols.ipc.speech.DecodeCodes` says; otherwise as :meth:`synthesize`."""
        made = await self._ask(DecodeCodes(self._number(), codes, first, skip, keep))
        assert isinstance(made, SpeechPiece), "the process answers codes with samples"
        return made

    async def phonemes(self, text: str, language: str) -> str:
        """A text's phonemes; otherwise as :meth:`synthesize`."""
        made = await self._ask(Phonemize(self._number(), text, language))
        assert isinstance(made, Phonemes), "the process answers a text with phonemes"
        return made.text

    def _number(self) -> int:
        self._next_job += 1
        return self._next_job

    async def _ask(self, request: SpeechJob, on_part: Part = keep_whole) -> SpeechPiece | Phonemes:
        if self.failure is not None or self._hopeless:
            raise SpeechUnavailable(self.failure or f"the speech process {self._why}, again and again")
        job = _Job(request, on_part)
        if not self._jobs:
            self._silence.end()
        self._jobs[job.request.job] = job
        try:
            await self._send(job.request)
            return await job.future
        finally:
            if self._jobs.pop(job.request.job, None) is not None and self._endpoint is not None:
                with contextlib.suppress(ChannelError):
                    self._endpoint.try_send(encode_speech(AbortSpeech(job.request.job)))

    async def _send(self, request: SpeechJob) -> None:
        """Send a request; without a process, the next one gets it."""
        if self._endpoint is not None:
            with contextlib.suppress(ChannelError):
                await self._endpoint.send(encode_speech(request))

    async def run(self) -> None:
        """Run until cancelled; returns early if no process becomes ready and none will (:attr:`failure`)."""
        try:
            while True:
                self._why = await self._live()
                delay = self._restarts.failed(final=self._stuck)
                if delay is None:
                    times = f", {self._restarts.in_a_row} times before it was ready"
                    end = "; the process does not die" if self._stuck else times
                    raise PermanentFailure(f"the speech process {self._why}{end}")
                logger.warning(
                    "the speech process %s and is started again; %d sentences wait", self._why, len(self._jobs)
                )
                if self._hopeless:
                    self._fail_all(SpeechUnavailable(f"the speech process {self._why}, again and again"))
                await anyio.sleep(delay)
                self.on_restart()
        except PermanentFailure as error:
            self.failure = str(error)
        finally:
            self.failure = self.failure or "the speech process has been ended"
            self._was_ready.set()
            self._fail_all(SpeechUnavailable(self.failure))

    @property
    def _hopeless(self) -> bool:
        """Whether requests should not wait for the next process."""
        return self._restarts.in_a_row >= _MANY_DEATHS and not self._up

    def _fail_all(self, error: Exception) -> None:
        for job in self._jobs.values():
            _settle(job, error)
        self._jobs.clear()

    async def _live(self) -> str:
        """Run one process from start to end; returns how it ended. Raises ``PermanentFailure``."""
        try:
            pair = ChannelPair.create(_RING)
        except (ChannelError, OSError) as error:
            return f"cannot be started ({error})"
        with pair.parent:
            try:
                child = spawn(self._module, pair.child_fds, name="the speech process")
            except OSError as error:
                return f"cannot be started ({error.strerror})"
            self._child = child
            try:
                pair.parent.watch(child.pid, child.pidfd)
                await self._serve(pair.parent)
            except ChannelError:
                with anyio.move_on_after(1):
                    await child.wait()  # its exit status follows the channel's end
                return _ended(child)
            except _Refused as refusal:
                if not self.ready:
                    raise PermanentFailure(str(refusal)) from refusal
                return f"refuses ({refusal})"
            except TimeoutError:
                return f"was silent for more than {self._allowed():.0f} seconds"
            finally:
                was_up = self._up
                self._endpoint = None  # before the process is dead, which may take long
                self._stuck = not await child.aclose()
                self._child = None
                if was_up:
                    self._blame()

    async def _serve(self, endpoint: Endpoint) -> NoReturn:
        """Raises ``ChannelError`` at the process's end, ``TimeoutError`` if it is late, and ``_Refused``."""
        self._silence.end()
        await endpoint.send(encode_speech(self._start))
        reported = False
        while True:
            frames: list[bytes] = []
            with anyio.move_on_after(_LOOK_SECONDS):
                frames = await endpoint.receive()
            for frame in frames:
                await self._handle(endpoint, decode_speech_outbox.decode(frame))
            self._silence.look()
            allowed = self._allowed()
            if not allowed:
                continue
            if self._silence.seconds > allowed:
                raise TimeoutError
            if self._silence.waited > allowed and not reported:
                reported = True
                logger.warning(
                    "the speech process gets too little of the CPUs: %d sentences wait for it", len(self._jobs)
                )

    async def _handle(self, endpoint: Endpoint, message: SpeechOutbox) -> None:
        self._silence.end()
        match message:
            case SpeechReady():
                logger.debug("speech is ready after %.2f s", message.seconds)
                self._endpoint = endpoint
                self._restarts.ready()
                self._was_ready.set()
                for job in [*self._jobs.values()]:
                    job.sent_again()
                    await endpoint.send(encode_speech(job.request))
            case SpeechRefused():
                raise _Refused(message.why)
            case SpeechPart():
                if (job_of := self._jobs.get(message.job)) is not None and (news := job_of.news(message.pcm)):
                    job_of.on_part(news)
            case Phonemes():
                self._restarts.progressed()
                if (job_of := self._jobs.pop(message.job, None)) is not None:
                    _settle(job_of, message)
            case SpeechPiece():
                self._restarts.progressed()
                if (job_of := self._jobs.pop(message.job, None)) is not None:
                    _settle(job_of, SpeechPiece(message.job, job_of.news(message.pcm), message.seconds))
            case SpeechFailed():
                self._restarts.progressed()
                if (job_of := self._jobs.pop(message.job, None)) is not None:
                    _settle(job_of, SentenceFailed(message.why))

    def _cpu_seconds(self) -> float:
        return 0.0 if self._child is None else self._child.cpu_seconds

    def _allowed(self) -> float:
        """Time limit in seconds for the process's next message; 0 if none is awaited."""
        if not self._up:
            return _LOAD_SECONDS
        first = next(iter(self._jobs.values()), None)
        if first is None:
            return 0.0
        return self._patience * (_SENTENCE_SECONDS + _work_seconds(first.request))

    def _blame(self) -> None:
        """Count the process's death against the sentence that it was working on."""
        first = next(iter(self._jobs.values()), None)
        if first is None:
            return
        first.deaths += 1
        if first.deaths >= _TRIES:
            self._restarts.progressed()  # the deaths are explained
            self._restarts.excuse()
            del self._jobs[first.request.job]
            _settle(first, SentenceFailed("the speech process died of this sentence"))


def _work_seconds(request: SpeechJob) -> float:
    match request:
        case Synthesize():
            return _SECONDS_PER_CHAR * len(request.text) * max(1.0, 1.0 / request.speed)
        case DecodeCodes():
            return _SECONDS_PER_CODE * len(request.codes)
        case Phonemize():
            return _SECONDS_PER_CHAR * len(request.text)


def _ended(child: Child) -> str:
    match child.returncode:
        case None:
            return "has closed its channel"
        case status if status < 0:
            return f"was {child.description}"
    return child.description


def _nothing() -> None:
    """Default: no count."""


def _settle(job: _Job, outcome: SpeechPiece | Phonemes | Exception) -> None:
    if job.future.done():
        return
    if isinstance(outcome, Exception):
        job.future.set_exception(outcome)
    else:
        job.future.set_result(outcome)
