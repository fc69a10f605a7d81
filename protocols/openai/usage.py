"""Token counts and prompt log-probabilities, the same in every response."""

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int
    completion_tokens: int
    """Tokens delivered."""
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Of chat alone."""

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int, reasoning: int | None = None) -> "Usage":
        details = UNSET if reasoning is None else CompletionTokensDetails(reasoning)
        return cls(prompt, completion, prompt + completion, PromptTokensDetails(cached), details)


class PromptLogprob(msgspec.Struct, frozen=True, gc=False):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""One entry per prompt token, keyed by token id; the first is null."""
