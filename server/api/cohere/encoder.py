"""Deltas as Cohere's answers: the whole one, and the stream of its events."""

from collections.abc import AsyncIterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from stentor.protocols.anthropic.objects import GeneratedContent, TextContent, ThinkingContent, ToolUseContent
from stentor.protocols.cohere.chat import (
    CohereCall,
    CohereChatResponse,
    CohereFunction,
    CohereLogprobs,
    CohereMessage,
    CohereTokens,
    CohereUsage,
    FinishReason,
    TextBlock,
    ThinkingBlock,
)
from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.deltas import Delta, Finish, PromptProcessed, Reasoning, Text
from stentor.protocols.ipc.steps import TokenLogprobs

from ...common.errors import generation_error
from ...generation.logprobs import TokenNames, finite
from ...http.error_responses import error_frame
from ...http.error_shapes import COHERE
from ...http.sse import DONE
from ..anthropic.blocks import BlockDelta, BlockEvent, Blocks, BlockStart, BlockStop

_NO_ARGUMENTS = "{}"


class ChatShape(msgspec.Struct, frozen=True):
    """Facts about an answer before it is generated."""

    id: str
    prompt_tokens: int
    names: TokenNames
    logprobs: bool = False
    thinking: bool = True
    """Whether reasoning is returned."""

    def scored(self, entries: Sequence[TokenLogprobs]) -> CohereLogprobs:
        return CohereLogprobs(
            "".join(self.names.name(entry.token) for entry in entries),
            [entry.token for entry in entries],
            [finite(entry.logprob) for entry in entries],
        )


class _Progress:
    """Progress of one answer. Its blocks are Anthropic's, which begin and end alike."""

    def __init__(self, shape: ChatShape) -> None:
        self.shape = shape
        self.blocks = Blocks("whole" if shape.thinking else "never")
        self.scored: list[TokenLogprobs] = []
        """Log-probabilities that are not told yet."""
        self.finish: Finish | None = None
        self._cached = 0

    def take(self, delta: Delta) -> list[BlockEvent]:
        match delta:
            case PromptProcessed():
                self._cached = delta.cached_tokens
            case Finish():
                self.finish = delta
            case Text() | Reasoning() if self.shape.logprobs:
                self.scored += delta.logprobs or ()
        return self.blocks.take(delta)

    def reason(self) -> FinishReason:
        """Raises as :func:`...common.errors.generation_error` says."""
        finish = self.finish
        if finish is None or finish.reason not in ("stop", "length"):
            raise generation_error(finish)
        if finish.reason == "length":
            return "MAX_TOKENS"
        if isinstance(finish.stop_reason, str):
            return "STOP_SEQUENCE"
        return "TOOL_CALL" if self.blocks.calls else "COMPLETE"

    def usage(self) -> CohereUsage:
        tokens = CohereTokens(self.shape.prompt_tokens, self.blocks.output_tokens)
        return CohereUsage(tokens, tokens, self._cached)


class _Gathered(msgspec.Struct):
    """One block with all that it grew by."""

    block: GeneratedContent
    pieces: list[str] = msgspec.field(default_factory=list)


async def whole_answer(shape: ChatShape, batches: AsyncIterable[list[Delta]]) -> CohereChatResponse:
    """Reads ``batches`` to their end. Raises as :func:`...common.errors.generation_error` says."""
    progress = _Progress(shape)
    gathered: list[_Gathered] = []
    logprobs: list[CohereLogprobs] = []
    async for batch in batches:
        for delta in batch:
            _gather(gathered, progress.take(delta))
            if progress.scored:
                logprobs.append(shape.scored(progress.scored))
                progress.scored = []
    reason = progress.reason()
    _gather(gathered, progress.blocks.end())
    content: list[TextBlock | ThinkingBlock] = []
    calls: list[CohereCall] = []
    for each in gathered:
        text = "".join(each.pieces)
        match each.block:
            case TextContent():
                content.append(TextBlock(text))
            case ThinkingContent():
                content.append(ThinkingBlock(text))
            case ToolUseContent(id=id, name=name):
                calls.append(CohereCall(id, CohereFunction(name, text or _NO_ARGUMENTS)))
    if not content and not calls:
        content.append(TextBlock(""))
    message = CohereMessage(content=content or UNSET, tool_calls=calls or UNSET)
    return CohereChatResponse(shape.id, reason, message, progress.usage(), logprobs if shape.logprobs else UNSET)


