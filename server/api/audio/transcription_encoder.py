"""Segments of a transcript as each format that a client may ask for."""

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from stentor.protocols.common.encoding import encode
from stentor.protocols.openai.transcription import (
    DurationUsage,
    Logprob,
    ResponseFormat,
    TranscribedSegment,
    TranscribedWord,
    Transcription,
    VerboseTranscription,
)

from ...asr.languages import name_of
from ...asr.segments import Segment
from ...asr.streaming import JoinedText
from ...asr.untimed_vocabulary import UntimedVocabulary
from ...asr.vocabulary import Vocabulary
from .transcript_events import TokenCounts, TranscriptEvents

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
VTT: Final = "text/vtt; charset=utf-8"
SRT: Final = "application/x-subrip; charset=utf-8"


class TranscriptShape(msgspec.Struct, frozen=True):
    """The form of one request's answer."""

    format: ResponseFormat
    seconds: float
    """Duration of the audio."""
    vocabulary: Vocabulary | UntimedVocabulary | None
    """None: of a streaming model, of which neither events nor log-probabilities are made here."""
    task: Literal["transcribe", "translate"] = "transcribe"
    segments: bool = True
    """In ``verbose_json``, as the next."""
    words: bool = False
    logprobs: bool = False
    prompt_tokens: int = 0


def transcript(shape: TranscriptShape, segments: Sequence[Segment], language: str) -> tuple[bytes, str]:
    """The whole answer and its media type; ``language`` by its code."""
    match shape.format:
        case "text":
            return (_text_of(segments) + "\n").encode(), TEXT
        case "srt":
            return _subtitles(segments, head="", numbered=True, point=","), SRT
        case "vtt":
            return _subtitles(segments, head="WEBVTT\n\n", numbered=False, point="."), VTT
        case "verbose_json":
            return encode(_verbose(shape, segments, language)), JSON
        case _:
            usage = UNSET if shape.task == "translate" else _duration(shape)
            return encode(Transcription(_text_of(segments), usage, _logprobs(shape, segments))), JSON


class TranscriptStream:
    """The same as events: each segment once it is final."""

    def __init__(self, shape: TranscriptShape, events: TranscriptEvents) -> None:
        self._shape = shape
        self._events = events
        self._segments: list[Segment] = []
        self._written = 0
        self._joined = JoinedText()
        self.failed: Final = False

    def encode(self, batch: Segment) -> bytes:
        """The frame of one segment."""
        self._segments.append(batch)
        assert self._shape.vocabulary is not None
        self._written += sum(map(self._shape.vocabulary.is_text, batch.tokens))
        delta = self._joined.add(batch.text)
        return self._events.delta(delta, self._counts(), _logprobs(self._shape, [batch]))

    def end(self) -> bytes:
        return self._events.end(self._joined.text, self._counts(), _logprobs(self._shape, self._segments))

    def _counts(self) -> TokenCounts:
        shape = self._shape
        assert shape.vocabulary is not None
        audio = math.ceil(shape.seconds * shape.vocabulary.positions_a_second)
        return TokenCounts(audio, shape.prompt_tokens, self._written)


def _text_of(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments).strip()


def _duration(shape: TranscriptShape) -> DurationUsage:
    return DurationUsage(math.ceil(shape.seconds))


def _verbose(shape: TranscriptShape, segments: Sequence[Segment], language: str) -> VerboseTranscription:
    translated = shape.task == "translate"
    return VerboseTranscription(
        shape.task,
        name_of("en" if translated else language),
        round(shape.seconds, 2),
        _text_of(segments),
        [_segment(segment) for segment in segments] if shape.segments else UNSET,
        [
            TranscribedWord(word.word.strip(), round(word.start, 2), round(word.end, 2))
            for segment in segments
            for word in segment.words or ()
        ]
        if shape.words
        else UNSET,
        UNSET if translated else _duration(shape),
    )


def _segment(segment: Segment) -> TranscribedSegment:
    fields = {name: getattr(segment, name) for name in TranscribedSegment.__struct_fields__}
    return TranscribedSegment(**{**fields, "start": round(segment.start, 2), "end": round(segment.end, 2)})


def _logprobs(shape: TranscriptShape, segments: Sequence[Segment]) -> list[Logprob] | UnsetType:
    """Log-probabilities of text tokens."""
    if not shape.logprobs:
        return UNSET
    vocabulary = shape.vocabulary
    assert vocabulary is not None
    found = []
    for segment in segments:
        for one in segment.logprobs or ():
            if vocabulary.is_text(one.token):
                data = vocabulary.tokenizer.token_bytes(one.token)
                found.append(Logprob(data.decode(errors="replace"), one.logprob, list(data)))
    return found


def _subtitles(segments: Sequence[Segment], *, head: str, numbered: bool, point: str) -> bytes:
    blocks = [head]
    for number, segment in enumerate(segments, 1):
        text = segment.text.strip().replace("-->", "->")
        if numbered:
            blocks.append(f"{number}\n")
        blocks.append(f"{_clock(segment.start, point)} --> {_clock(segment.end, point)}\n{text}\n\n")
    return "".join(blocks).encode()


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{milliseconds // 1000:02d}{point}{milliseconds % 1000:03d}"
