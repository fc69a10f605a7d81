"""Transcribes files, and turns of conversations."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing

import msgspec

from ..common.task_scope import TaskScope
from .chunks import Span, chunks_of, quiet_spans
from .decoding_result import WindowTask, draft_window, is_silence
from .model import TranscriptionModel
from .observers import OpenAccount
from .options import TranscriptionOptions
from .segments import BYTES_A_FRAME, WINDOW_FRAMES, Segment
from .untimed_vocabulary import UntimedVocabulary
from .window_decoder import DecodingOptions, Window, WindowDecoder, is_soundless, window_of
from .windows import AudioSpan, whole_stretch


class Detected(msgspec.Struct, frozen=True):
    code: str
    probability: float


async def detect_language(
    decoder: WindowDecoder, model: TranscriptionModel, window: Window, among: Sequence[str] = ()
) -> Detected:
    """One token after the start of a transcript, the likeliest among all languages, or those of the codes ``among``.

    Raises as :meth:`.window_decoder.WindowDecoder.decode`.
    """
    vocabulary = model.vocabulary
    if isinstance(vocabulary, UntimedVocabulary) or not vocabulary.detects:
        return Detected(among[0] if len(among) == 1 else vocabulary.default_language, 1.0)
    codes = {id: code for code, id in vocabulary.languages.items() if not among or code in among}
    if len(codes) == 1:
        return Detected(next(iter(codes.values())), 1.0)
    wanted = DecodingOptions(vocabulary.eot, max_tokens=1, allowed=sorted(codes))
    answer = await decoder.decode(window, [vocabulary.sot], wanted)
    return Detected(codes[answer.tokens[0]], math.exp(answer.logprobs[0].logprob))


def decoder_for(
    model: TranscriptionModel, options: TranscriptionOptions, open_account: OpenAccount | None
) -> WindowDecoder:
    settle = None
    if model.vocabulary.framewise:
        from .framewise_vocabulary import FramewiseVocabulary  # late: only such models need it

        assert isinstance(model.vocabulary, FramewiseVocabulary)
        settle = model.vocabulary.settle
    return WindowDecoder(model.client, options, open_account, settle=settle)


class Transcription:
    """The running transcription of one file: :attr:`language` is known after the first segment, or at the end.

    Iterate :meth:`segments` once, under ``contextlib.aclosing``; closing it aborts running requests.
    """

    def __init__(
        self,
        model: TranscriptionModel,
        pcm: bytes,
        options: TranscriptionOptions,
        open_account: OpenAccount | None = None,
        owner: object = None,
    ) -> None:
        """``pcm`` is all of the audio, in the format of ``protocols.ipc.audio``; ``owner`` is stored beside it."""
        self._owner = owner
        self._model = model
        self._pcm = pcm
        self._options = options if model.vocabulary.marks_times else msgspec.structs.replace(options, timestamps=False)
        self._decoder = decoder_for(model, options, open_account)
        self.language = options.language or model.vocabulary.default_language

    async def segments(self) -> AsyncGenerator[Segment, None]:
        """In order, numbered from 0. Raises as :meth:`.window_decoder.WindowDecoder.decode`."""
        options, count = self._options, 0
        frames = -(-len(self._pcm) // BYTES_A_FRAME)
        if not frames:
            return
        spans: Iterable[Span] | None = None
        first = Span(0, frames)
        if options.chunking is not None:
            chunks = await chunks_of(self._pcm, options.chunking, self._model.detections)
            if not chunks:
                return
            spans, first = chunks, chunks[0]
        elif not self._model.vocabulary.marks_times:
            spans = quiet_spans(self._pcm)
        language = await self._settle_language(first)
        if spans is None:
            stretch = AudioSpan(self._decoder, self._model, self._pcm, 0, frames, options, language)
            async with aclosing(stretch.segments()) as segments:
                async for segment in segments:
                    self._note_language(segment)
                    segment.id = count
                    count += 1
                    yield segment
            return
        alone = msgspec.structs.replace(options, condition_on_previous_text=False)
        stretches = (
            AudioSpan(self._decoder, self._model, self._pcm, span.begin, span.end, alone, language) for span in spans
        )
        async with aclosing(_side_by_side(stretches, self._model.parallel_windows)) as transcribed:
            async for found in transcribed:
                for segment in found:
                    self._note_language(segment)
                    segment.id = count
                    count += 1
                    yield segment

    def _note_language(self, segment: Segment) -> None:
        """Some models name the language in the transcript."""
        vocabulary = self._model.vocabulary
        if self._options.language is None and isinstance(vocabulary, UntimedVocabulary):
            self.language = vocabulary.told(segment.tokens) or self.language

    async def _settle_language(self, first: Span) -> str | None:
        if not self._model.multilingual:
            return None
        if self._options.language is None:
            end = min(first.end, first.begin + WINDOW_FRAMES)
            pcm = self._pcm[first.begin * BYTES_A_FRAME : end * BYTES_A_FRAME]
            window = window_of(pcm, self._options.salt)
            self.language = (await detect_language(self._decoder, self._model, window, self._options.languages)).code
        return self.language


async def _side_by_side(stretches: Iterator[AudioSpan], most: int) -> AsyncGenerator[list[Segment], None]:
    """Segments of each stretch, in order, with up to ``most`` of them in parallel."""
    transcribed: deque[asyncio.Task[list[Segment]]] = deque()
    async with TaskScope("stretches of a file") as tasks:
        for stretch in stretches:
            transcribed.append(tasks.submit(whole_stretch(stretch)))
            if len(transcribed) == most:
                yield await transcribed.popleft()
        while transcribed:
            yield await transcribed.popleft()


class TranscribedTurn(msgspec.Struct, frozen=True):
    """The transcript of one turn."""

    text: str
    """Stripped; empty without speech."""
    tokens: list[int]
    """Tokens of the text, those that it continues included."""
    logprobs: list[float]
    """One for each sampled token, with the end of the transcript if it came."""
    avg_logprob: float
    no_speech_prob: float
    language: str


async def transcribe_turn(
    model: TranscriptionModel,
    pcm: bytes,
    options: TranscriptionOptions,
    *,
    after: Sequence[int] = (),
) -> TranscribedTurn:
    """One window without timestamps, at the first temperature only: for turns, and for partial transcripts.

    ``pcm`` has 30 seconds at most; of longer audio the last 30 are used. ``after`` are settled tokens that it
    continues. Without a language it is detected, in one more step. Raises as
    :meth:`.window_decoder.WindowDecoder.decode`.
    """
    pcm = pcm[-WINDOW_FRAMES * BYTES_A_FRAME :]
    if is_soundless(pcm):
        return TranscribedTurn(
            model.vocabulary.decode([*after]).strip(), [*after], [], 0.0, 1.0, options.language or "en"
        )
    decoder = decoder_for(model, options, None)
    window = window_of(pcm, options.salt)
    detected = (
        Detected(options.language, 1.0)
        if options.language
        else await detect_language(decoder, model, window, options.languages)
    )
    quick = msgspec.structs.replace(options, timestamps=False, temperatures=options.temperatures[:1])
    previous = model.vocabulary.encode(" " + options.prompt.strip()) if options.prompt.strip() else []
    language = detected.code if model.multilingual else None
    draft = await draft_window(WindowTask(decoder, model, window, quick, language), previous, list(after))
    # a model that decodes frame by frame does not continue tokens: its transcript begins with them
    vocabulary = model.vocabulary
    begin, told = 0, None
    if isinstance(vocabulary, UntimedVocabulary):
        begin, told = vocabulary.behind(after, draft.tokens), vocabulary.told(draft.tokens)
    tokens = [*after] if is_silence(draft, options) else [*after, *draft.tokens[begin:]]
    return TranscribedTurn(
        vocabulary.decode(tokens).strip(),
        tokens,
        [one.logprob for one in draft.answer.logprobs[begin:]],
        draft.avg_logprob,
        draft.no_speech_prob,
        options.language or told or detected.code,
    )