def _gather(gathered: list[_Gathered], events: list[BlockEvent]) -> None:
    for event in events:
        if isinstance(event, BlockStart):
            gathered.append(_Gathered(event.block))
        elif isinstance(event, BlockDelta):
            gathered[-1].pieces.append(event.text)


class ChatStream:
    """Turns the batches of one generation into events; one object per response.

    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: ChatShape) -> None:
        self._progress = _Progress(shape)
        self._begun = False
        self._block: GeneratedContent | None = None
        self._index = 0
        """Of the block among those of content, or among the calls."""
        self._contents = self._calls = 0
        self._grown = False
        """Whether the open block has anything in it."""
        self.failed = False

    def encode(self, batch: list[Delta]) -> bytes:
        """The events of one batch, joined; empty while everything is held back."""
        frames = [] if self._begun else [self._begin()]
        for delta in batch:
            if type(delta) is Finish and delta.reason not in ("stop", "length"):
                self.failed = True
                frames.append(error_frame(generation_error(delta), COHERE))
                break
            frames += map(self._frame, self._progress.take(delta))
        return b"".join(frames)

    def end(self) -> bytes:
        """Events behind the last delta."""
        progress = self._progress
        frames = [*map(self._frame, progress.blocks.end())]
        ended = {"finish_reason": progress.reason(), "usage": progress.usage()}
        return b"".join((*frames, _event("message-end", id=progress.shape.id, delta=ended), DONE))

    def _begin(self) -> bytes:
        self._begun = True
        empty = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        return _event("message-start", id=self._progress.shape.id, delta={"message": empty})

    def _frame(self, event: BlockEvent) -> bytes:
        match event:
            case BlockStart(block=block):
                return self._start(block)
            case BlockDelta(text=text):
                return self._growth(text)
            case BlockStop():
                return self._stop()
        return b""  # a signature is Anthropic's

    def _start(self, block: GeneratedContent) -> bytes:
        self._block, self._grown = block, False
        if isinstance(block, ToolUseContent):
            self._index, self._calls = self._calls, self._calls + 1
            call = CohereCall(block.id, CohereFunction(block.name, ""))
            return _event("tool-call-start", index=self._index, delta={"message": {"tool_calls": call}})
        self._index, self._contents = self._contents, self._contents + 1
        empty = TextBlock("") if isinstance(block, TextContent) else ThinkingBlock("")
        return _event("content-start", index=self._index, delta={"message": {"content": empty}})

    def _growth(self, text: str) -> bytes:
        self._grown = True
        if isinstance(self._block, ToolUseContent):
            call = {"function": {"arguments": text}}
            return _event("tool-call-delta", index=self._index, delta={"message": {"tool_calls": call}})
        content = {"text" if isinstance(self._block, TextContent) else "thinking": text}
        more: dict[str, Any] = {}
        if (progress := self._progress).scored:
            more["logprobs"], progress.scored = progress.shape.scored(progress.scored), []
        return _event("content-delta", index=self._index, delta={"message": {"content": content}}, **more)

    def _stop(self) -> bytes:
        if not isinstance(self._block, ToolUseContent):
            return _event("content-end", index=self._index)
        told = b"" if self._grown else self._growth(_NO_ARGUMENTS)
        return told + _event("tool-call-end", index=self._index)


def _event(kind: str, **fields: Any) -> bytes:
    return b"data: " + encode({"type": kind, **fields}) + b"\n\n"
