"""Deltas as Anthropic's messages: the whole message, and the stream of its events."""

from collections.abc import AsyncIterable
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from stentor.protocols.anthropic.context_management import AppliedEdits
from stentor.protocols.anthropic.objects import (
    CompactionContent,
    Content,
    GeneratedContent,
    IterationUsage,
    Message,
    MessageUsage,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolUseContent,
)
from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.deltas import Delta, Finish, PromptProcessed, Text

from ...common.errors import generation_error
from ...http.error_responses import error_frame
from ...http.error_shapes import ANTHROPIC
from ..common.object_text import object_of
from .blocks import BlockDelta, BlockEvent, Blocks, BlockStart, BlockStop, SignatureDelta, ThinkingShown
from .compaction import Compaction

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA_HEAD: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
_GROWTH: Final[dict[type[GeneratedContent], bytes]] = {
    TextContent: b'{"type":"text_delta","text":',
    ThinkingContent: b'{"type":"thinking_delta","thinking":',
    ToolUseContent: b'{"type":"input_json_delta","partial_json":',
}
_DELTA_TAIL: Final = b"}}\n\n"


class MessageShape(msgspec.Struct, frozen=True):
    """Facts about an answer before it is generated."""

    message_id: str
    model: str
    prompt_tokens: int
    in_context: bool
    """The client asked for more tokens than fit: the answer ends where the context does."""
    thinking: ThinkingShown = "whole"
    warm_up: bool = False
    """The client asked for no tokens: its prompt is cached, and sampled tokens are dropped."""
    compaction: Compaction | None = None
    """The conversation was summarised: the answer begins with the summary."""
    applied: AppliedEdits | UnsetType = UNSET
    """Edits of a request with ``context_management``."""

    @property
    def begun(self) -> list[Content]:
        """Blocks in front of those that the model writes for the answer."""
        return [] if self.compaction is None else [CompactionContent(self.compaction.summary)]


class _Progress:
    """Progress of one answer: its blocks, and its message's fields."""

    def __init__(self, shape: MessageShape) -> None:
        self.shape = shape
        self.blocks = Blocks(shape.thinking, len(shape.begun))
        self.cached_tokens = 0

    def take(self, delta: Delta) -> list[BlockEvent]:
        return [] if self.shape.warm_up else self.blocks.take(delta)

    def usage(self) -> MessageUsage:
        prompt, cached, output = self.shape.prompt_tokens, self.cached_tokens, self.blocks.output_tokens
        usage = MessageUsage.of(prompt, cached, output, self.blocks.thinking_tokens)
        if (compaction := self.shape.compaction) is None:
            return usage
        iterations = [compaction.usage, IterationUsage.of("message", prompt, cached, output)]
        return msgspec.structs.replace(usage, iterations=iterations)

    def ending(self, finish: Finish) -> tuple[StopReason, str | None]:
        if self.shape.warm_up:
            return "max_tokens", None
        if finish.reason == "length":
            return ("model_context_window_exceeded" if self.shape.in_context else "max_tokens"), None
        if isinstance(finish.stop_reason, str):
            return "stop_sequence", finish.stop_reason
        return ("tool_use" if self.blocks.calls else "end_turn"), None

    def message(self, content: list[Content], finish: Finish | None) -> Message:
        reason, sequence = (None, None) if finish is None else self.ending(finish)
        shape = self.shape
        return Message(shape.message_id, shape.model, content, reason, sequence, self.usage(), shape.applied)


async def whole_message(shape: MessageShape, batches: AsyncIterable[list[Delta]]) -> Message:
    """Reads ``batches`` to their end. Raises as :func:`...common.errors.generation_error` says."""
    progress = _Progress(shape)
    gathered: list[_Gathered] = []
    finish: Finish | None = None
    async for batch in batches:
        for delta in batch:
            if type(delta) is PromptProcessed:
                progress.cached_tokens = delta.cached_tokens
            elif type(delta) is Finish:
                finish = delta
            else:
                _gather(gathered, progress.take(delta))
    if finish is None or finish.reason not in ("stop", "length"):
        raise generation_error(finish)
    _gather(gathered, progress.blocks.end())
    return progress.message([*shape.begun, *(block.content() for block in gathered)], finish)


def paused_message(shape: MessageShape, compaction: Compaction) -> Message:
    """The answer to a client that wants to see the summary before the conversation goes on."""
    usage = msgspec.structs.replace(MessageUsage.of(0, 0, 0, 0), iterations=[compaction.usage])
    return Message(shape.message_id, shape.model, shape.begun, "compaction", None, usage, shape.applied)


