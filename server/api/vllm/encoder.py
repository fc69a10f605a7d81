"""Deltas as answers of ``/inference/v1/generate``: their token ids, without their texts."""

import time
from collections.abc import AsyncIterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.deltas import Delta, Finish, PromptProcessed, Text
from stentor.protocols.ipc.steps import ExpertShape, TokenLogprobs
from stentor.protocols.openai.generate import TokensChoice, TokensChunk, TokensLogprobs, TokensResponse
from stentor.protocols.openai.usage import Usage

from ...common.errors import generation_error
from ...common.loop_turns import LoopTurns, Slices
from ...generation.logprobs import TokenNames, prompt_logprobs, tokens_logprobs
from ...generation.routed_experts import encoded_experts
from ...http.error_responses import error_frame
from ...http.sse import DONE, frame_of
from ...http.whole_answer import AnswerBudget, AnswerParts, JsonList, WholeAnswer, array
from ..common.collect import collect

_NOTHING: Final[list[int]] = []


class TokensShape(msgspec.Struct, frozen=True):
    """Facts about an answer before it is generated."""

    request_id: str
    model: str
    prompt_tokens: int
    n: int
    names: TokenNames
    logprobs: int | None = None
    """Alternatives at each position; None: no log-probabilities."""
    prompt_logprobs: int | None = None
    include_usage: bool = False
    experts: ExpertShape | None = None
    """Shape of the experts returned for each token; None: not returned."""
    ranked: bool = True
    """Whether the alternatives are the likeliest, best first; false: they are named ones."""


class _Logprobs:
    def __init__(self, shape: TokensShape, budget: AnswerBudget) -> None:
        self._shape = shape
        self.prompt = JsonList(budget)
        self.choices = [JsonList(budget) for _ in range(0 if shape.logprobs is None else shape.n)]

    def of_prompt(self, entries: Sequence[TokenLogprobs | None]) -> None:
        if self._shape.prompt_logprobs is not None:
            self.prompt.extend(prompt_logprobs(entries, self._shape.names, self._shape.prompt_logprobs))

    def of_choice(self, index: int, _tokens: Sequence[int], entries: Sequence[TokenLogprobs]) -> None:
        if self.choices:
            self.choices[index].extend(_sampled(entries, self._shape).content)


async def tokens_answer(
    shape: TokensShape, batches: AsyncIterable[list[Delta]], budget: AnswerBudget, loop_turns: LoopTurns
) -> WholeAnswer:
    """Reads ``batches`` to their end. Raises as :func:`..common.collect.collect` and
    :meth:`...http.whole_answer.AnswerBudget.add`."""
    written = _Logprobs(shape, budget)
    generation = await collect(batches, shape.n, logprobs=written)
    parts, slices = AnswerParts(budget), Slices(loop_turns)
    choices = []
    for index, choice in enumerate(generation.choices):
        finish, tokens = choice.finish, encode(choice.tokens)
        assert finish is not None
        experts = b"" if shape.experts is None else encoded_experts(finish.routed_experts, shape.experts)
        budget.add(len(tokens) + len(experts))
        await slices.did(len(tokens) + len(experts))
        choices.append(
            TokensChoice(
                index,
                TokensLogprobs(parts.place(array(written.choices[index]))) if written.choices else None,
                "length" if finish.reason == "length" else "stop",
                parts.place([tokens]),
                finish.stop_reason,
                parts.place([experts]) if experts else UNSET,
            )
        )
    ranked = None if shape.prompt_logprobs is None else parts.place(array(written.prompt))
    usage = Usage.of(shape.prompt_tokens, generation.completion_tokens, generation.cached_tokens)
    return parts.answer(TokensResponse(shape.request_id, shape.model, int(time.time()), choices, usage, ranked))


class TokensStream:
    """Encodes the batches of one generation as chunks; one object per response.

    After ``failed`` has become true nothing more may be sent.
    """

    def __init__(self, shape: TokensShape) -> None:
        self._shape = shape
        self._cached = 0
        self._count = 0
        self.failed = False

    def encode(self, batch: list[Delta]) -> bytes:
        """The chunks of one batch, joined."""
        frames = []
        for delta in batch:
            if type(delta) is Text and delta.tokens:
                self._count += len(delta.tokens)
                frames.append(self._chunk(TokensChoice(delta.index, self._logprobs(delta), None, delta.tokens)))
            elif type(delta) is PromptProcessed:
                self._cached = delta.cached_tokens
            elif type(delta) is Finish:
                if delta.reason != "stop" and delta.reason != "length":
                    self.failed = True
                    frames.append(error_frame(generation_error(delta)))
                    break
                frames.append(self._chunk(TokensChoice(delta.index, None, delta.reason, _NOTHING, delta.stop_reason)))
        return b"".join(frames)

    def end(self) -> bytes:
        if not self._shape.include_usage:
            return DONE
        usage = Usage.of(self._shape.prompt_tokens, self._count, self._cached)
        return frame_of(TokensChunk(self._shape.request_id, [], usage)) + DONE

    def _chunk(self, choice: TokensChoice) -> bytes:
        return frame_of(TokensChunk(self._shape.request_id, [choice]))

    def _logprobs(self, delta: Text) -> TokensLogprobs | None:
        return None if self._shape.logprobs is None else _sampled(delta.logprobs or (), self._shape)


def _sampled(entries: Sequence[TokenLogprobs], shape: TokensShape) -> TokensLogprobs:
    return tokens_logprobs(entries, shape.names, shape.logprobs or 0, ranked=shape.ranked)
