"""Encodes deltas as content blocks of a message, for whole messages and streams."""

import hashlib
import uuid
from base64 import b64encode
from typing import Literal

import msgspec

from stentor.protocols.anthropic.objects import GeneratedContent, TextContent, ThinkingContent, ToolUseContent
from stentor.protocols.ipc.deltas import Delta, Reasoning, Text, ToolCallArguments, ToolCallEnd, ToolCallStart

from ..common.object_text import ObjectText


class BlockStart(msgspec.Struct, frozen=True, gc=False):
    """A block begins; it has nothing in it yet."""

    index: int
    block: GeneratedContent


class BlockDelta(msgspec.Struct, frozen=True, gc=False):
    """More of the block that began last: of its text, its thinking, or the JSON of its input."""

    index: int
    text: str


class SignatureDelta(msgspec.Struct, frozen=True, gc=False):
    """The last of a block of thinking."""

    index: int
    signature: str


class BlockStop(msgspec.Struct, frozen=True, gc=False):
    index: int


BlockEvent = BlockStart | BlockDelta | SignatureDelta | BlockStop


ThinkingShown = Literal["whole", "empty", "never"]
"""How much thinking a client gets: all, empty blocks, or none."""


class Blocks:
    """The blocks of one choice, one after another.

    White space between two other blocks makes no block: it is held back until more text comes. ``first`` is the index
    of the first block.
    """

    def __init__(self, shown: ThinkingShown = "whole", first: int = 0) -> None:
        self._shown = shown
        self.open: type[GeneratedContent] | None = None
        """Type of the open block."""
        self._first = first
        self._index = first - 1
        self._held: list[str] = []
        self._digest = hashlib.sha256()
        self._input = ObjectText()
        self.calls = 0
        """Begun so far."""
        self.output_tokens = 0
        self.thinking_tokens = 0

    def take(self, delta: Delta) -> list[BlockEvent]:
        match delta:
            case Text():
                self.output_tokens += len(delta.tokens)
                return self._text(delta.text) if delta.text else []
            case Reasoning():
                self.output_tokens += len(delta.tokens)
                self.thinking_tokens += len(delta.tokens)
                return self._thinking(delta.text) if delta.text and self._shown != "never" else []
            case ToolCallStart():
                self._held.clear()
                self.calls += 1
                self._input = ObjectText()
                return self._begin(ToolUseContent(delta.id or f"toolu_{uuid.uuid4().hex[:24]}", delta.name, {}))
            case ToolCallArguments():
                text = self._input.take(delta.text)
                return [BlockDelta(self._index, text)] if text else []
            case ToolCallEnd():
                return self._close()
            case _:
                return []

    def end(self) -> list[BlockEvent]:
        """The rest, at the end of the deltas."""
        events: list[BlockEvent] = []
        if self._held and self._index < self._first:
            # the answer is white space alone
            events += [*self._begin(TextContent("")), BlockDelta(self._index, "".join(self._held))]
        return [*events, *self._close()]

    def _text(self, text: str) -> list[BlockEvent]:
        if self.open is TextContent:
            return [BlockDelta(self._index, text)]
        self._held.append(text)
        if text.isspace():
            return []
        events = [*self._begin(TextContent("")), BlockDelta(self._index, "".join(self._held))]
        self._held.clear()
        return events

    def _thinking(self, text: str) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        if self.open is not ThinkingContent:
            self._held.clear()
            self._digest = hashlib.sha256()
            events = self._begin(ThinkingContent("", ""))
        self._digest.update(text.encode())
        return events if self._shown == "empty" else [*events, BlockDelta(self._index, text)]

    def _begin(self, block: GeneratedContent) -> list[BlockEvent]:
        events = self._close()
        self._index += 1
        self.open = type(block)
        return [*events, BlockStart(self._index, block)]

    def _close(self) -> list[BlockEvent]:
        kind, self.open = self.open, None
        if kind is None:
            return []
        end = BlockStop(self._index)
        return [SignatureDelta(self._index, self._signature()), end] if kind is ThinkingContent else [end]

    def _signature(self) -> str:
        """A signature of the text, since clients expect one. It proves nothing: the client may change what it sends
        back."""
        return b64encode(self._digest.digest()).decode()
