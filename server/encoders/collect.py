"""A whole generation gathered from its deltas, for responses that are not streamed."""

from collections.abc import AsyncIterable
from dataclasses import dataclass, field

from stentor.protocols.deltas import Delta, Finish, PromptProcessed, Text
from stentor.protocols.steps import TokenLogprobs

from ..errors import GenerationFailed


@dataclass
class Choice:
    pieces: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass
class Generation:
    """All choices over one prompt."""

    choices: list[Choice]
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    @property
    def completion_tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)


async def collect(batches: AsyncIterable[list[Delta]], n: int) -> Generation:
    """Reads ``batches`` to their end. Raises GenerationFailed when a choice ends with an error."""
    generation = Generation([Choice() for _ in range(n)])
    async for batch in batches:
        for delta in batch:
            if type(delta) is Text:
                choice = generation.choices[delta.index]
                choice.pieces.append(delta.text)
                choice.tokens.extend(delta.tokens)
                choice.logprobs.extend(delta.logprobs or ())
            elif type(delta) is Finish:
                if delta.reason not in ("stop", "length"):
                    raise GenerationFailed
                generation.choices[delta.index].finish = delta
            elif type(delta) is PromptProcessed:
                generation.cached_tokens = delta.cached_tokens
                generation.prompt_logprobs = delta.logprobs
    if any(choice.finish is None for choice in generation.choices):
        raise GenerationFailed
    return generation
