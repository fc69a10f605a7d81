"""Token counts and prompt log-probabilities, the same in every response."""

import msgspec


class PromptTokensDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int
    completion_tokens: int
    """Tokens delivered."""
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int) -> "Usage":
        return cls(prompt, completion, prompt + completion, PromptTokensDetails(cached))


class PromptLogprob(msgspec.Struct, frozen=True, gc=False):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""One entry per prompt token, keyed by token id; the first is null."""
