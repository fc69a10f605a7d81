"""Server events of the Realtime API.

The sender of an event sets its ``event_id``.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from .items import Item
from .session import AudioFormat, Modality, OutputTokens, Session

EndStatus = Literal["completed", "cancelled", "failed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]
Reason = Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"]


class ServerEvent(msgspec.Struct, tag_field="type", kw_only=True):
    event_id: str = ""


# ---- errors and the session


class RealtimeError(msgspec.Struct, frozen=True):
    type: str
    code: str | None
    message: str
    param: str | None
    event_id: str | None
    """The client's, of the event that is at fault."""


class ErrorEvent(ServerEvent, tag="error", kw_only=True):
    error: RealtimeError
    request_id: str | UnsetType = UNSET
    """Request id of the handshake."""


class SessionCreated(ServerEvent, tag="session.created", kw_only=True):
    session: Session
    id: str | UnsetType = UNSET
    """These two only where a client has named neither model nor intent: another dialect looks for them."""
    created: int | UnsetType = UNSET


class SessionUpdated(ServerEvent, tag="session.updated", kw_only=True):
    session: Session


# ---- the conversation


class ItemAdded(ServerEvent, tag="conversation.item.added", kw_only=True):
    previous_item_id: str | None
    item: Item


class ItemDone(ServerEvent, tag="conversation.item.done", kw_only=True):
    previous_item_id: str | None
    item: Item


class ItemRetrieved(ServerEvent, tag="conversation.item.retrieved", kw_only=True):
    item: Item


class ItemDeleted(ServerEvent, tag="conversation.item.deleted", kw_only=True):
    item_id: str


class ItemTruncated(ServerEvent, tag="conversation.item.truncated", kw_only=True):
    item_id: str
    content_index: int
    audio_end_ms: int


# ---- what is heard


class BufferCommitted(ServerEvent, tag="input_audio_buffer.committed", kw_only=True):
    previous_item_id: str | None
    item_id: str


class BufferCleared(ServerEvent, tag="input_audio_buffer.cleared", kw_only=True):
    pass


class SpeechStartedEvent(ServerEvent, tag="input_audio_buffer.speech_started", kw_only=True):
    audio_start_ms: int
    item_id: str


class SpeechStoppedEvent(ServerEvent, tag="input_audio_buffer.speech_stopped", kw_only=True):
    audio_end_ms: int
    item_id: str


class TimeoutTriggered(ServerEvent, tag="input_audio_buffer.timeout_triggered", kw_only=True):
    audio_start_ms: int
    audio_end_ms: int
    item_id: str


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class TranscriptionDelta(ServerEvent, tag="conversation.item.input_audio_transcription.delta", kw_only=True):
    item_id: str
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class DurationUsage(msgspec.Struct, frozen=True, tag_field="type", tag="duration"):
    seconds: float


class TranscriptionCompleted(ServerEvent, tag="conversation.item.input_audio_transcription.completed", kw_only=True):
    item_id: str
    content_index: int = 0
    transcript: str
    usage: DurationUsage
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class TranscriptionError(msgspec.Struct, frozen=True):
    type: str
    code: str | None
    message: str
    param: str | None


class TranscriptionFailed(ServerEvent, tag="conversation.item.input_audio_transcription.failed", kw_only=True):
    item_id: str
    content_index: int = 0
    error: TranscriptionError


# ---- responses


class CachedTokens(msgspec.Struct, frozen=True):
    text_tokens: int
    audio_tokens: int = 0


class InputTokens(msgspec.Struct, frozen=True):
    cached_tokens: int
    text_tokens: int
    cached_tokens_details: CachedTokens
    audio_tokens: int = 0


class OutputTokenDetails(msgspec.Struct, frozen=True):
    text_tokens: int
    audio_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """All tokens count as text: audio in is transcribed, and audio out is synthesised from text."""

    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_token_details: InputTokens
    output_token_details: OutputTokenDetails

    @classmethod
    def of(cls, given: int, cached: int, output: int) -> "ResponseUsage":
        details = InputTokens(cached, given, CachedTokens(cached))
        return cls(given + output, given, output, details, OutputTokenDetails(output))


class ResponseFailure(msgspec.Struct, frozen=True):
    type: str
    code: str | None
    message: str | UnsetType = UNSET


class StatusDetails(msgspec.Struct, frozen=True):
    type: EndStatus
    reason: Reason | UnsetType = UNSET
    error: ResponseFailure | UnsetType = UNSET


class ResponseAudioOutput(msgspec.Struct, frozen=True):
    format: AudioFormat
    voice: str | None


class ResponseAudio(msgspec.Struct, frozen=True):
    output: ResponseAudioOutput


class Response(msgspec.Struct, kw_only=True):
    object: Literal["realtime.response"] = "realtime.response"
    id: str
    status: ResponseStatus = "in_progress"
    status_details: StatusDetails | None = None
    output: list[Item]
    conversation_id: str | None
    """None for a response outside the conversation."""
    output_modalities: list[Modality]
    max_output_tokens: OutputTokens
    audio: ResponseAudio | UnsetType = UNSET
    usage: ResponseUsage | None = None
    metadata: dict[str, str] | None = None


class ResponseCreated(ServerEvent, tag="response.created", kw_only=True):
    response: Response


class ResponseDone(ServerEvent, tag="response.done", kw_only=True):
    response: Response


class RateLimit(msgspec.Struct, frozen=True):
    name: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset_seconds: float


class RateLimitsUpdated(ServerEvent, tag="rate_limits.updated", kw_only=True):
    rate_limits: list[RateLimit]


class OutputItemAdded(ServerEvent, tag="response.output_item.added", kw_only=True):
    response_id: str
    output_index: int
    item: Item


class OutputItemDone(ServerEvent, tag="response.output_item.done", kw_only=True):
    response_id: str
    output_index: int
    item: Item


class Part(msgspec.Struct, frozen=True):
    type: Literal["text", "audio"]
    text: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET


class PartEvent(ServerEvent, kw_only=True):
    """Common fields of events about one part of a message."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int = 0


class ContentPartAdded(PartEvent, tag="response.content_part.added", kw_only=True):
    part: Part


class ContentPartDone(PartEvent, tag="response.content_part.done", kw_only=True):
    part: Part


class TextDelta(PartEvent, tag="response.output_text.delta", kw_only=True):
    delta: str


class TextDone(PartEvent, tag="response.output_text.done", kw_only=True):
    text: str


class TranscriptDelta(PartEvent, tag="response.output_audio_transcript.delta", kw_only=True):
    delta: str


class TranscriptDone(PartEvent, tag="response.output_audio_transcript.done", kw_only=True):
    transcript: str


class AudioDelta(PartEvent, tag="response.output_audio.delta", kw_only=True):
    delta: str
    """Base64."""


class AudioDone(PartEvent, tag="response.output_audio.done", kw_only=True):
    pass


class ArgumentsDelta(ServerEvent, tag="response.function_call_arguments.delta", kw_only=True):
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    delta: str


class ArgumentsDone(ServerEvent, tag="response.function_call_arguments.done", kw_only=True):
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    name: str
    arguments: str


class OutputStarted(ServerEvent, tag="output_audio_buffer.started", kw_only=True):
    response_id: str


class OutputStopped(ServerEvent, tag="output_audio_buffer.stopped", kw_only=True):
    response_id: str


class OutputCleared(ServerEvent, tag="output_audio_buffer.cleared", kw_only=True):
    response_id: str


class ClientSecret(msgspec.Struct, frozen=True):
    """The answer of ``/v1/realtime/client_secrets``."""

    value: str
    expires_at: int
    session: Any
