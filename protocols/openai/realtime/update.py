"""What a client may set of a session, or of one response. A field that is not there is left as it is."""

import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..decoding import converted
from ..errors import BadRequest
from ..limits import MAX_NAME_LENGTH
from .session import (
    AudioFormat,
    Eagerness,
    IdleTimeout,
    Include,
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
)

T = TypeVar("T")
MAX_INSTRUCTIONS: Final = 1 << 20
MAX_METADATA: Final = 16

_UNKNOWN: Final = re.compile(r"unknown field `?([^`.\n]+?)`?\.?$")


class _Voice(msgspec.Struct, frozen=True):
    id: Name


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class ServerVadUpdate(msgspec.Struct, frozen=True, tag_field="type", tag="server_vad", forbid_unknown_fields=True):
    threshold: Threshold | None | UnsetType = UNSET
    prefix_padding_ms: Milliseconds | None | UnsetType = UNSET
    silence_duration_ms: Milliseconds | None | UnsetType = UNSET
    idle_timeout_ms: IdleTimeout | None | UnsetType = UNSET
    create_response: bool | None | UnsetType = UNSET
    interrupt_response: bool | None | UnsetType = UNSET


class SemanticVadUpdate(msgspec.Struct, frozen=True, tag_field="type", tag="semantic_vad", forbid_unknown_fields=True):
    eagerness: Eagerness | None | UnsetType = UNSET
    create_response: bool | None | UnsetType = UNSET
    interrupt_response: bool | None | UnsetType = UNSET


class TranscriptionUpdate(_Part, frozen=True, kw_only=True):
    model: Name | None | UnsetType = UNSET
    language: Name | None | UnsetType = UNSET
    prompt: Prompt | None | UnsetType = UNSET
    languages: Annotated[list[Name], Meta(max_length=128)] | None | UnsetType = UNSET
    keywords: Annotated[list[Name], Meta(max_length=1024)] | None | UnsetType = UNSET
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None | UnsetType = UNSET


class NoiseUpdate(_Part, frozen=True, kw_only=True):
    type: Literal["near_field", "far_field"] | UnsetType = UNSET
    strength: Ratio | UnsetType = UNSET


class InputUpdate(_Part, frozen=True, kw_only=True):
    format: AudioFormat | None | UnsetType = UNSET
    transcription: TranscriptionUpdate | None | UnsetType = UNSET
    noise_reduction: NoiseUpdate | None | UnsetType = UNSET
    turn_detection: ServerVadUpdate | SemanticVadUpdate | None | UnsetType = UNSET


class OutputUpdate(_Part, frozen=True, kw_only=True):
    format: AudioFormat | None | UnsetType = UNSET
    voice: Name | _Voice | None | UnsetType = UNSET
    speed: Speed | None | UnsetType = UNSET

    @property
    def voice_name(self) -> str | None | UnsetType:
        return self.voice.id if isinstance(self.voice, _Voice) else self.voice


class AudioUpdate(_Part, frozen=True, kw_only=True):
    input: InputUpdate | None | UnsetType = UNSET
    output: OutputUpdate | None | UnsetType = UNSET


class ResponseAudioUpdate(_Part, frozen=True, kw_only=True):
    output: OutputUpdate | None | UnsetType = UNSET


class TranscriptionAudioUpdate(_Part, frozen=True, kw_only=True):
    input: InputUpdate | None | UnsetType = UNSET


class AnswerUpdate(_Part, frozen=True, kw_only=True):
    """What sessions and responses have in common."""

    output_modalities: Annotated[list[Modality], Meta(max_length=2)] | None | UnsetType = UNSET
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS)] | None | UnsetType = UNSET
    tools: list[Any] | None | UnsetType = UNSET
    tool_choice: str | dict[str, Any] | None | UnsetType = UNSET
    parallel_tool_calls: bool | None | UnsetType = UNSET
    reasoning: Reasoning | None | UnsetType = UNSET
    max_output_tokens: OutputTokens | None | UnsetType = UNSET
    prompt: Any = UNSET


class RealtimeUpdate(AnswerUpdate, frozen=True, tag_field="type", tag="realtime", kw_only=True):
    model: Name | None | UnsetType = UNSET
    audio: AudioUpdate | None | UnsetType = UNSET
    include: Annotated[list[Include], Meta(max_length=8)] | None | UnsetType = UNSET
    tracing: Any = UNSET
    truncation: Literal["auto", "disabled"] | RetentionRatio | None | UnsetType = UNSET
    # what the server adds to a session, from clients that send one back as they got it
    id: Any = UNSET
    object: Any = UNSET
    expires_at: Any = UNSET


class TranscriptionSessionFields(_Part, frozen=True, tag_field="type", tag="transcription", kw_only=True):
    audio: TranscriptionAudioUpdate | None | UnsetType = UNSET
    include: Annotated[list[Include], Meta(max_length=8)] | None | UnsetType = UNSET
    id: Any = UNSET
    object: Any = UNSET
    expires_at: Any = UNSET


SessionFields = RealtimeUpdate | TranscriptionSessionFields

Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]]


class ResponseFields(AnswerUpdate, frozen=True, kw_only=True):
    """Of ``response.create``."""

    audio: ResponseAudioUpdate | None | UnsetType = UNSET
    conversation: str | None = None
    input: list[dict[str, Any]] | None = None
    metadata: Annotated[Metadata, Meta(max_length=MAX_METADATA)] | None = None


def read_fields(value: Any, type: Any, where: str) -> Any:
    """``value`` as ``type``. Raises BadRequest naming the field, also one that is not known."""
    try:
        return converted(value, type, where)
    except BadRequest as error:
        unknown = _UNKNOWN.search(error.message)
        if unknown is None:
            raise
        field = f"{error.param}.{unknown[1]}" if error.param else unknown[1]
        raise BadRequest(f"`{field}`: there is no such field.", field, "unknown_parameter") from None
