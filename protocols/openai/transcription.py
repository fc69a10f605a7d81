"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``: the form that is sent, and every answer to it."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common import limits
from ..common.bounds import LIST_TOO_LONG
from ..common.decoding import converted, converted_form
from ..common.errors import BadRequest, refused, wrong
from .beams import MAX_BEAMS, Beams
from .sampling import LengthPenalty
from .usage import Usage

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]
Granularity = Literal["word", "segment"]
Probability = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]

_NUMBERS: Final = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "length_penalty",
)
_MOST_VALUES: Final = 128
"""Values of one repeatable field."""
_REPEATED: Final = ("timestamp_granularities", "include", "languages", "keywords")
_OBJECTS: Final = ("chunking_strategy",)


class VadChunking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cuts at silence."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=10_000)] = 300
    silence_duration_ms: Annotated[int, Meta(ge=0, le=60_000)] = 500


class TranslationForm(msgspec.Struct, kw_only=True):
    """Fields beside ``file``. None means that the field is absent."""

    model: Annotated[str, Meta(max_length=limits.MAX_NAME_LENGTH)] | None = None
    prompt: str = ""
    response_format: ResponseFormat = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0

    language: Annotated[str, Meta(max_length=limits.MAX_NAME_LENGTH)] | None = None
    """Of what is spoken."""

    # vLLM's
    seed: Annotated[int, Meta(ge=limits.INT64_MIN, le=limits.INT64_MAX)] | None = None
    top_p: Probability = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=limits.INT32_MAX)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    max_completion_tokens: Annotated[int, Meta(ge=1, le=limits.INT64_MAX)] | None = None
    stream: bool = False
    stream_include_usage: bool = False
    stream_continuous_usage_stats: bool = False

    use_beam_search: bool = False
    n: Annotated[int, Meta(ge=1)] = 1
    """Beams of a search; there is one transcript in any case."""
    length_penalty: LengthPenalty = 1.0
    """Of a search; without effect otherwise."""

    # Decoded so that clients get an error instead of being ignored.
    to_language: Annotated[str, Meta(max_length=limits.MAX_NAME_LENGTH)] | None = None
    vllm_xargs: Any = None

    @property
    def beams(self) -> Beams | None:
        """The search that finds the transcript; None: it is sampled."""
        return Beams(self.n, self.length_penalty) if self.use_beam_search else None

    @property
    def hint(self) -> str:
        """Text of the kind that is spoken, as the model's prompt."""
        return self.prompt

    def check(self) -> None:
        """Raises BadRequest."""
        for name in _NUMBERS:
            if not math.isfinite(getattr(self, name)):
                raise _invalid(name, "a number is expected")
        if self.use_beam_search:
            self._check_beams()
        elif self.n != 1:
            raise _invalid("n", "one transcript is all there is of a file; leave it out, or set use_beam_search")
        if self.vllm_xargs is not None:
            raise _invalid("vllm_xargs", "it is not supported; leave it out")
        if self.stream and self.response_format not in ("json", "text", "diarized_json"):
            raise _invalid("stream", f"a stream of events has no {self.response_format}; use json, or do not stream")

    def check_english(self) -> None:
        """For models that write translations in English alone. Raises BadRequest."""
        if self.to_language not in (None, "", "en", "english"):
            raise _invalid("to_language", "speech is translated into English alone; leave it out")

    def _check_beams(self) -> None:
        if self.n > MAX_BEAMS:
            raise _invalid("n", f"at most {MAX_BEAMS} beams are kept")
        neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        for name, value in neutral.items():
            if getattr(self, name) != value:
                raise _invalid(name, "it has no effect on beams; leave it out, or use_beam_search")

    @classmethod
    def of(cls: "type[Form]", fields: Sequence[tuple[str, str]]) -> "Form":
        """From names and values as they came, the file left out. Raises BadRequest naming the field."""
        known = {field.encode_name for field in msgspec.structs.fields(cls)}
        form = converted_form(_gathered(fields, known), cls)
        form.check()
        return form


Form = TypeVar("Form", bound=TranslationForm)


