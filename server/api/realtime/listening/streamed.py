"""Transcribes one turn with a streaming model.

One request does what ``IncrementalTranscriber`` does with many: audio is sent as it comes, and each piece of text is
delivered as the model writes it. A request holds a row in the engine. It therefore ends when no audio has come for a
while, after a very long stretch, and when the model ends; later audio begins another request.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Final

import anyio
import msgspec

from stentor.engine.client.errors import EngineUnavailable

from ....asr.streaming import BYTES_A_SECOND, JoinedText, Piece, StreamedTranscript, StreamingTranscriptionModel
from ....common.errors import Unavailable
from ....common.task_scope import TaskScope
from ....observability.realtime_figures import PassFigures
from ..common.audio_budget import AudioShare, unbounded
from ..common.formats import MODEL_AUDIO
from ..common.interfaces import TokenProbability, Transcript
from .hypotheses import Transcribe, TranscriptionSettings
from .incremental_transcriber import MIN_TRANSCRIBED_MS, IncrementalTranscriber, OnGuess, Tell
from .partial_pace import PartialPace
from .transcription_task import TranscriptionTask

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 10.0
"""Without audio, after which a request is ended; the next audio begins another."""
SETTLE_SECONDS: Final = 300
"""A request that has transcribed this much audio ends at the next pause."""
_AGAIN_MS: Final = 1000
"""Least audio for another request after the model has ended."""


class StreamTranscriber(msgspec.Struct, frozen=True):
    """Hears the turns of one session."""

    model: StreamingTranscriptionModel
    passes: PassFigures
    """Records each request."""
    salt: str = ""
    """Cache salt of its requests to the engine, as the name."""
    name: str = ""

    @property
    def positions_a_second(self) -> float:
        """Positions of a second of audio."""
        return self.model.form.positions_a_second

    def begin(self, settings: TranscriptionSettings) -> StreamedTranscript:
        """Raises ServerError."""
        only = settings.languages[0] if len(settings.languages) == 1 else None
        try:
            return StreamedTranscript(
                self.model,
                language=settings.language or only,
                salt=self.salt,
                name=self.name,
                logprobs=settings.logprobs,
            )
        except EngineUnavailable as error:
            raise Unavailable(str(error), "engine_unavailable") from error


class StreamedTurn(TranscriptionTask):
    """A turn that a streaming model transcribes; ``IncrementalTranscriber`` is the same for other models. Owned by the
    task that feeds it; ``run`` is for another task."""

    def __init__(
        self,
        begin: int,
        transcriber: StreamTranscriber,
        settings: TranscriptionSettings,
        tell: Tell = lambda text, tokens: None,
        on_guess: OnGuess = lambda text: None,
        share: AudioShare | None = None,
    ) -> None:
        """``begin`` is the position of the turn's first sample."""
        super().__init__()
        self._transcriber = transcriber
        self._settings = settings
        self._tell = tell
        self._on_guess = on_guess
        self._end = begin
        self._pushed = 0
        """Bytes, as the next."""
        self._paused_at: int | None = None
        """Beginning of a pause without a judgement."""
        self._in_pause = False
        self._waiting = bytearray()
        """Audio that no request has been fed."""
        self._hold = (share or unbounded()).hold()
        self._stretch: StreamedTranscript | None = None
        self._written = JoinedText()
        self._tokens: list[TokenProbability] = []
        self._undelivered: list[TokenProbability] = []

    # ---- the feeding task

    def push(self, pcm: bytes) -> None:
        """More of the turn's audio."""
        if pcm and not self._over:
            self._waiting += pcm
            self._pushed += len(pcm)
            self._end += len(pcm) // MODEL_AUDIO.sample_bytes * MODEL_AUDIO.ticks
            self._count()
            self._notify()

    def pause(self) -> None:
        """The caller pauses: a transcript may soon be needed."""
        if not self._in_pause:
            self._in_pause, self._paused_at = True, self._pushed
            self._notify()

    def resume(self) -> None:
        """The caller goes on after all."""
        self._in_pause, self._paused_at = False, None

    def finish(self, end: int | None = None) -> None:
        """No audio follows, and none after position ``end`` counts, except audio already processed."""
        if end is not None and end < self._end:
            excess = min((self._end - end) // MODEL_AUDIO.ticks * MODEL_AUDIO.sample_bytes, len(self._waiting))
            del self._waiting[len(self._waiting) - excess :]
            self._pushed -= excess
            self._count()
        self._close()

    async def transcript(self) -> Transcript:
        """Waits until all audio is transcribed. Raises ``BadRequest`` or ``ServerError``."""
        await self._until_ended()
        tokens = [*self._tokens] if self._settings.logprobs else None
        return Transcript(self._written.text, self._pushed / BYTES_A_SECOND, tokens)

    @property
    def _untranscribed(self) -> int:
        return len(self._waiting) + (0 if self._stretch is None else self._stretch.untranscribed)

    @property
    def _untranscribed_ms(self) -> int:
        return self._untranscribed * 1000 // BYTES_A_SECOND

    def _count(self) -> None:
        """Counts a request's audio from its beginning to its end, since the engine may be lost and replay it."""
        stretch = self._stretch
        self._hold.set(len(self._waiting) + (0 if stretch is None else stretch.size + stretch.untranscribed))

    def _drop(self) -> None:
        self._waiting.clear()
        self._count()

    # ---- the transcribing task

    async def _transcribe_turn(self) -> None:
        fewest = 1
        while await self._comes(fewest):
            left = await self._transcribe_request()
            self._waiting[:0] = left
            self._count()
            fewest = _AGAIN_MS * BYTES_A_SECOND // 1000 if left else 1
            self._written.begin()

    async def _transcribe_request(self) -> bytes:
        """Runs one request; returns the audio for another one."""
        with self._transcriber.passes.one("stream") as observed:
            stretch = self._stretch = self._transcriber.begin(self._settings)
            try:
                async with TaskScope("feeds of streams") as feeding:
                    feeding.start(self._feed(stretch))
                    async with contextlib.aclosing(stretch.pieces()) as pieces:
                        async for piece in pieces:
                            self._write(piece)
            finally:
                observed.audio_seconds = stretch.size / BYTES_A_SECOND
                self._stretch = None
            return stretch.left

    async def _comes(self, fewest: int) -> bool:
        """Waits for ``fewest`` bytes of audio; returns whether there will be enough for a request."""
        while len(self._waiting) < fewest and not self._complete:
            await self._notified()
        least = MIN_TRANSCRIBED_MS * BYTES_A_SECOND // 1000
        return not self._complete or len(self._waiting) >= least

    async def _feed(self, stretch: StreamedTranscript) -> None:
        """Until it has all that it may have."""
        try:
            while True:
                part = bytes(self._waiting[: stretch.room])
                del self._waiting[: len(part)]
                if part:
                    stretch.feed(part)
                    self._count()
                settled = self._in_pause and stretch.size > SETTLE_SECONDS * BYTES_A_SECOND
                if self._complete or settled or not stretch.room:
                    break
                if not await self._notified(anyio.current_time() + IDLE_SECONDS):
                    break
            stretch.end()
        except Exception:
            logger.exception("a stream could not be fed")
            stretch.abort()

    def _write(self, piece: Piece) -> None:
        if self._settings.logprobs:
            self._undelivered += [
                TokenProbability(said.bytes.decode("utf-8", "replace"), said.logprob or 0.0, list(said.bytes))
                for said in piece.tokens
            ]
        if delta := self._written.add(piece.text):
            tokens, self._undelivered = self._undelivered, []
            self._tokens += tokens
            self._tell(delta, tokens)
        if self._paused_at is not None and self._pushed - self._untranscribed >= self._paused_at:
            self._paused_at = None
            self._on_guess(self._written.text)
        self._count()
        self._notify_progress()


AnyTranscriber = Transcribe | StreamTranscriber
AnyTranscription = IncrementalTranscriber | StreamedTurn
COPIES: Final = 2
"""Copies of a turn's audio, at most, beside the input buffer's."""


def begin_transcription(
    begin: int,
    transcribe: AnyTranscriber,
    settings: TranscriptionSettings,
    pace: PartialPace,
    tell: Tell = lambda text, tokens: None,
    on_guess: Callable[[str], None] = lambda text: None,
    share: AudioShare | None = None,
) -> AnyTranscription:
    """The transcription of a turn from position ``begin``, of the kind that the served model needs."""
    if isinstance(transcribe, StreamTranscriber):
        return StreamedTurn(begin, transcribe, settings, tell, on_guess, share)
    return IncrementalTranscriber(begin, transcribe, settings, pace, tell, on_guess, share)
