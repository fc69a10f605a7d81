"""Updates of a session, or of one response. A missing field stays as it is."""

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...common.decoding import converted
from ...common.errors import BadRequest, refused
from .session import (
    AudioFormat,
    Eagerness,
    IdleTimeout,
    Include,
    Metadata,
    Milliseconds,
    Modality,
    Name,
    OutputTokens,
    Prompt,
    Ratio,
    Reasoning,
    RetentionRatio,
    Speed,
    Threshold,
    Tracing,
)

MAX_INSTRUCTIONS: Final = 1 << 20

_UNKNOWN: Final = re.compile(r"unknown field `?([^`.\n]+?)`?\.?$")


class _Voice(msgspec.Struct, frozen=True):
    id: Name


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class ServerVadUpdate(msgspec.Struct, frozen=True, tag_field="type", tag="server_vad", forbid_unknown_fields=True):
    threshold: Threshold | UnsetType | None = UNSET
    prefix_padding_ms: Milliseconds | UnsetType | None = UNSET
    silence_duration_ms: Milliseconds | UnsetType | None = UNSET
    idle_timeout_ms: IdleTimeout | UnsetType | None = UNSET
    create_response: bool | UnsetType | None = UNSET
    interrupt_response: bool | UnsetType | None = UNSET


class SemanticVadUpdate(msgspec.Struct, frozen=True, tag_field="type", tag="semantic_vad", forbid_unknown_fields=True):
    eagerness: Eagerness | UnsetType | None = UNSET
    create_response: bool | UnsetType | None = UNSET
    interrupt_response: bool | UnsetType | None = UNSET


class TranscriptionUpdate(_Part, frozen=True, kw_only=True):
    model: Name | UnsetType | None = UNSET
    language: Name | UnsetType | None = UNSET
    prompt: Prompt | UnsetType | None = UNSET
    languages: Annotated[list[Name], Meta(max_length=128)] | UnsetType | None = UNSET
    keywords: Annotated[list[Name], Meta(max_length=1024)] | UnsetType | None = UNSET
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | UnsetType | None = UNSET


class NoiseUpdate(_Part, frozen=True, kw_only=True):
    type: Literal["near_field", "far_field"] | UnsetType = UNSET
    strength: Ratio | UnsetType = UNSET


class InputUpdate(_Part, frozen=True, kw_only=True):
    format: AudioFormat | UnsetType | None = UNSET
    transcription: TranscriptionUpdate | UnsetType | None = UNSET
    noise_reduction: NoiseUpdate | UnsetType | None = UNSET
    turn_detection: ServerVadUpdate | SemanticVadUpdate | UnsetType | None = UNSET


class ResponseOutputUpdate(_Part, frozen=True, kw_only=True):
    format: AudioFormat | UnsetType | None = UNSET
    voice: Name | _Voice | UnsetType | None = UNSET

    @property
    def voice_name(self) -> str | UnsetType | None:
        return self.voice.id if isinstance(self.voice, _Voice) else self.voice


class OutputUpdate(ResponseOutputUpdate, frozen=True, kw_only=True):
    speed: Speed | UnsetType | None = UNSET


class AudioUpdate(_Part, frozen=True, kw_only=True):
    input: InputUpdate | UnsetType | None = UNSET
    output: OutputUpdate | UnsetType | None = UNSET


class ResponseAudioUpdate(_Part, frozen=True, kw_only=True):
    output: ResponseOutputUpdate | UnsetType | None = UNSET


class TranscriptionAudioUpdate(_Part, frozen=True, kw_only=True):
    input: InputUpdate | UnsetType | None = UNSET


class AnswerUpdate(_Part, frozen=True, kw_only=True):
    """Fields shared by sessions and responses."""

    output_modalities: Annotated[list[Modality], Meta(max_length=2)] | UnsetType | None = UNSET
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS)] | UnsetType | None = UNSET
    tools: list[Any] | UnsetType | None = UNSET
    tool_choice: str | dict[str, Any] | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    reasoning: Reasoning | UnsetType | None = UNSET
    max_output_tokens: OutputTokens | UnsetType | None = UNSET
    prompt: Any = UNSET


class RealtimeUpdate(AnswerUpdate, frozen=True, tag_field="type", tag="realtime", kw_only=True):
    model: Name | UnsetType | None = UNSET
    audio: AudioUpdate | UnsetType | None = UNSET
    include: Annotated[list[Include], Meta(max_length=8)] | UnsetType | None = UNSET
    tracing: Tracing | UnsetType | None = UNSET
    truncation: Literal["auto", "disabled"] | RetentionRatio | UnsetType | None = UNSET
    # fields that the server adds to a session; clients send them back
    id: Any = UNSET
    object: Any = UNSET
    expires_at: Any = UNSET


class TranscriptionSessionFields(_Part, frozen=True, tag_field="type", tag="transcription", kw_only=True):
    audio: TranscriptionAudioUpdate | UnsetType | None = UNSET
    include: Annotated[list[Include], Meta(max_length=8)] | UnsetType | None = UNSET
    id: Any = UNSET
    object: Any = UNSET
    expires_at: Any = UNSET


SessionFields = RealtimeUpdate | TranscriptionSessionFields


class ResponseFields(AnswerUpdate, frozen=True, kw_only=True):
    """Fields of ``response.create``."""

    audio: ResponseAudioUpdate | UnsetType | None = UNSET
    conversation: str | None = None
    input: list[dict[str, Any]] | None = None
    metadata: Metadata | None = None


def read_fields(value: Any, type: Any, where: str) -> Any:
    """``value`` as ``type``. Raises BadRequest naming the field, also one that is not known."""
    try:
        return converted(value, type, where)
    except BadRequest as error:
        raise naming_unknown(error) from None


def naming_unknown(error: BadRequest) -> BadRequest:
    """The error of an unknown field with the field's own name; any other error as it is."""
    unknown = _UNKNOWN.search(error.message)
    if unknown is None:
        return error
    field = f"{error.param}.{unknown[1]}" if error.param else unknown[1]
    return refused(field, "there is no such field", "unknown_parameter")