def paused_stream(shape: MessageShape, compaction: Compaction) -> bytes:
    """The same as events."""
    whole = paused_message(shape, compaction)
    begun = msgspec.structs.replace(whole, content=[], stop_reason=None, context_management=UNSET)
    return b"".join((_frame("message_start", {"message": begun}), *_compaction_frames(compaction), _ended(whole)))


class _Gathered:
    """One block with all that it grew by."""

    def __init__(self, block: GeneratedContent) -> None:
        self._block = block
        self.pieces: list[str] = []
        self.signature = ""

    def content(self) -> GeneratedContent:
        text = "".join(self.pieces)
        match self._block:
            case TextContent():
                return TextContent(text)
            case ThinkingContent():
                return ThinkingContent(text, self.signature)
            case ToolUseContent(id=id, name=name):
                return ToolUseContent(id, name, object_of(text))


def _gather(gathered: list[_Gathered], events: list[BlockEvent]) -> None:
    for event in events:
        match event:
            case BlockStart():
                gathered.append(_Gathered(event.block))
            case BlockDelta():
                gathered[-1].pieces.append(event.text)
            case SignatureDelta():
                gathered[-1].signature = event.signature
            case BlockStop():
                pass


class MessageStream:
    """Turns the batches of one generation into frames; one object per response.

    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: MessageShape) -> None:
        self._progress = _Progress(shape)
        self._begun = False
        self._head = b""
        """Common prefix of the open block's delta events."""
        self._finish: Finish | None = None
        self.failed = False

    def encode(self, batch: list[Delta]) -> bytes:
        """The frames of one batch, joined; empty while everything is held back."""
        frames = []
        blocks = self._progress.blocks
        for delta in batch:
            if type(delta) is Text and blocks.open is TextContent:
                # as below, in a third of the time: nearly all deltas are this one
                blocks.output_tokens += len(delta.tokens)
                if delta.text:
                    frames.append(self._head + encode(delta.text) + _DELTA_TAIL)
                continue
            if type(delta) is PromptProcessed:
                self._progress.cached_tokens = delta.cached_tokens
            if not self._begun:
                frames.append(self._begin())
            if type(delta) is not Finish:
                frames += map(self._frame, self._progress.take(delta))
            elif delta.reason in ("stop", "length"):
                self._finish = delta
            else:
                self.failed = True
                frames.append(error_frame(generation_error(delta), ANTHROPIC))
                break
        return b"".join(frames)

    def end(self) -> bytes:
        """Events behind the last delta."""
        progress = self._progress
        frames = [*map(self._frame, progress.blocks.end())]
        assert self._finish is not None
        return b"".join((*frames, _ended(progress.message([], self._finish))))

    def _begin(self) -> bytes:
        self._begun = True
        begun = msgspec.structs.replace(self._progress.message([], None), context_management=UNSET)
        compaction = self._progress.shape.compaction
        return b"".join((_frame("message_start", {"message": begun}), PING, *_compaction_frames(compaction)))

    def _frame(self, event: BlockEvent) -> bytes:
        match event:
            case BlockDelta():
                return self._head + encode(event.text) + _DELTA_TAIL
            case BlockStart():
                self._head = _DELTA_HEAD % event.index + _GROWTH[type(event.block)]
                return _frame("content_block_start", {"index": event.index, "content_block": event.block})
            case SignatureDelta():
                signed = {"type": "signature_delta", "signature": event.signature}
                return _DELTA_HEAD % event.index + encode(signed) + b"}\n\n"
            case BlockStop():
                return _frame("content_block_stop", {"index": event.index})


def _ended(message: Message) -> bytes:
    """The events behind the last block; the message's blocks do not matter."""
    delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
    fields: dict[str, Any] = {"delta": delta, "usage": message.usage}
    if message.context_management is not UNSET:
        fields["context_management"] = message.context_management
    return _frame("message_delta", fields) + _STOP


def _compaction_frames(compaction: Compaction | None) -> list[bytes]:
    """The block of a compaction, which is the first."""
    if compaction is None:
        return []
    block = {"index": 0, "content_block": CompactionContent(None)}
    delta = {"index": 0, "delta": {"type": "compaction_delta", "content": compaction.summary}}
    return [
        _frame("content_block_start", block),
        _frame("content_block_delta", delta),
        _frame("content_block_stop", {"index": 0}),
    ]


def _frame(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"
