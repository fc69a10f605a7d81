"""Audio input of one session: its buffer, turn detection, and transcription.

Owned by the connection's task. Transcription runs in tasks below :meth:`InputAudioPipeline.run`; results come back on
the same event loop.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
from msgspec.structs import replace

from stentor.engine.layers.audio.prompt_resample import PromptResampler
from stentor.protocols.common.errors import wrong
from stentor.protocols.openai.realtime.session import (
    AudioInput,
    SemanticVad,
    ServerVad,
    Transcription,
    TurnDetection,
)
from stentor.protocols.openai.transcription import prompt_with_keywords

from ...responses.ids import short_id
from ..common.audio_budget import AudioBudget, AudioShare, unbounded
from ..common.formats import MODEL_AUDIO, Wire, to_ms, to_ticks
from ..common.interfaces import (
    OnPartial,
    OnSpeechEvent,
    SpeechEvent,
    SpeechStarted,
    SpeechStopped,
    TimedOut,
    TokenProbability,
    Transcript,
)
from .completeness import wait_ms
from .hypotheses import TranscriptionSettings
from .input_buffer import MAX_SECONDS, Clip, InputBuffer
from .partial_pace import PartialPace
from .streamed import COPIES, AnyTranscriber, AnyTranscription, begin_transcription
from .turns import IdleTimedOut, TurnDetector, TurnEnded, TurnPaused, TurnResumed, TurnRules, TurnStarted

KEPT_MS: Final = 15_000
"""Silence kept, for a client that commits although the server detects turns."""
_PROMPT_CHARS: Final = 2000
"""Characters of a session's prompt; the model takes about 220 tokens."""
BACKLOG_MS: Final = 1_200_000
"""Audio that waits for transcription; beyond it, no more is taken."""
PIECE_SECONDS: Final = 1.0
"""Audio processed at once; in between the session's other tasks run."""


class Probabilities(Protocol):
    """A voice detector with the audio that it has been pushed."""

    def push(self, pcm: bytes) -> list[float]:
        """Speech probabilities of each complete stretch of 32 ms."""


class TranscribedAudio:
    """A turn that has been taken out of the buffer."""

    def __init__(self, item_id: str, clip: Clip, transcription: AnyTranscription) -> None:
        self.item_id: Final = item_id
        self.audio = clip.audio
        self.duration_ms: Final = clip.end_ms - clip.start_ms
        self._transcription = transcription

    def forget_audio(self) -> None:
        self.audio = b""

    async def transcript(self) -> Transcript:
        return await self._transcription.transcript()


class _Growing(NamedTuple):
    """The turn to which the next audio belongs."""

    item_id: str
    transcription: AnyTranscription


class _Arriving(NamedTuple):
    """Audio that came whole and has not reached its turn, in the session's format."""

    audio: bytes
    hold: AudioBudget
    """For its audio, also as part of its turn later."""


