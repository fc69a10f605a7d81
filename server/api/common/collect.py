"""A whole generation gathered from its deltas, for responses that are not streamed."""

from collections.abc import AsyncIterable, Sequence
from typing import Protocol, assert_never

import msgspec

from stentor.protocols.ipc.deltas import (
    Delta,
    Finish,
    PromptLogprobs,
    PromptProcessed,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from stentor.protocols.ipc.steps import TokenLogprobs

from ...common.errors import GenerationFailed, generation_error
from .answer_clock import AnswerClock


class Call(msgspec.Struct):
    """One call of a tool."""

    name: str
    id: str | None
    """The model's id for the call, if it wrote one."""
    pieces: list[str] = msgspec.field(default_factory=list)
    ended: bool = False
    """False if the output was truncated inside the call."""

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class CollectedChoice(msgspec.Struct):
    pieces: list[str] = msgspec.field(default_factory=list)
    reasoning: list[str] = msgspec.field(default_factory=list)
    calls: list[Call] = msgspec.field(default_factory=list)
    tokens: list[int] = msgspec.field(default_factory=list)
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    finish: Finish | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def thoughts(self) -> str:
        return "".join(self.reasoning)


class CollectedGeneration(msgspec.Struct):
    """All choices over one prompt."""

    choices: list[CollectedChoice]
    cached_tokens: int = 0
    clock: AnswerClock = msgspec.field(default_factory=AnswerClock)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.completion_tokens for choice in self.choices)

    @property
    def reasoning_tokens(self) -> int:
        """Completion tokens of reasoning."""
        return sum(choice.reasoning_tokens for choice in self.choices)


class LogprobsWriter(Protocol):
    """Writes log-probabilities down as they come: as objects they would take several times the room."""

    def of_prompt(self, entries: Sequence[TokenLogprobs | None], /) -> None:
        """Adds log-probabilities of the prompt's next tokens."""

    def of_choice(self, index: int, tokens: Sequence[int], entries: Sequence[TokenLogprobs], /) -> None:
        """Adds log-probabilities of a choice's next tokens."""


class Collector:
    """Collects a generation, batch by batch.

    Without ``thoughts``, reasoning and its tokens are counted and dropped; without ``token_ids`` all tokens are.
    """

    def __init__(
        self, n: int, *, thoughts: bool = True, token_ids: bool = True, logprobs: LogprobsWriter | None = None
    ) -> None:
        self._generation = CollectedGeneration([CollectedChoice() for _ in range(n)])
        self._thoughts = thoughts
        self._token_ids = token_ids
        self._logprobs = logprobs

    def take(self, batch: Sequence[Delta]) -> None:
        """Raises errors as ``generation_error`` maps them, and those of ``logprobs``."""
        generation, logprobs = self._generation, self._logprobs
        generation.clock.take(batch)
        for delta in batch:
            match delta:
                case Text() | Reasoning():
                    choice = generation.choices[delta.index]
                    choice.completion_tokens += len(delta.tokens)
                    if isinstance(delta, Reasoning):
                        choice.reasoning_tokens += len(delta.tokens)
                        if not self._thoughts:
                            continue
                    if self._token_ids:
                        choice.tokens.extend(delta.tokens)
                    if logprobs is not None and delta.logprobs:
                        logprobs.of_choice(delta.index, delta.tokens, delta.logprobs)
                    if isinstance(delta, Reasoning):
                        choice.reasoning.append(delta.text)
                    else:
                        choice.pieces.append(delta.text)
                case ToolCallStart():
                    generation.choices[delta.index].calls.append(Call(delta.name, delta.id))
                case ToolCallArguments():
                    generation.choices[delta.index].calls[delta.call].pieces.append(delta.text)
                case ToolCallEnd():
                    generation.choices[delta.index].calls[delta.call].ended = True
                case Finish():
                    if delta.reason not in ("stop", "length"):
                        raise generation_error(delta)
                    generation.choices[delta.index].finish = delta
                case PromptProcessed():
                    generation.cached_tokens = delta.cached_tokens
                    if logprobs is not None and delta.logprobs:
                        logprobs.of_prompt(delta.logprobs)
                case PromptLogprobs():
                    if logprobs is not None:
                        logprobs.of_prompt(delta.logprobs)
                case other:
                    assert_never(other)

    def end(self) -> CollectedGeneration:
        """The whole of it. Raises GenerationFailed where a choice has not come to its end."""
        if any(choice.finish is None for choice in self._generation.choices):
            raise GenerationFailed
        return self._generation


async def collect(
    batches: AsyncIterable[list[Delta]],
    n: int,
    *,
    token_ids: bool = True,
    logprobs: LogprobsWriter | None = None,
) -> CollectedGeneration:
    """Reads ``batches`` to their end. Raises as :class:`Collector` does."""
    collector = Collector(n, token_ids=token_ids, logprobs=logprobs)
    async for batch in batches:
        collector.take(batch)
    return collector.end()