class TranscriptionForm(TranslationForm, kw_only=True):
    languages: list[Annotated[str, Meta(max_length=limits.MAX_NAME_LENGTH)]] | None = None
    """One of which is spoken."""
    timestamp_granularities: list[Granularity] | None = None
    include: list[Literal["logprobs"]] | None = None
    chunking_strategy: Any = None
    keywords: list[str] | None = None
    hotwords: str | None = None

    # Understood, and refused as those above.
    known_speaker_names: Any = None
    known_speaker_references: Any = None

    @property
    def hint(self) -> str:
        return prompt_with_keywords(self.prompt, (*(self.keywords or ()), self.hotwords or ""))

    def check(self) -> None:
        super().check()
        self.check_english()
        for name in ("known_speaker_names", "known_speaker_references"):
            if getattr(self, name) is not None:
                raise _invalid(name, "speakers have no other names than letters; leave it out")
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise _invalid("timestamp_granularities", "timestamps need `response_format` verbose_json")
        if self.include and self.response_format != "json":
            raise _invalid("include", "logprobs need `response_format` json")

    @property
    def wants_words(self) -> bool:
        return "word" in (self.timestamp_granularities or ())

    @property
    def wants_segments(self) -> bool:
        return not self.timestamp_granularities or "segment" in self.timestamp_granularities

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.include)

    @property
    def chunking(self) -> VadChunking | None:
        """None transcribes the file as one. Raises BadRequest."""
        given = self.chunking_strategy
        if given in (None, ""):
            return None
        if given == "auto":
            return VadChunking("server_vad")
        if isinstance(given, str):
            try:
                given = msgspec.json.decode(given)
            except (msgspec.DecodeError, RecursionError):
                given = None
        if not isinstance(given, dict):
            raise _invalid("chunking_strategy", 'auto, or an object with "type": "server_vad", is expected')
        found: VadChunking = converted(given, VadChunking, "chunking_strategy", strict=False)
        if not math.isfinite(found.threshold):
            raise _invalid("chunking_strategy.threshold", "a number is expected")
        return found


def prompt_with_keywords(prompt: str | None, keywords: Iterable[str]) -> str:
    """The prompt of a model that has no place of its own for keywords: it spells what it has read."""
    return ", ".join(filter(None, (prompt, *keywords)))


def _gathered(fields: Sequence[tuple[str, str]], known: Collection[str]) -> dict[str, Any]:
    """The ``known`` fields of a form as JSON: ``a[]`` are items of a list, ``a[b]`` fields of an object."""
    found: dict[str, Any] = {}
    for written, value in fields:
        name, bracket, key = written.partition("[")
        key = key.removesuffix("]")
        if name not in known:
            continue
        if name in _OBJECTS and bracket and key:
            holder = found.setdefault(name, {})
            if not isinstance(holder, dict):
                raise _invalid(name, "it is given twice")
            holder[key] = value
        elif not key and (bracket or name in _REPEATED):
            listed = found.setdefault(name, [])
            if not isinstance(listed, list):
                raise _invalid(name, "it is given twice")
            if len(listed) >= _MOST_VALUES:
                raise wrong(name, f"has more than {_MOST_VALUES} values", LIST_TOO_LONG)
            listed.append(value)
        elif written in found:
            raise _invalid(written, "it is given twice")
        else:
            found[written] = value
    return found


def _invalid(name: str, why: str) -> BadRequest:
    return refused(name, why, "invalid_value")


# ---- answers


class Logprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class DurationUsage(msgspec.Struct, frozen=True, tag_field="type", tag="duration"):
    seconds: float


class InputTokens(msgspec.Struct, frozen=True):
    audio_tokens: int
    text_tokens: int


class TokenUsage(msgspec.Struct, frozen=True, tag_field="type", tag="tokens"):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputTokens


class Transcription(msgspec.Struct, frozen=True):
    text: str
    usage: DurationUsage | UnsetType = UNSET
    logprobs: list[Logprob] | UnsetType = UNSET


class TranscribedSegment(msgspec.Struct, frozen=True):
    id: int
    seek: int
    """Hundredths of a second."""
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscribedWord(msgspec.Struct, frozen=True):
    word: str
    start: float
    end: float


class VerboseTranscription(msgspec.Struct, frozen=True):
    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[TranscribedSegment] | UnsetType = UNSET
    words: list[TranscribedWord] | UnsetType = UNSET
    usage: DurationUsage | UnsetType = UNSET


class SpokenSegment(msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.segment"):
    """What one speaker says without a break; also an event."""

    id: str
    speaker: str
    start: float
    end: float
    text: str


class DiarizedTranscription(msgspec.Struct, frozen=True):
    task: Literal["transcribe"]
    duration: float
    text: str
    segments: list[SpokenSegment]
    usage: DurationUsage | UnsetType = UNSET


class ChunkDelta(msgspec.Struct, frozen=True):
    content: str


class ChunkChoice(msgspec.Struct, frozen=True):
    delta: ChunkDelta
    finish_reason: Literal["stop"] | None = None


class TranscriptChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """vLLM's fields, which its clients read; OpenAI's clients read those of the structs below."""

    id: str
    object: Literal["transcription.chunk", "translation.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]


class UsageChunk(TranscriptChunk, frozen=True, kw_only=True):
    """The last of a stream, if the request has ``stream_include_usage``."""

    usage: Usage


class TextDelta(TranscriptChunk, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.delta"):
    delta: str
    logprobs: list[Logprob] | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    """With ``stream_continuous_usage_stats``."""


class TextDone(TranscriptChunk, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.done"):
    text: str
    usage: TokenUsage
    logprobs: list[Logprob] | UnsetType = UNSET
