"""Transcribes one turn while it is spoken.

The audio that is not settled, the window, is transcribed again and again: from time to time while the caller speaks,
and as soon as a pause begins, so that the transcript is ready when the pause ends the turn. Words on which two
hypotheses agree are sent and never taken back. A long window is settled, at a pause or where it is quietest, and later
audio is transcribed by itself: so the cost is bounded however long the turn is.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

import anyio

from stentor.protocols.ipc.audio import SAMPLE_RATE

from ....audio.quiet import quietest
from ....common.errors import ServerError
from ..common.audio_budget import AudioShare, unbounded
from ..common.formats import MODEL_AUDIO, to_ms, to_ticks
from ..common.interfaces import TokenProbability, Transcript
from .agreement import LocalAgreement, Word
from .hypotheses import DeliveredText, Hypothesis, Transcribe, TranscriptionSettings, WindowHypothesis
from .input_buffer import Track
from .partial_pace import PartialPace
from .transcription_task import TranscriptionTask

logger = logging.getLogger(__name__)

MAX_WINDOW_MS: Final = 26_000
"""Is settled where it is quietest in its last :data:`QUIET_MS`."""
QUIET_MS: Final = 8_000
SETTLE_MS: Final = 14_000
"""A window so long is settled at the next pause."""
MIN_NEW_MS: Final = 300
"""Least new audio for another hypothesis."""
MIN_TRANSCRIBED_MS: Final = 100
"""Shorter audio has no words."""

Tell = Callable[[str, list[TokenProbability]], None]
"""Called once with each piece of the transcript."""
OnGuess = Callable[[str], None]
"""Called with the words up to the current pause."""


class IncrementalTranscriber(TranscriptionTask):
    """Owned by the task that feeds it; ``run`` is for another task."""

    def __init__(
        self,
        begin: int,
        transcribe: Transcribe,
        settings: TranscriptionSettings,
        pace: PartialPace,
        tell: Tell = lambda text, tokens: None,
        on_guess: OnGuess = lambda text: None,
        share: AudioShare | None = None,
    ) -> None:
        """``begin`` is the position of the turn's first sample."""
        super().__init__()
        self._transcribe = transcribe
        self._settings = settings
        self._pace = pace
        self._tell = tell
        self._on_guess = on_guess
        self._window = Track(MODEL_AUDIO, begin, (share or unbounded()).hold())
        self._begin = begin
        self._delivered = DeliveredText()
        self._settled = ""
        """Sent text of earlier windows."""
        self._agreement = LocalAgreement()
        self._pauses = 0
        """Grows when a pause begins and when one ends; odd within one."""
        self._guess: tuple[int, WindowHypothesis] | None = None
        """Made in that pause."""
        self._tried = 0
        """The pause in which one was last tried."""
        self._guessed_at = begin
        self._flight: tuple[int, anyio.CancelScope] | None = None
        """The running request that may be dropped, and :attr:`_pauses` at its beginning."""

    # ---- the feeding task

    def push(self, pcm: bytes) -> None:
        """More of the turn's audio."""
        if self._over:
            return
        self._window.append(pcm)
        self._notify()

    def pause(self) -> None:
        """The caller pauses: a transcript may soon be needed."""
        if not self._paused:
            self._pauses += 1
            self._drop_stale()
            self._notify()

    def resume(self) -> None:
        """The caller goes on after all."""
        if self._paused:
            self._pauses += 1
            if not self._settings.partials:
                self._drop_stale()
            self._notify()

    def finish(self, end: int | None = None) -> None:
        """There is no more audio, nor any after position ``end``."""
        if end is not None and end < self._window.end:
            self._window.cut(end)
        self._drop_stale()
        self._close()

    async def transcript(self) -> Transcript:
        """Waits until all is settled. Raises ``BadRequest`` or ``ServerError``."""
        await self._until_ended()
        tokens = list(self._delivered.tokens) if self._settings.logprobs else None
        return Transcript(self._delivered.text, (self._window.end - self._begin) / to_ticks(1000), tokens)

    def _drop(self) -> None:
        self._window.forget(self._window.end)

    @property
    def _paused(self) -> bool:
        return self._pauses % 2 == 1

    def _drop_stale(self) -> None:
        """Drops a request that did not begin in the current pause, which alone is of use."""
        if self._flight is not None and not (self._paused and self._flight[0] == self._pauses):
            self._flight[1].cancel()

    # ---- the transcribing task

    async def _transcribe_turn(self) -> None:
        with contextlib.ExitStack() as at_end:
            if self._settings.partials:
                self._pace.join()
                at_end.callback(self._pace.leave)
            began = anyio.current_time()
            while True:
                due = began + self._pace.interval
                if self._untranscribed_ms > MAX_WINDOW_MS:
                    await self._settle(self._quietest())
                    self._guess, self._tried = None, 0
                elif self._complete:
                    await self._settle_rest()
                    return
                elif self._paused and self._tried != self._pauses:
                    await self._guess_at_pause()
                elif self._may_guess and anyio.current_time() >= due:
                    self._pace.observe(anyio.current_time() - began)
                    began = anyio.current_time()
                    await self._guess_while_speaking()
                else:
                    await self._notified(due if self._may_guess else float("inf"))

    @property
    def _untranscribed_ms(self) -> int:
        return to_ms(self._window.end - self._window.begin)

    @property
    def _may_guess(self) -> bool:
        fresh = to_ms(self._window.end - self._guessed_at) >= MIN_NEW_MS
        return self._settings.partials and fresh and not self._paused

    def _quietest(self) -> int:
        window = self._window
        pcm = window.between(window.begin, window.begin + to_ticks(MAX_WINDOW_MS))
        samples = len(pcm) // MODEL_AUDIO.sample_bytes
        return window.begin + quietest(pcm, samples - QUIET_MS * SAMPLE_RATE // 1000, samples) * MODEL_AUDIO.ticks

    async def _guess_at_pause(self) -> None:
        pause = self._tried = self._pauses
        end = self._window.end
        with self._may_be_dropped():
            reading = await self._read(end, final=True)
            self._learn(reading)
            if pause != self._pauses:
                return
            self._guess = pause, reading
            self._on_guess((self._settled + reading.text).strip())
            if not self._complete and to_ms(end - self._window.begin) >= SETTLE_MS:
                self._settle_as(reading, end)
                self._guess = pause, WindowHypothesis("", Hypothesis(""))  # nothing has been said since

    async def _guess_while_speaking(self) -> None:
        with self._may_be_dropped():
            async with self._pace.place():
                reading = await self._read(self._window.end, final=False)
            self._learn(reading)

    @contextlib.contextmanager
    def _may_be_dropped(self) -> Iterator[None]:
        """Work inside ends early if an event makes it stale; its failure is not reported."""
        with anyio.CancelScope() as scope:
            self._flight = self._pauses, scope
            try:
                yield
            except ServerError as error:
                logger.info("a guess at a turn failed: %s", error)
            finally:
                self._flight = None

    def _learn(self, reading: WindowHypothesis) -> None:
        """Tells the words that are settled by it."""
        if self._settings.partials:
            self._say(self._agreement.add(reading.text), reading)

    async def _settle_rest(self) -> None:
        if self._guess is not None and self._paused and self._guess[0] == self._pauses:
            self._settle_as(self._guess[1], self._window.end)
        else:
            await self._settle(self._window.end)

    async def _settle(self, end: int) -> None:
        """Hears the window up to ``end`` for the last time."""
        self._settle_as(await self._read(end, final=True), end)

    def _settle_as(self, reading: WindowHypothesis, end: int) -> None:
        self._say(self._agreement.finish(reading.text), reading)
        self._agreement = LocalAgreement()
        self._settled = self._delivered.text
        self._window.forget(end)
        self._guessed_at = end
        self._notify_progress()

    def _say(self, words: list[Word], reading: WindowHypothesis) -> None:
        text, tokens = self._delivered.add(words, reading)
        if text:
            self._tell(text, tokens)

    async def _read(self, end: int, *, final: bool) -> WindowHypothesis:
        self._guessed_at = end
        before = self._agreement.text
        pcm = self._window.between(self._window.begin, end)
        if len(pcm) < MIN_TRANSCRIBED_MS * SAMPLE_RATE // 1000 * MODEL_AUDIO.sample_bytes:
            return WindowHypothesis(before, Hypothesis(""))
        with self._pace.awaited() if final else contextlib.nullcontext():
            return WindowHypothesis(before, await self._transcribe(pcm, self._settings, continued=before, final=final))