class InputAudioPipeline:
    """An implementation of :class:`..common.interfaces.InputAudio`."""

    def __init__(
        self,
        transcribe: AnyTranscriber,
        make_voice: Callable[[], Probabilities],
        pace: PartialPace,
        on_partial: OnPartial = lambda item_id, text, tokens: None,
        on_speech_event: OnSpeechEvent = lambda event: None,
        *,
        on_lag: Callable[[float], object] = lambda seconds: None,
        max_seconds: float = MAX_SECONDS,
        new_id: Callable[[], str] = lambda: short_id("item"),
        share: AudioShare | None = None,
    ) -> None:
        """``on_lag`` gets the seconds from the end of a turn to its transcript; ``share`` counts stored audio."""
        self._transcribe = transcribe
        self._make_voice = make_voice
        self._pace = pace
        self._on_partial = on_partial
        self._on_speech_event = on_speech_event
        self._on_lag = on_lag
        self._new_id = new_id
        self._max_ms = int(min(max_seconds, MAX_SECONDS) * 1000)
        self._input = AudioInput(turn_detection=None)
        self._settings = TranscriptionSettings()
        self._share = share or unbounded()
        self._taken = self._share.hold()
        """Reserved for audio being appended."""
        self._buffer = InputBuffer(Wire.of(self._input.format), max_seconds, self._share)
        self._growing: _Growing | None = None
        self._voice: Probabilities | None = None
        self._detector: TurnDetector | None = None
        self._longest_pause = 0
        self._unsettled: list[AnyTranscription] = []
        self._arriving: dict[AnyTranscription, _Arriving] = {}
        self._unstarted: list[tuple[AnyTranscription, Wire]] = []
        self._tasks: anyio.abc.TaskGroup | None = None
        self._settled = anyio.Event()

    @property
    def received_ms(self) -> int:
        """Audio since the session began, in ms."""
        return to_ms(self._buffer.received)

    async def run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            for transcription, wire in self._unstarted:
                self._tasks.start_soon(self._run_transcription, transcription, wire)
            self._unstarted.clear()
            await anyio.sleep_forever()

    # ---- called by the session

    def check(self, input: AudioInput) -> None:
        self._buffer.check_change(Wire.of(input.format))

    def configure(self, input: AudioInput, *, logprobs: bool) -> None:
        self._input = input
        self._settings = _settings_of(input.transcription, logprobs=logprobs)
        rest = self._buffer.change(Wire.of(input.format))
        if self._growing is not None:
            self._growing.transcription.push(rest)
        rules = self._rules()
        if rules is None:
            self._voice = self._detector = None
        elif self._detector is None:
            if self._growing is not None:  # what would be one turn may now be several
                self._growing.transcription.give_up()
                self._growing = None
            self._watch(rules)
        else:
            self._detector.change(rules)

    def responded(self, audio_ms: float) -> None:
        if self._detector is not None:
            self._detector.await_speech(self.received_ms + math.ceil(audio_ms))

    def responding(self) -> None:
        if self._detector is not None:
            self._detector.stop_waiting()

    # ---- audio

    async def room(self) -> None:
        while self._backlog_ms > BACKLOG_MS:
            await self._settled.wait()

    @property
    def _backlog_ms(self) -> float:
        coming = sum(len(one.audio) for one in self._arriving.values()) * 1000 / self._buffer.wire.bytes_a_second
        return coming + sum(transcription.waiting_ms for transcription in self._unsettled)

    async def append(self, audio: bytes) -> list[SpeechEvent]:
        await self.room()
        voice = self._voice
        if voice is None:
            self._buffer.check_append(audio)
        wire, rest = self._buffer.wire, len(audio)
        self._share.check(_most_held(wire, rest))
        try:
            for piece in _pieces(wire, audio):
                rest -= len(piece)
                self._taken.set(_most_held(wire, rest))
                await self._take(piece, voice)
        finally:
            self._taken.set(0)
        return []

    async def _take(self, piece: bytes, voice: Probabilities | None) -> None:
        pcm = self._buffer.append(piece)
        if voice is None:
            self._feed(pcm)
        else:
            if self._growing is not None:
                self._growing.transcription.push(pcm)
            for probability in voice.push(pcm):
                for event in self._look(probability):
                    self._on_speech_event(event)  # at once, before any other event of the turn
            self._forget()
        await anyio.lowlevel.checkpoint()

    def commit(self) -> TranscribedAudio:
        buffer = self._buffer
        if self._detector is not None and self._detector.speaking:
            buffer.forget(to_ticks(self._detector.keep_from_ms))
        buffer.check_commit()
        if self._growing is None:
            self._share.check(COPIES * buffer.model_bytes)
        rest = buffer.flush()
        if self._growing is None:
            growing = self._open(buffer.begin)
        else:
            growing, self._growing = self._growing, None
            growing.transcription.push(rest)
        clip = buffer.take(buffer.begin, buffer.received)
        growing.transcription.finish()
        self._restart()
        return TranscribedAudio(growing.item_id, clip, growing.transcription)

    def clear(self) -> None:
        self._buffer.clear()
        if self._growing is not None:
            self._growing.transcription.give_up()
            self._growing = None
        self._restart()

    def turn_of(self, item_id: str, audio: bytes) -> TranscribedAudio:
        wire = self._buffer.wire
        audio = audio[: len(audio) - len(audio) % wire.sample_bytes]
        ms = len(audio) * 1000 // wire.bytes_a_second
        if ms > self._max_ms:
            raise wrong(
                "audio",
                f"lasts {ms / 1000:.0f} s; at most {self._max_ms / 1000:.0f} s are taken at once",
                "audio_too_long",
            )
        self._share.check(_most_held(wire, len(audio)))
        wanted = replace(self._settings, partials=False)
        transcription = begin_transcription(0, self._transcribe, wanted, self._pace, share=self._share)
        arriving = self._arriving[transcription] = _Arriving(audio, self._share.hold())
        arriving.hold.set(_most_held(wire, len(audio)))
        self._start(transcription)
        return TranscribedAudio(item_id, Clip(0, ms, audio, b""), transcription)

    def _feed(self, pcm: bytes) -> None:
        """Takes audio without turn detection."""
        if self._growing is not None:
            self._growing.transcription.push(pcm)
        elif pcm:
            self._growing = self._open(self._buffer.begin)

    def _forget(self) -> None:
        """Silence that will belong to no turn."""
        if self._detector is not None:
            keep = self._detector.keep_from_ms
            if not self._detector.speaking:
                keep = min(keep, self.received_ms - min(KEPT_MS, self._max_ms // 2))
            self._buffer.forget(to_ticks(keep))

    # ---- turns

    def _watch(self, rules: TurnRules) -> None:
        """Detects turns in later audio."""
        self._voice = self._make_voice()
        self._detector = TurnDetector(rules, to_ms(self._buffer.resampled_end))

    def _rules(self) -> TurnRules | None:
        """With room in the buffer for audio between the end of a turn and its detection."""
        rules = _rules_of(self._input.turn_detection)
        return rules and replace(rules, max_turn_ms=min(rules.max_turn_ms, max(self._max_ms - 2000, 500)))

    def _restart(self) -> None:
        rules = self._rules()
        if rules is not None:
            self._watch(rules)

    def _look(self, probability: float) -> list[SpeechEvent]:
        if self._detector is None:
            return []
        found: list[SpeechEvent] = []
        for event in self._detector.push(probability):
            match event:
                case TurnStarted():
                    self._growing = self._open(to_ticks(event.start_ms))
                    found.append(SpeechStarted(self._growing.item_id, event.start_ms))
                case TurnPaused():
                    self._longest_pause = event.longest_ms
                    if self._growing is not None:
                        self._growing.transcription.pause()
                case TurnResumed():
                    if self._growing is not None:
                        self._growing.transcription.resume()
                case TurnEnded():
                    found.append(self._stopped(event))
                case IdleTimedOut():
                    found.append(self._timed_out(event))
        return found

    def _stopped(self, event: TurnEnded) -> SpeechStopped:
        begin, end = to_ticks(event.start_ms), to_ticks(event.end_ms)
        growing, self._growing = self._growing or self._open(begin), None
        growing.transcription.finish(end)
        since = (self.received_ms - event.voiced_end_ms) / 1000
        turn = TranscribedAudio(growing.item_id, self._buffer.take(begin, end), growing.transcription)
        return SpeechStopped(growing.item_id, event.end_ms, turn, time.monotonic() - since)

    def _timed_out(self, event: IdleTimedOut) -> TimedOut:
        begin, end = to_ticks(event.start_ms), to_ticks(event.end_ms)
        growing = self._open(begin)
        growing.transcription.finish(end)
        turn = TranscribedAudio(growing.item_id, self._buffer.take(begin, end), growing.transcription)
        return TimedOut(growing.item_id, event.start_ms, event.end_ms, turn)

    def _open(self, begin: int) -> _Growing:
        """Opens a turn at that position, with the audio since."""
        item_id, wanted = self._new_id(), self._settings
        transcription: AnyTranscription

        def tell(text: str, tokens: list[TokenProbability]) -> None:
            if wanted.partials:
                self._on_partial(item_id, text, tokens if wanted.logprobs else None)

        def on_guess(text: str) -> None:
            if self._growing is not None and self._growing.transcription is transcription:
                self._judge(text)

        begin = max(begin, self._buffer.begin)
        transcription = begin_transcription(begin, self._transcribe, wanted, self._pace, tell, on_guess, self._share)
        transcription.push(self._buffer.look(begin, self._buffer.resampled_end).pcm)
        self._start(transcription)
        return _Growing(item_id, transcription)

    def _judge(self, said: str) -> None:
        """How long this pause must be to end the turn, by the words before it."""
        detection = self._input.turn_detection
        if self._detector is None or not isinstance(detection, SemanticVad):
            return
        stopped = self._detector.judge(wait_ms(said, detection.eagerness, self._longest_pause))
        if stopped is not None:
            self._on_speech_event(self._stopped(stopped))

    # ---- transcription

    def _start(self, transcription: AnyTranscription) -> None:
        self._unsettled.append(transcription)
        if self._tasks is None:
            self._unstarted.append((transcription, self._buffer.wire))
        else:
            self._tasks.start_soon(self._run_transcription, transcription, self._buffer.wire)

    async def _bring(self, transcription: AnyTranscription, wire: Wire) -> None:
        """Feeds whole audio to its turn; the session's other tasks run meanwhile."""
        resampler = PromptResampler(wire.rate, MODEL_AUDIO.rate)
        audio, hold = self._arriving[transcription]
        rest = len(audio)
        for piece in _pieces(wire, audio):
            rest -= len(piece)
            hold.set(len(audio) + COPIES * _model_bytes(wire, rest))
            transcription.push(resampler.push(wire.decode(piece)))
            await anyio.lowlevel.checkpoint()
        transcription.push(resampler.finish())
        transcription.finish()

    async def _run_transcription(self, transcription: AnyTranscription, wire: Wire) -> None:
        try:
            if transcription in self._arriving:
                await self._bring(transcription, wire)
                self._arriving.pop(transcription).hold.set(0)
            await transcription.run()
            if transcription.lag is not None:
                self._on_lag(transcription.lag)
        finally:
            self._unsettled.remove(transcription)
            self._settled.set()
            self._settled = anyio.Event()


def _pieces(wire: Wire, audio: bytes) -> Iterator[bytes]:
    """Pieces that are small enough to resample without delaying other tasks."""
    step = int(wire.bytes_a_second * PIECE_SECONDS)
    for begin in range(0, len(audio), step):
        yield audio[begin : begin + step]


def _model_bytes(wire: Wire, size: int) -> int:
    """Bytes in the model's format of ``size`` bytes of a client's audio."""
    return math.ceil(size / wire.bytes_a_second * MODEL_AUDIO.bytes_a_second)


def _most_held(wire: Wire, size: int) -> int:
    """Memory of ``size`` bytes of a client's audio: in both formats, and in its turn."""
    return size + (1 + COPIES) * _model_bytes(wire, size)


def _rules_of(detection: TurnDetection | None) -> TurnRules | None:
    match detection:
        case None:
            return None
        case ServerVad():
            return TurnRules.server(
                detection.threshold,
                detection.prefix_padding_ms,
                detection.silence_duration_ms,
                detection.idle_timeout_ms,
            )
        case SemanticVad():
            return TurnRules.semantic(detection.eagerness)


def _settings_of(written: Transcription | None, *, logprobs: bool) -> TranscriptionSettings:
    """A text model always needs transcripts; without ``written`` the client gets none."""
    if written is None:
        return TranscriptionSettings()
    prompt = prompt_with_keywords(written.prompt, written.keywords or ())
    return TranscriptionSettings(
        written.language,
        tuple(written.languages or ()),
        prompt[-_PROMPT_CHARS:],
        logprobs=logprobs,
        partials=True,
        model=written.model or "",
    )
