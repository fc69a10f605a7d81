"""Deltas as the chunks of a streamed chat completion."""

from typing import Any, Final

from msgspec import UNSET, UnsetType

from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.deltas import (
    Delta,
    Finish,
    PromptProcessed,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from stentor.protocols.openai.usage import Timings, Usage

from ...common.errors import generation_error
from ...http.error_responses import error_frame
from ...http.sse import DONE
from ..common.answer_clock import AnswerClock
from ..common.chunks import NULL
from .shape import ChatShape, call_id

_HOLE: Final = b"\0"
"""No encoded JSON has this byte."""


class ChatStream:
    """Turns the batches of one generation into frames; one object per response.

    Each choice gets a chunk with its role, chunks of reasoning, content and calls, and one with its finish reason.
    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: ChatShape) -> None:
        self._shape = shape
        self._frame = shape.frame("chat.completion.chunk")
        self._heads = [self._frame.head + b'{"index":%d,"delta":' % index for index in range(shape.n)]
        self._plain = not (shape.continuous_usage or shape.timings or shape.token_ids or shape.top_logprobs is not None)
        # a message that only calls tools has no content, which is not known yet
        offers = shape.tools.mode != "none"
        self._role = b'{"role":"assistant"' + _field(b"content", None if offers else "") + b"}"
        self._silent = set(range(shape.n)) if offers else set[int]()
        """Choices whose content is null so far."""
        self._called: set[int] = set()
        """Choices with a call."""
        self._unfinished: set[int] = set()
        """Choices whose last call is incomplete."""
        self._custom_calls: set[tuple[int, int]] = set()
        """Choice and number of each call of a custom tool."""
        self._completion_tokens = 0
        self._reasoning_tokens = 0
        self._cached_tokens = 0
        self._opened = False
        self._clock = AnswerClock() if shape.metrics or shape.timings else None
        self.failed = False
        self._end = self._frame.tail(self._usage())[1:]
        """The end of each chunk behind the bracket of its choices, if neither usage nor timings are part of it."""
        # A plain token costs one encoded string between the constant parts of its chunk.
        self._plain_tail = self._chunk(0, _HOLE).partition(_HOLE)[2]
        self._content_heads = [head + b'{"content":' for head in self._heads]
        self._content_tail = b"}" + self._plain_tail

    def encode(self, batch: list[Delta]) -> bytes:
        """The frames of one batch, joined; empty while everything is held back."""
        if self._clock is not None:
            self._clock.take(batch)
        frames = []
        for delta in batch:
            if type(delta) is Text:
                self._completion_tokens += len(delta.tokens)
                if not self._opened:
                    frames.append(self._open())
                if self._silent and delta.text:
                    self._silent.discard(delta.index)
                if self._plain:
                    if delta.text:
                        frames.append(self._content_heads[delta.index] + encode(delta.text) + self._content_tail)
                elif delta.text or delta.tokens:
                    content = b'{"content":' + encode(delta.text) + b"}" if delta.text else b"{}"
                    frames.append(self._rich(delta, content))
            elif type(delta) is Reasoning:
                frames.append(self._reason(delta))
            elif type(delta) is ToolCallStart:
                frames.append(self._begin_call(delta))
            elif type(delta) is ToolCallArguments:
                frames.append(self._continue_call(delta))
            elif type(delta) is ToolCallEnd:
                self._unfinished.discard(delta.index)
            elif type(delta) is Finish:
                if not self._opened:
                    frames.append(self._open())
                if delta.reason not in ("stop", "length"):
                    self.failed = True
                    frames.append(error_frame(generation_error(delta)))
                    break
                frames.append(self._finish(delta))
            elif type(delta) is PromptProcessed:
                self._cached_tokens = delta.cached_tokens
                frames.append(self._open())
        return b"".join(frames)

    def end(self) -> bytes:
        """Chunks behind the end of the last choice."""
        wanted = self._clock if self._shape.metrics else None
        metrics = UNSET if wanted is None else wanted.metrics(self._completion_tokens)
        return self._frame.last(self._usage(), metrics) + DONE

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        shape = self._shape
        prompt = b"" if shape.prompt_text is None else _field(b"prompt_text", shape.prompt_text)
        if shape.token_ids:
            prompt += _field(b"prompt_token_ids", shape.prompt)
        opening = b"".join(self._chunk(index, self._role, in_chunk=prompt) for index in range(shape.n))
        if not shape.echo:
            return opening
        self._silent.clear()
        echo = b'{"content":' + encode(shape.echo) + b"}"
        return opening + b"".join(self._chunk(index, echo) for index in range(shape.n))

    def _reason(self, delta: Reasoning) -> bytes:
        self._completion_tokens += len(delta.tokens)
        self._reasoning_tokens += len(delta.tokens)
        opening = self._open()
        if not self._shape.include_reasoning:
            return opening
        if not delta.text and (self._plain or not delta.tokens):
            return opening
        shown = b"{}"
        if delta.text:
            text = encode(delta.text)
            shown = b'{"reasoning":' + text + b',"reasoning_content":' + text + b"}"
        if self._plain:
            return opening + self._heads[delta.index] + shown + self._plain_tail
        return opening + self._rich(delta, shown)

    def _begin_call(self, delta: ToolCallStart) -> bytes:
        opening = self._open()
        self._called.add(delta.index)
        self._unfinished.add(delta.index)
        name = encode(delta.name)
        if self._shape.tools.legacy:
            if delta.call:
                return opening
            return opening + self._chunk(delta.index, b'{"function_call":{"name":' + name + b',"arguments":""}}')
        kind, field = self._kind(delta.index, delta.call, delta.name in self._shape.tools.custom)
        start = b'{"index":%d,"id":' % delta.call + encode(call_id(delta.id)) + b',"type":"' + kind + b'","' + kind
        call = start + b'":{"name":' + name + b',"' + field + b'":""}}'
        return opening + self._chunk(delta.index, b'{"tool_calls":[' + call + b"]}")

    def _continue_call(self, delta: ToolCallArguments) -> bytes:
        text = encode(delta.text)
        if self._shape.tools.legacy:
            return b"" if delta.call else self._chunk(delta.index, b'{"function_call":{"arguments":' + text + b"}}")
        kind, field = self._kind(delta.index, delta.call)
        call = b'{"index":%d,"' % delta.call + kind + b'":{"' + field + b'":' + text + b"}}"
        return self._chunk(delta.index, b'{"tool_calls":[' + call + b"]}")

    def _kind(self, index: int, call: int, custom: bool | None = None) -> tuple[bytes, bytes]:
        """Type of a call, and the field of its arguments."""
        if custom:
            self._custom_calls.add((index, call))
        return (b"custom", b"input") if (index, call) in self._custom_calls else (b"function", b"arguments")

    def _rich(self, delta: Text | Reasoning, shown: bytes) -> bytes:
        """A chunk with further requested fields: log-probabilities, token ids, usage so far."""
        shape = self._shape
        logprobs = NULL
        if shape.top_logprobs is not None and delta.tokens:
            logprobs = encode(shape.logprobs(delta.logprobs or ()))
        ids = _field(b"token_ids", delta.tokens) if shape.token_ids else b""
        return self._chunk(delta.index, shown, logprobs=logprobs, in_choice=ids)

    def _finish(self, delta: Finish) -> bytes:
        index = delta.index
        reason = self._shape.finish_reason(delta, index in self._called, index not in self._unfinished)
        # without content and calls it is empty, as in a whole answer
        content = b'{"content":""}' if index in self._silent - self._called else b"{}"
        return self._chunk(index, content, reason=encode(reason), in_choice=_field(b"stop_reason", delta.stop_reason))

    def _chunk(
        self,
        index: int,
        delta: bytes,
        *,
        logprobs: bytes = NULL,
        reason: bytes = NULL,
        in_choice: bytes = b"",
        in_chunk: bytes = b"",
    ) -> bytes:
        """One frame with one choice; all chunks are made here, or of what this makes around a hole::

            data: {"id":…,"choices":[{"index":…,"delta":DELTA,"logprobs":LOGPROBS,"finish_reason":REASON IN_CHOICE}]
            IN_CHUNK,"usage":…}

        ``delta``, ``logprobs`` and ``reason`` are whole JSON values; ``in_choice`` and ``in_chunk`` are results of
        :func:`_field`. Then the frame is one JSON object, whatever the texts are.
        """
        end = self._growing_end() if self._shape.continuous_usage or self._shape.timings else self._end
        rest = b',"logprobs":' + logprobs + b',"finish_reason":' + reason + in_choice + b"}]" + in_chunk
        return self._heads[index] + delta + rest + end

    def _growing_end(self) -> bytes:
        timings: Timings | UnsetType = UNSET
        if self._clock is not None and self._shape.timings:
            timings = self._clock.timings(len(self._shape.prompt), self._completion_tokens)
        return self._frame.tail(self._usage(), timings)[1:]

    def _usage(self) -> Usage:
        return Usage.of(
            len(self._shape.prompt),
            self._completion_tokens,
            self._cached_tokens,
            self._reasoning_tokens,
            self._shape.media_tokens,
        )


def _field(name: bytes, value: Any) -> bytes:
    """A field of an object that has some already."""
    return b',"' + name + b'":' + encode(value)
