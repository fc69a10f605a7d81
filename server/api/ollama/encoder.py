"""Deltas as Ollama's answers: the whole one, and the stream of its lines."""

import time
from collections.abc import AsyncIterable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

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
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.ollama.objects import (
    DoneReason,
    MadeCall,
    MadeFunction,
    OllamaAnswer,
    OllamaChatResponse,
    OllamaGenerateResponse,
)

from ...common.errors import generation_error
from ...generation.logprobs import TokenNames, chat_logprobs
from ...http.error_responses import error_frame
from ...http.error_shapes import OLLAMA
from ...http.whole_answer import AnswerBudget, JsonList
from ..chat.shape import call_id
from ..common.collect import Call
from ..common.object_text import object_of

NANOSECONDS: Final = 1_000_000_000


class AnswerShape(msgspec.Struct, frozen=True):
    """Facts about an answer before it is generated."""

    kind: Literal["chat", "generate"]
    model: str
    """The client's name of the model."""
    prompt_tokens: int
    arrival: float
    """Arrival of the request, by ``time.monotonic()``."""
    names: TokenNames
    top_logprobs: int | None = None
    """None: no log-probabilities."""
    thinking: bool = True
    """Whether reasoning is returned."""

    def answer(
        self,
        text: str = "",
        thinking: str = "",
        calls: list[MadeCall] | None = None,
        logprobs: Any = UNSET,
        **ending: Any,
    ) -> OllamaChatResponse | OllamaGenerateResponse:
        """A whole answer, or a chunk; ``ending`` has the fields of the last one."""
        common: dict[str, Any] = {"done": False, "logprobs": logprobs, **ending}
        thoughts = thinking or UNSET
        if self.kind == "generate":
            return OllamaGenerateResponse(
                model=self.model, created_at=rfc3339(time.time()), response=text, thinking=thoughts, **common
            )
        message = OllamaAnswer(text, thoughts, calls or UNSET)
        return OllamaChatResponse(model=self.model, created_at=rfc3339(time.time()), message=message, **common)

    def loaded(self, reason: DoneReason) -> OllamaChatResponse | OllamaGenerateResponse:
        """The answer to a request without a prompt."""
        return self.answer(done=True, done_reason=reason)

    def line(self) -> bytes:
        """An empty chunk of a running answer."""
        return encode(self.answer()) + b"\n"


class _Piece(msgspec.Struct, frozen=True):
    """Addition of one delta to an answer."""

    text: str = ""
    thinking: str = ""
    call: MadeCall | None = None
    logprobs: list[TokenLogprobs] | None = None


class _Progress:
    """Progress and durations of one answer."""

    def __init__(self, shape: AnswerShape) -> None:
        self._shape = shape
        self._call: Call | None = None
        self._calls = 0
        self._tokens = 0
        self._waited = self._prefilled = 0.0
        self._began = shape.arrival
        self.finish: Finish | None = None

    def take(self, delta: Delta) -> _Piece | None:
        """The client's part of a delta."""
        match delta:
            case Text():
                self._tokens += len(delta.tokens)
                return _Piece(delta.text, logprobs=delta.logprobs)
            case Reasoning():
                self._tokens += len(delta.tokens)
                return _Piece(thinking=delta.text, logprobs=delta.logprobs) if self._shape.thinking else None
            case ToolCallStart():
                self._call = Call(delta.name, delta.id)
            case ToolCallArguments():
                assert self._call is not None
                self._call.pieces.append(delta.text)
            case ToolCallEnd():
                return _Piece(call=self._called())
            case PromptProcessed():
                self._waited, self._prefilled = delta.queue_seconds, delta.prefill_seconds
                self._began = time.monotonic()
            case Finish():
                self.finish = delta
            case _:
                pass  # log-probabilities of prompts are not requested
        return None

    def _called(self) -> MadeCall:
        """The call that has just ended; a truncated call is not returned."""
        call = self._call
        assert call is not None
        self._calls += 1
        function = MadeFunction(self._calls - 1, call.name, object_of(call.arguments))
        return MadeCall(call_id(call.id), function)

    def ending(self) -> dict[str, Any]:
        """Raises as :func:`...common.errors.generation_error` says."""
        finish = self.finish
        if finish is None or finish.reason not in ("stop", "length"):
            raise generation_error(finish)
        now = time.monotonic()
        return {
            "done": True,
            "done_reason": finish.reason,
            "total_duration": nanoseconds(now - self._shape.arrival),
            "load_duration": nanoseconds(self._waited),
            "prompt_eval_count": self._shape.prompt_tokens,
            "prompt_eval_duration": nanoseconds(self._prefilled),
            "eval_count": self._tokens,
            "eval_duration": nanoseconds(now - self._began),
        }


async def whole_answer(
    shape: AnswerShape, batches: AsyncIterable[list[Delta]], budget: AnswerBudget
) -> OllamaChatResponse | OllamaGenerateResponse:
    """Reads ``batches`` to their end. Raises as :func:`...common.errors.generation_error` says, and
    :meth:`...http.whole_answer.AnswerBudget.add`."""
    progress = _Progress(shape)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[MadeCall] = []
    logprobs = JsonList(budget)
    async for batch in batches:
        for delta in batch:
            piece = progress.take(delta)
            if piece is None:
                continue
            texts.append(piece.text)
            thoughts.append(piece.thinking)
            if piece.call is not None:
                calls.append(piece.call)
            if shape.top_logprobs is not None and piece.logprobs:
                logprobs.extend(chat_logprobs(piece.logprobs, shape.names, shape.top_logprobs).content)
    told = UNSET if shape.top_logprobs is None else logprobs.taken()
    return shape.answer("".join(texts), "".join(thoughts), calls, told, **progress.ending())


class AnswerStream:
    """Turns the batches of one generation into lines; one object per response.

    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: AnswerShape) -> None:
        self._shape = shape
        self._progress = _Progress(shape)
        self.failed = False

    def encode(self, batch: list[Delta]) -> bytes:
        """The lines of one batch, joined; empty while everything is held back."""
        lines = []
        for delta in batch:
            piece = self._progress.take(delta)
            if piece is not None and (told := self._answer(piece)) is not None:
                lines.append(encode(told) + b"\n")
            elif type(delta) is Finish and delta.reason not in ("stop", "length"):
                self.failed = True
                lines.append(error_frame(generation_error(delta), OLLAMA))
                break
        return b"".join(lines)

    def end(self) -> bytes:
        """The line that follows the last delta."""
        return encode(self._shape.answer(**self._progress.ending())) + b"\n"

    def _answer(self, piece: _Piece) -> OllamaChatResponse | OllamaGenerateResponse | None:
        """None if there is nothing to send."""
        shape = self._shape
        logprobs: Any = UNSET
        if shape.top_logprobs is not None and piece.logprobs:
            logprobs = chat_logprobs(piece.logprobs, shape.names, shape.top_logprobs).content
        calls = None if piece.call is None else [piece.call]
        if not (piece.text or piece.thinking or calls or logprobs):
            return None
        return shape.answer(piece.text, piece.thinking, calls, logprobs)


def rfc3339(seconds: float) -> str:
    """Since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return int(seconds * NANOSECONDS)
