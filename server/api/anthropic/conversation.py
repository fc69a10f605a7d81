"""Converts messages of blocks to messages of chat.

Blocks and messages do not correspond: in chat, tool results are separate messages, and thinking is a field of its
message. Neighbours of one role become one message, as with Anthropic.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, assert_never

from stentor.protocols.anthropic.content import (
    CompactionBlock,
    DocumentBlock,
    ImageBlock,
    InputBlock,
    InputMessage,
    RedactedThinkingBlock,
    SearchResultBlock,
    ServerToolUseBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from stentor.protocols.common.errors import refused, wrong
from stentor.protocols.openai.sampling import not_served

from .parts import BLOCKS_JOIN, Part, as_parts, block_parts, joined, refused_block

_REMINDER: Final = "<system-reminder>\n{}\n</system-reminder>"
"""Claude Code's own form for models that only take the first system message."""
_SUMMARY: Final = "<summary>\n{}\n</summary>"


def chat_messages(messages: Sequence[InputMessage]) -> tuple[list[str], list[dict[str, Any]]]:
    """Texts of the system messages in front, and the conversation; raises BadRequest naming the block at fault.

    A later system message stays in its place as text of the user's turn: many templates refuse one there, and in front
    it would change the beginning of a prompt that is in the prefix cache.
    """
    writer = _Writer()
    in_front: list[str] = []
    last_said = max((place for place, message in enumerate(messages) if message.role == "user"), default=-1)
    for place, message in enumerate(messages):
        where = f"messages[{place}].content"
        if message.output_config:
            raise not_served(f"messages[{place}].output_config")
        if message.clear_at == "next_user_message" and message.role == "system" and place < last_said:
            continue
        if message.role == "user":
            writer.user(message.blocks, where)
        elif message.role == "assistant":
            writer.assistant(message.blocks, where)
        elif writer.messages:
            writer.remind(_texts(message.blocks, where))
        else:
            in_front += _texts(message.blocks, where)
    writer.end(len(messages) - 1)
    return in_front, writer.messages


def _texts(blocks: Sequence[InputBlock], where: str) -> list[str]:
    """Raises BadRequest for blocks that are none."""
    texts = []
    for index, block in enumerate(blocks):
        if not isinstance(block, TextBlock):
            raise wrong(f"{where}[{index}].type", "must be `text`: a system message is text")
        if block.text:
            texts.append(block.text)
    return texts


class _Writer:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}
        """Function names of all calls so far, by id."""
        self._open: set[str] = set()
        """Ids of calls whose results have not come."""
        self._reminders: list[Part] = []
        """Texts of system messages that wait for these results."""
        self._asked: list[Part] = []
        """What the user said last."""

    def user(self, blocks: Sequence[InputBlock], where: str) -> None:
        if not blocks:
            raise wrong(where, "must hold at least one block")
        parts: list[Part] = []
        for index, block in enumerate(blocks):
            place = f"{where}[{index}]"
            match block:
                case TextBlock() | DocumentBlock() | ImageBlock() | SearchResultBlock():
                    parts += block_parts(block, place)
                case ToolResultBlock():
                    self._result(block, place)
                case ThinkingBlock() | RedactedThinkingBlock() | ToolUseBlock() | CompactionBlock():
                    raise refused(f"{place}.type", "such a block belongs to an assistant's message")
                case ServerToolUseBlock():
                    raise refused_block(block, place)
                case other:
                    assert_never(other)
        self._asked = parts or self._asked
        # behind the results, wherever the client put it: they answer the calls of the message before
        self._say_user(parts)

    def remind(self, texts: Sequence[str]) -> None:
        self._reminders += [_REMINDER.format(text) for text in texts]
        if not self._open:
            self._say_user([])

    def assistant(self, blocks: Sequence[InputBlock], where: str) -> None:
        self._say_user([])
        texts, thoughts, calls = [], [], []
        for index, block in enumerate(blocks):
            place = f"{where}[{index}]"
            match block:
                case TextBlock():
                    texts.append(block.text)
                case ThinkingBlock():
                    thoughts.append(block.thinking)
                case RedactedThinkingBlock():
                    pass
                case ToolUseBlock():
                    calls.append(self._call(block, place))
                case CompactionBlock(content=summary):
                    if summary is not None:
                        self._compact(summary)
                        texts, thoughts, calls = [], [], []
                case ToolResultBlock():
                    raise refused(f"{place}.type", "a result belongs to a user's message")
                case DocumentBlock() | ImageBlock() | SearchResultBlock() | ServerToolUseBlock():
                    raise refused_block(block, place)
                case other:
                    assert_never(other)
        if not (texts or thoughts or calls) and any(isinstance(block, CompactionBlock) for block in blocks):
            return
        message = self._say("assistant", ["".join(texts)])
        if thought := BLOCKS_JOIN.join(text for text in thoughts if text):
            before = message.get("reasoning_content")
            message["reasoning_content"] = thought if before is None else before + BLOCKS_JOIN + thought
        if calls:
            message.setdefault("tool_calls", []).extend(calls)

    def _compact(self, summary: str) -> None:
        """Everything so far becomes its summary and what the user said last, word for word: that is what is answered,
        and a summary may miss a part of it."""
        self.messages.clear()
        self._open.clear()
        self._say("user", [_SUMMARY.format(summary), *self._asked])

    def end(self, last: int) -> None:
        """Raises BadRequest where the conversation ends with calls: the model cannot go on without their results."""
        if self.messages and self.messages[-1].get("tool_calls"):
            raise wrong(f"messages[{last}]", "calls tools; a message of role `user` with their results must follow")

    def _say_user(self, parts: list[Part]) -> None:
        said = [*self._reminders, *parts]
        self._reminders = []
        if said:
            self._say("user", said)

    def _say(self, role: str, parts: list[Part]) -> dict[str, Any]:
        if self.messages and self.messages[-1]["role"] == role:
            message = self.messages[-1]
            message["content"] = joined([*as_parts(message["content"]), *parts])
        else:
            message = {"role": role, "content": joined(parts)}
            self.messages.append(message)
        return message

    def _call(self, block: ToolUseBlock, place: str) -> dict[str, Any]:
        if block.id in self._open:  # an id that has its result may come again: some models count from 0 in each turn
            raise refused(f"{place}.id", "there is a call with this id that has no result yet")
        self._names[block.id] = block.name
        self._open.add(block.id)
        arguments = json.dumps(block.input, ensure_ascii=False)
        return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}

    def _result(self, block: ToolResultBlock, place: str) -> None:
        if block.tool_use_id not in self._open:
            raise wrong(
                f"{place}.tool_use_id", "is the id of no `tool_use` block in front of it that still has no result"
            )
        self._open.remove(block.tool_use_id)
        if isinstance(block.content, str):
            parts: list[Part] = [block.content]
        else:
            place = f"{place}.content"
            found = enumerate(block.content or ())
            parts = [part for index, each in found for part in block_parts(each, f"{place}[{index}]")]
        self.messages.append(
            {
                "role": "tool",
                "tool_call_id": block.tool_use_id,
                "name": self._names[block.tool_use_id],
                "content": joined(_as_error(parts) if block.is_error else parts),
            }
        )


def _as_error(parts: list[Part]) -> list[Part]:
    first, rest = (parts[0], parts[1:]) if parts and isinstance(parts[0], str) else ("", parts)
    return [f"Error: {first}", *rest]
