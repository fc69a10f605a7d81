"""``context_management`` of ``/v1/messages``: what the server may take out of a long conversation, and what it took.

The edits are those of Anthropic's betas ``context-management-2025-06-27`` and ``compact-2026-01-12``.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.errors import wrong

Count = Annotated[int, Meta(ge=0, le=limits.INT64_MAX)]
MAX_EDITS: Final = 3
"""One of each kind."""
CLEARING_TOKENS: Final = 100_000
"""Anthropic's default: longer prompts lose their oldest tool results."""
COMPACTING_TOKENS: Final = 150_000
"""Anthropic's default: longer prompts are summarised."""


class InputTokens(msgspec.Struct, tag="input_tokens", tag_field="type", frozen=True):
    value: Count


class ToolUses(msgspec.Struct, tag="tool_uses", tag_field="type", frozen=True):
    value: Count


class ThinkingTurns(msgspec.Struct, tag="thinking_turns", tag_field="type", frozen=True):
    value: Annotated[int, Meta(ge=1, le=limits.INT64_MAX)]


class AllTurns(msgspec.Struct, tag="all", tag_field="type", frozen=True):
    pass


class ClearToolUses(msgspec.Struct, tag="clear_tool_uses_20250919", tag_field="type", frozen=True):
    trigger: InputTokens | ToolUses | None = None
    """None: more than :data:`CLEARING_TOKENS`, or three quarters of a smaller context."""
    keep: ToolUses = ToolUses(3)
    clear_at_least: InputTokens | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None
    """Also the inputs of cleared calls: all, or those of the named tools."""


class ClearThinking(msgspec.Struct, tag="clear_thinking_20251015", tag_field="type", frozen=True):
    keep: ThinkingTurns | AllTurns | Literal["all"] = ThinkingTurns(1)


class Compact(msgspec.Struct, tag="compact_20260112", tag_field="type", frozen=True):
    trigger: InputTokens | None = None
    """None: more than :data:`COMPACTING_TOKENS`, or three quarters of a smaller context."""
    instructions: Annotated[str, Meta(min_length=1)] | None = None
    """In place of the server's wish for a summary."""
    pause_after_compaction: bool | None = None


class ContextManagement(msgspec.Struct, frozen=True):
    edits: Annotated[list[ClearToolUses | ClearThinking | Compact], Meta(max_length=MAX_EDITS)] = []

    def check(self) -> None:
        """Raises BadRequest for two edits of a kind."""
        kinds = [type(edit) for edit in self.edits]
        for index, kind in enumerate(kinds):
            if kind in kinds[:index]:
                raise wrong(f"context_management.edits[{index}].type", "must be another than those before it")

    @property
    def compact(self) -> Compact | None:
        return next((edit for edit in self.edits if isinstance(edit, Compact)), None)


class ToolUsesCleared(msgspec.Struct, tag="clear_tool_uses_20250919", tag_field="type", frozen=True):
    cleared_tool_uses: int
    cleared_input_tokens: int


class ThinkingCleared(msgspec.Struct, tag="clear_thinking_20251015", tag_field="type", frozen=True):
    cleared_thinking_turns: int
    cleared_input_tokens: int


class AppliedEdits(msgspec.Struct, frozen=True):
    """What was taken out of a conversation before it was answered; compaction shows as a block of the answer."""

    applied_edits: list[ToolUsesCleared | ThinkingCleared]


class OriginalTokens(msgspec.Struct, frozen=True):
    original_input_tokens: int
    """Tokens of the prompt without edits."""
