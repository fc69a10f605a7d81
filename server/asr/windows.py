"""One stretch of audio, window after window, each beginning where the one before was understood up to."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from .decoding_result import DecodingResult, WindowTask, draft_window, is_silence
from .model import TranscriptionModel
from .options import TranscriptionOptions
from .segments import (
    BYTES_A_FRAME,
    FRAMES_A_SECOND,
    WINDOW_FRAMES,
    Part,
    Segment,
    WindowSegments,
    cut_window,
)
from .window_decoder import WindowDecoder, is_soundless, window_of
from .words import time_words

_SPARE_WINDOWS = 8
_WINDOWS_AT_MOST = 4
"""Factor of the windows without overlap: a model without progress would decode the same seconds for ever."""


class AudioSpan:
    """Frames [begin, end) of some audio. Iterate :meth:`segments` once."""

    def __init__(
        self,
        decoder: WindowDecoder,
        model: TranscriptionModel,
        pcm: bytes,
        begin: int,
        end: int,
        options: TranscriptionOptions,
        language: str | None,
    ) -> None:
        """``language`` is a code of the model's, or None where it knows only one."""
        self._decoder = decoder
        self._model = model
        self._pcm = pcm
        self._begin = begin
        self._end = end
        self._options = options
        self._language = language
        self._previous_tokens = model.vocabulary.encode(" " + options.prompt.strip()) if options.prompt.strip() else []
        """Tokens of the prompt, and of the transcript behind it."""
        self._context_from = 0
        """Where the next window's context begins."""
        self._last_end = 0.0
        """End of speech so far, in seconds."""

    async def segments(self) -> AsyncGenerator[Segment, None]:
        """In order; ids are 0, since callers with several stretches number them. Raises as ``WindowDecoder.decode``."""
        seek = self._begin
        # remaining windows that may overlap
        windows = _SPARE_WINDOWS + _WINDOWS_AT_MOST * -(-(self._end - self._begin) // WINDOW_FRAMES)
        while seek < self._end:
            frames = min(WINDOW_FRAMES, self._end - seek)
            pcm = self._pcm[seek * BYTES_A_FRAME : (seek + frames) * BYTES_A_FRAME]
            if is_soundless(pcm):
                seek += frames
                continue
            window = window_of(pcm, self._options.salt)
            task = WindowTask(self._decoder, self._model, window, self._options, self._language)
            draft = await draft_window(task, self._previous_tokens[self._context_from :])
            if is_silence(draft, self._options):
                seek += frames
                continue
            cut = self._cut(draft, seek, frames)
            advance = cut.advance
            if self._options.word_times and self._model.vocabulary.marks_times:
                advance = await self._time_words(task, draft, cut, seek, frames)
            for part in cut.parts:
                if segment := self._segment(draft, part, seek):
                    self._previous_tokens += segment.tokens
                    yield segment
            if not self._options.condition_on_previous_text or draft.temperature > self._options.reset_temperature:
                self._context_from = len(self._previous_tokens)
            windows -= 1
            seek += advance if advance > 0 and windows > 0 else frames

    def _cut(self, draft: DecodingResult, seek: int, frames: int) -> WindowSegments:
        vocabulary = self._model.vocabulary
        if vocabulary.framewise:
            from .framewise_vocabulary import FramewiseVocabulary, sentences_of  # late: only such models need it

            assert isinstance(vocabulary, FramewiseVocabulary)
            offset, seconds = seek / FRAMES_A_SECOND, frames / FRAMES_A_SECOND
            return WindowSegments(sentences_of(vocabulary, draft.answer, self._language, offset, seconds), frames, True)
        return cut_window(draft.tokens, vocabulary.timestamp_begin, seek, frames)

    async def _time_words(
        self, task: WindowTask, draft: DecodingResult, cut: WindowSegments, seek: int, frames: int
    ) -> int:
        """Returns how far it is to the next window: where words have times, they know better."""
        await time_words(task, draft.tokens, cut.parts, seek, frames, self._last_end)
        ends = [part.words[-1].end for part in cut.parts if part.words]
        if not ends:
            return cut.advance
        self._last_end = ends[-1]
        end = round(ends[-1] * FRAMES_A_SECOND)
        return end - seek if not cut.whole and end > seek else cut.advance

    def _segment(self, draft: DecodingResult, part: Part, seek: int) -> Segment | None:
        """None for a segment without text."""
        tokens = draft.tokens[part.begin : part.end]
        text = self._model.vocabulary.decode(tokens)
        if part.start == part.stop or not text.strip():
            return None
        options = self._options
        end = part.end + (part.end == len(draft.tokens))  # the last one has the end of the transcript
        return Segment(
            0,
            seek,
            part.start,
            part.stop,
            text,
            tokens,
            draft.temperature,
            draft.avg_logprob,
            draft.compression_ratio,
            draft.no_speech_prob,
            part.words if options.word_times else None,
            draft.answer.logprobs[part.begin : end] if options.logprobs else None,
        )


async def whole_stretch(stretch: AudioSpan) -> list[Segment]:
    async with aclosing(stretch.segments()) as segments:
        return [segment async for segment in segments]
