"""Responses of ``/v1/messages`` and of Anthropic's ``/v1/models``."""

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from .context_management import AppliedEdits, OriginalTokens

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "compaction", "model_context_window_exceeded"
]


def time_text(seconds: int) -> str:
    """Unix seconds as RFC 3339 has them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class TextContent(msgspec.Struct, tag="text", tag_field="type", frozen=True):
    text: str


class ThinkingContent(msgspec.Struct, tag="thinking", tag_field="type", frozen=True):
    thinking: str
    signature: str


class ToolUseContent(msgspec.Struct, tag="tool_use", tag_field="type", frozen=True):
    id: str
    name: str
    input: dict[str, Any]


class CompactionContent(msgspec.Struct, tag="compaction", tag_field="type", frozen=True):
    content: str | None
    """The summary of the conversation; null if the model wrote none."""


GeneratedContent = TextContent | ThinkingContent | ToolUseContent
Content = GeneratedContent | CompactionContent


class OutputTokensDetails(msgspec.Struct, frozen=True, gc=False):
    thinking_tokens: int


class IterationUsage(msgspec.Struct, frozen=True, gc=False):
    """One of the model's turns for a message."""

    type: Literal["compaction", "message"]
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, kind: Literal["compaction", "message"], prompt: int, cached: int, output: int) -> "IterationUsage":
        """``cached`` of the tokens of the prompt were found in the cache."""
        return cls(kind, prompt - cached, 0, cached, output)


class MessageUsage(msgspec.Struct, frozen=True):
    """The whole input is ``input_tokens`` plus the tokens read from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    iterations: list[IterationUsage] | UnsetType = UNSET
    """Of a message that begins with a compaction, whose tokens the other fields leave out."""

    @classmethod
    def of(cls, prompt: int, cached: int, output: int, thinking: int) -> "MessageUsage":
        """``cached`` of the tokens of the prompt were found in the cache; ``thinking`` of the output's were thought."""
        return cls(prompt - cached, 0, cached, output, OutputTokensDetails(thinking))


class Message(msgspec.Struct, frozen=True):
    id: str
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    context_management: AppliedEdits | UnsetType = UNSET
    """Of a request that has it."""
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TokensCount(msgspec.Struct, frozen=True):
    input_tokens: int
    context_management: OriginalTokens | UnsetType = UNSET
    """Of a request that has it."""


class ModelInfo(msgspec.Struct, frozen=True):
    id: str
    display_name: str
    created_at: str
    """RFC 3339."""
    max_input_tokens: int | None
    """null until the model has been loaded, as is the next."""
    max_tokens: int | None
    lifecycle: Literal["active"] = "active"
    type: Literal["model"] = "model"


class ModelPage(msgspec.Struct, frozen=True):
    """All models are on one page."""

    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
