"""``context_management``: takes old thinking and old results of tools out of a conversation before it is rendered.

Edits apply in their order, each to what those before it left, and none reaches in front of a compaction.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from stentor.protocols.anthropic.content import (
    CompactionBlock,
    InputBlock,
    InputMessage,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from stentor.protocols.anthropic.context_management import (
    CLEARING_TOKENS,
    ClearThinking,
    ClearToolUses,
    ContextManagement,
    InputTokens,
    ThinkingCleared,
    ThinkingTurns,
    ToolUsesCleared,
)

CLEARED: Final = "[This result was removed to save context.]"

Count = Callable[[Sequence[InputMessage]], Awaitable[int]]
"""Tokens of the prompt with these messages."""
_Thought = ThinkingBlock | RedactedThinkingBlock
_Place = tuple[int, int]
"""A message and a block of it."""
_Blocks = list[list[InputBlock]]


class Edited(msgspec.Struct, frozen=True):
    messages: list[InputMessage]
    applied: list[ToolUsesCleared | ThinkingCleared]


def tokens_or_share(trigger: InputTokens | None, usual: int, context: int) -> int:
    """The most tokens of a prompt that is left as it is: those of ``trigger``, or by default ``usual``, and then not
    more than three quarters of the context."""
    return min(usual, context * 3 // 4) if trigger is None else trigger.value


async def edit(messages: Sequence[InputMessage], asked: ContextManagement, count: Count, context: int) -> Edited:
    """``context``: the most tokens of a prompt and its answer. Raises as ``count``."""
    kept = [*messages]
    applied: list[ToolUsesCleared | ThinkingCleared] = []
    for each in asked.edits:
        if isinstance(each, ClearThinking):
            blocks, turns = _without_thinking(kept, each)
            if turns:
                edited = _with_blocks(kept, blocks)
                applied.append(ThinkingCleared(turns, await count(kept) - await count(edited)))
                kept = edited
        elif isinstance(each, ClearToolUses):
            blocks, uses = _without_results(kept, each)
            if not uses:
                continue
            before = await count(kept)
            if not isinstance(each.trigger, InputTokens | None) or before > tokens_or_share(
                each.trigger, CLEARING_TOKENS, context
            ):
                edited = _with_blocks(kept, blocks)
                cleared = before - await count(edited)
                if each.clear_at_least is None or cleared >= each.clear_at_least.value:
                    applied.append(ToolUsesCleared(uses, cleared))
                    kept = edited
    return Edited(kept, applied)


def _with_blocks(messages: Sequence[InputMessage], blocks: _Blocks) -> list[InputMessage]:
    pairs = zip(messages, blocks, strict=True)
    return [each if found == each.blocks else msgspec.structs.replace(each, content=found) for each, found in pairs]


def _in_force(messages: Sequence[InputMessage]) -> _Place:
    """The place from which a prompt is made: behind the last compaction."""
    for index in range(len(messages) - 1, -1, -1):
        for place in range(len(messages[index].blocks) - 1, -1, -1):
            block = messages[index].blocks[place]
            if isinstance(block, CompactionBlock) and block.content is not None:
                return index, place
    return 0, 0


def _without_thinking(messages: Sequence[InputMessage], asked: ClearThinking) -> tuple[_Blocks, int]:
    """The blocks of each message without the thinking of all turns but the last; and how many turns lost theirs.

    A turn is all that the assistant says, and calls, between two messages of the user.
    """
    blocks = [[*message.blocks] for message in messages]
    if not isinstance(asked.keep, ThinkingTurns):
        return blocks, 0
    begin, _ = _in_force(messages)
    turns: list[list[int]] = [[]]
    for index in range(begin, len(messages)):
        if messages[index].role == "assistant":
            if any(isinstance(block, _Thought) for block in blocks[index]):
                turns[-1].append(index)
        elif any(not isinstance(block, ToolResultBlock) for block in blocks[index]):
            turns.append([])
    old = [turn for turn in turns if turn][: -asked.keep.value]
    for index in (index for turn in old for index in turn):
        blocks[index] = [block for block in blocks[index] if not isinstance(block, _Thought)]
    return blocks, len(old)


def _without_results(messages: Sequence[InputMessage], asked: ClearToolUses) -> tuple[_Blocks, int]:
    """The blocks of each message with all results replaced but the last and those of excluded tools; and how many were.

    None if ``trigger`` counts calls and there are not more of them.
    """
    blocks = [[*message.blocks] for message in messages]
    calls = _calls(messages, _in_force(messages))
    if not isinstance(asked.trigger, InputTokens | None) and len(calls) <= asked.trigger.value:
        return blocks, 0
    inputs = asked.clear_tool_inputs
    uses = 0
    for use, (index, place), (result_index, result_place) in calls[: len(calls) - min(asked.keep.value, len(calls))]:
        result = blocks[result_index][result_place]
        assert isinstance(result, ToolResultBlock)
        if use.name in (asked.exclude_tools or ()) or result.content == CLEARED:
            continue
        uses += 1
        blocks[result_index][result_place] = msgspec.structs.replace(result, content=CLEARED)
        if inputs is True or (isinstance(inputs, list) and use.name in inputs):
            blocks[index][place] = msgspec.structs.replace(use, input={})
    return blocks, uses


def _calls(messages: Sequence[InputMessage], begin: _Place) -> list[tuple[ToolUseBlock, _Place, _Place]]:
    """The calls that have results, in their order: each with its place, and that of its result."""
    found: list[tuple[ToolUseBlock, _Place, _Place]] = []
    waiting: dict[str, tuple[ToolUseBlock, _Place]] = {}
    for index in range(begin[0], len(messages)):
        for place, block in enumerate(messages[index].blocks):
            if (index, place) < begin:
                continue
            if isinstance(block, ToolUseBlock):
                waiting[block.id] = block, (index, place)
            elif isinstance(block, ToolResultBlock) and block.tool_use_id in waiting:
                found.append((*waiting.pop(block.tool_use_id), (index, place)))
    return sorted(found, key=lambda call: call[1])
