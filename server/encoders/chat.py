"""Deltas as chat completions: the whole response, and the stream of chunks."""

from dataclasses import dataclass

from msgspec import UNSET

from stentor.protocols.deltas import Delta, Finish, PromptProcessed, Text
from stentor.protocols.openai.chat import AssistantMessage, ChatChoice, ChatResponse
from stentor.protocols.openai.usage import Usage

from ..errors import GenerationFailed, error_frame
from ..sse import DONE
from .chunks import NULL, ChunkFrame, encode
from .collect import Choice, Generation
from .logprobs import TokenNames, chat_logprobs, prompt_logprobs


@dataclass(frozen=True)
class ChatShape:
    """What the client asked its answer to hold."""

    response_id: str
    created: int
    model: str
    prompt: list[int]
    n: int
    names: TokenNames
    top_logprobs: int | None = None
    """None: no log-probabilities."""
    prompt_logprobs: int | None = None
    token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


def chat_response(shape: ChatShape, generation: Generation) -> ChatResponse:
    wanted = shape.prompt_logprobs
    return ChatResponse(
        id=shape.response_id,
        created=shape.created,
        model=shape.model,
        choices=[_choice(shape, index, choice) for index, choice in enumerate(generation.choices)],
        usage=Usage.of(len(shape.prompt), generation.completion_tokens, generation.cached_tokens),
        prompt_logprobs=(
            UNSET if wanted is None else prompt_logprobs(generation.prompt_logprobs or [], shape.names, wanted)
        ),
        prompt_token_ids=shape.prompt if shape.token_ids else UNSET,
    )


def _choice(shape: ChatShape, index: int, choice: Choice) -> ChatChoice:
    finish = choice.finish
    assert finish is not None
    top = shape.top_logprobs
    return ChatChoice(
        index=index,
        message=AssistantMessage(choice.text),
        logprobs=None if top is None else chat_logprobs(choice.logprobs, shape.names, top),
        finish_reason="length" if finish.reason == "length" else "stop",
        stop_reason=finish.stop_reason,
        token_ids=choice.tokens if shape.token_ids else UNSET,
    )


class ChatStream:
    """Turns the batches of one generation into frames; one object per response.

    Each choice gets a chunk with its role, chunks of content, and one with its finish reason. After
    ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: ChatShape) -> None:
        self._shape = shape
        self._frame = ChunkFrame.of(
            "chat.completion.chunk",
            shape.response_id,
            shape.created,
            shape.model,
            shape.include_usage,
            shape.continuous_usage,
        )
        self._heads = [self._frame.head + b'{"index":%d,"delta":' % index for index in range(shape.n)]
        self._content_heads = [head + b'{"content":' for head in self._heads]
        self._plain = not (shape.continuous_usage or shape.token_ids or shape.top_logprobs is not None)
        self._plain_tail = b'},"logprobs":null,"finish_reason":null}' + self._frame.tail(self._usage_of(0, 0))
        self._completion_tokens = 0
        self._cached_tokens = 0
        self._opened = False
        self.failed = False

    def encode(self, batch: list[Delta]) -> bytes:
        """The frames of one batch, joined; empty while everything is held back."""
        frames = []
        for delta in batch:
            if type(delta) is Text:
                self._completion_tokens += len(delta.tokens)
                if not self._opened:
                    frames.append(self._open())
                if self._plain:
                    if delta.text:
                        frames.append(self._content_heads[delta.index] + encode(delta.text) + self._plain_tail)
                elif delta.text or delta.tokens:
                    frames.append(self._rich(delta))
            elif type(delta) is Finish:
                if not self._opened:
                    frames.append(self._open())
                if delta.reason not in ("stop", "length"):
                    self.failed = True
                    frames.append(error_frame(GenerationFailed()))
                    break
                frames.append(self._finish(delta))
            elif type(delta) is PromptProcessed:
                self._cached_tokens = delta.cached_tokens
                frames.append(self._open())
        return b"".join(frames)

    def end(self) -> bytes:
        """What follows the last choice's end."""
        return self._frame.last(self._usage()) + DONE

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        tail = self._frame.tail(self._usage())
        if self._shape.token_ids:
            tail = tail.replace(b"]", b'],"prompt_token_ids":' + encode(self._shape.prompt), 1)
        role = b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return b"".join(head + role + tail for head in self._heads)

    def _rich(self, delta: Text) -> bytes:
        """A chunk with whatever else was asked for: log-probabilities, token ids, usage so far."""
        shape = self._shape
        logprobs = NULL
        if shape.top_logprobs is not None and delta.tokens:
            logprobs = encode(chat_logprobs(delta.logprobs or (), shape.names, shape.top_logprobs))
        ids = b',"token_ids":' + encode(delta.tokens) if shape.token_ids else b""
        return b"".join(
            (
                self._content_heads[delta.index],
                encode(delta.text),
                b'},"logprobs":',
                logprobs,
                b',"finish_reason":null',
                ids,
                b"}",
                self._frame.tail(self._usage()),
            )
        )

    def _finish(self, delta: Finish) -> bytes:
        reason = encode("length" if delta.reason == "length" else "stop")
        body = b'{},"logprobs":null,"finish_reason":' + reason + b',"stop_reason":' + encode(delta.stop_reason) + b"}"
        return self._heads[delta.index] + body + self._frame.tail(self._usage())

    def _usage(self) -> Usage:
        return self._usage_of(self._completion_tokens, self._cached_tokens)

    def _usage_of(self, completion: int, cached: int) -> Usage:
        return Usage.of(len(self._shape.prompt), completion, cached)
