"""Deltas as answers of llama.cpp's server: the whole one, and the stream of its events."""

import math
import time
from collections.abc import AsyncIterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.deltas import Delta, Finish, PromptProcessed, Text
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.llama_cpp.objects import (
    DrawnProbability,
    LlamaCompletion,
    StopType,
    TokenProbability,
)
from stentor.protocols.openai.usage import Timings

from ...common.errors import generation_error
from ...generation.logprobs import TokenNames, finite
from ...http.error_responses import error_frame
from ...http.error_shapes import LLAMA_CPP
from ...http.sse import frame_of
from ..common.answer_clock import timings_of


class CompletionShape(msgspec.Struct, frozen=True):
    """Facts about an answer before it is generated."""

    model: str
    prompt_tokens: int
    names: TokenNames
    index: int = 0
    """Number of the prompt in the request."""
    probabilities: int = 0
    """Alternatives at each position; 0: no log-probabilities."""
    post_sampling: bool = False
    """Whether probabilities are written, of the tokens that could be sampled, in place of logarithms."""
    tokens: bool = False
    """Whether a whole answer has its tokens."""
    fields: Sequence[str] = ()
    """Paths of the fields of the last chunk, or of the whole answer; empty: all fields."""
    warm_up: bool = False
    """Whether the prompt is only computed; the token that ends that is not delivered."""

    def probabilities_of(self, entries: Sequence[TokenLogprobs]) -> list[DrawnProbability]:
        return [self._drawn(entry) for entry in entries]

    def _drawn(self, entry: TokenLogprobs) -> DrawnProbability:
        own, top = self._told(entry.token), entry.top[: self.probabilities]
        if self.post_sampling:
            possible = [(token, math.exp(value)) for token, value in top if value > -math.inf]
            others = [TokenProbability(*self._told(token), prob=value) for token, value in possible]
            return DrawnProbability(*own, prob=math.exp(entry.logprob), top_probs=others)
        others = [TokenProbability(*self._told(token), finite(value)) for token, value in top]
        return DrawnProbability(*own, finite(entry.logprob), top_logprobs=others)

    def _told(self, token: int) -> tuple[int, str, list[int]]:
        return token, self.names.name(token), list(self.names.raw(token))

    def chosen(self, answer: LlamaCompletion) -> LlamaCompletion | dict[str, Any]:
        """The fields of it that the client requested."""
        if not self.fields:
            return answer
        found: dict[str, Any] = {}
        for path in self.fields:
            value: Any = answer
            for name in path.split("/"):
                known = isinstance(value, msgspec.Struct) and name in value.__struct_fields__
                value = getattr(value, name) if known else UNSET
            if value is not UNSET:
                found[path] = value
        return found


class _Progress:
    """Progress of one answer."""

    def __init__(self, shape: CompletionShape) -> None:
        self._shape = shape
        self._began = time.monotonic()
        self._prefilled = 0.0
        self._cached = 0
        self._lines = False
        self.count = 0
        self.finish: Finish | None = None

    def take(self, delta: Delta) -> Text | None:
        """The client's part of a delta."""
        match delta:
            case Text() if self._shape.warm_up:
                return None
            case Text():
                self.count += len(delta.tokens)
                self._lines = self._lines or "\n" in delta.text
                return delta
            case PromptProcessed():
                self._began, self._prefilled = time.monotonic(), delta.prefill_seconds
                self._cached = delta.cached_tokens
            case Finish():
                self.finish = delta
            case _:
                pass  # of a text nothing is thought or called, and its prompt is not scored
        return None

    def chunk(self, text: str, tokens: list[int], **more: Any) -> LlamaCompletion:
        told = {"stop": False, "tokens_predicted": self.count, "tokens_evaluated": self._shape.prompt_tokens, **more}
        return LlamaCompletion(content=text, tokens=tokens, index=self._shape.index, **told)

    def last(self, text: str, tokens: list[int], probabilities: Any = UNSET) -> LlamaCompletion | dict[str, Any]:
        """Raises as :func:`...common.errors.generation_error` says."""
        finish, shape = self.finish, self._shape
        if finish is None or finish.reason not in ("stop", "length"):
            raise generation_error(finish)
        kind: StopType = "eos" if finish.reason == "stop" and not shape.warm_up else "limit"
        word = finish.stop_reason if isinstance(finish.stop_reason, str) else ""
        answer = self.chunk(
            text,
            tokens,
            stop=True,
            model=shape.model,
            stop_type="word" if word else kind,
            stopping_word=word,
            truncated=False,
            tokens_cached=shape.prompt_tokens + self.count,
            has_new_line=self._lines,
            timings=self._timings(),
            completion_probabilities=probabilities,
        )
        return shape.chosen(answer)

    def _timings(self) -> Timings:
        return timings_of(
            self._shape.prompt_tokens, self._cached, self.count, self._prefilled, time.monotonic() - self._began
        )


async def whole_completion(
    shape: CompletionShape, batches: AsyncIterable[list[Delta]]
) -> LlamaCompletion | dict[str, Any]:
    """Reads ``batches`` to their end. Raises as :func:`...common.errors.generation_error` says."""
    progress = _Progress(shape)
    texts: list[str] = []
    tokens: list[int] = []
    probabilities: list[DrawnProbability] = []
    async for batch in batches:
        for delta in batch:
            if (text := progress.take(delta)) is None:
                continue
            texts.append(text.text)
            if shape.tokens:
                tokens += text.tokens
            if shape.probabilities:
                probabilities += shape.probabilities_of(text.logprobs or ())
    return progress.last("".join(texts), tokens, probabilities if shape.probabilities else UNSET)


class CompletionStream:
    """Turns the batches of one generation into events; one object per response.

    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: CompletionShape) -> None:
        self._shape = shape
        self._progress = _Progress(shape)
        self._tokens: list[int] = []
        """Tokens since the last event."""
        self.failed = False

    @property
    def ended(self) -> bool:
        """Whether all deltas have come."""
        return self._progress.finish is not None

    def encode(self, batch: list[Delta]) -> bytes:
        """The events of one batch, joined; empty while everything is held back."""
        frames = []
        for delta in batch:
            text = self._progress.take(delta)
            if text is not None:
                self._tokens += text.tokens
                if text.text or self._shape.probabilities:
                    frames.append(self._frame(text))
            elif type(delta) is Finish and delta.reason not in ("stop", "length"):
                self.failed = True
                frames.append(error_frame(generation_error(delta), LLAMA_CPP))
                break
        return b"".join(frames)

    def end(self) -> bytes:
        """The event that follows the last delta."""
        return b"data: " + encode(self._progress.last("", self._tokens)) + b"\n\n"

    def _frame(self, text: Text) -> bytes:
        told: Any = UNSET
        if self._shape.probabilities:
            told = self._shape.probabilities_of(text.logprobs or ())
        tokens, self._tokens = self._tokens, []
        return frame_of(self._progress.chunk(text.text, tokens, completion_probabilities=told))


class MergedStream:
    """The same for the generations of several prompts, whose batches come with the number of their prompt."""

    def __init__(self, shapes: Sequence[CompletionShape]) -> None:
        self._streams = [CompletionStream(shape) for shape in shapes]
        self.failed = False

    def encode(self, batches: list[tuple[int, list[Delta]]]) -> bytes:
        """The events of the batches; the last event of a prompt comes with its last delta."""
        frames = []
        for number, batch in batches:
            stream = self._streams[number]
            frames.append(stream.encode(batch))
            if stream.failed:
                self.failed = True
                break
            if stream.ended:
                frames.append(stream.end())
        return b"".join(frames)

    def end(self) -> bytes:
        return b""
