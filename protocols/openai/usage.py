"""Token counts and prompt log-probabilities, the same in every response."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

NO_MEDIA: Final[Mapping[str, int]] = {}
MODALITIES: Final = ("image", "audio", "video")


class PromptTokensDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int
    image_tokens: int | UnsetType = UNSET
    """Prompt tokens of media; present if there are any."""
    audio_tokens: int | UnsetType = UNSET
    video_tokens: int | UnsetType = UNSET

    @classmethod
    def of(cls, cached: int, media: Mapping[str, int]) -> "PromptTokensDetails":
        """``media``: tokens by modality."""
        return cls(cached, *(media.get(modality, UNSET) for modality in MODALITIES))


class CompletionTokensDetails(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int
    completion_tokens: int
    """Tokens delivered."""
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Chat only."""

    @classmethod
    def of(
        cls,
        prompt: int,
        completion: int,
        cached: int,
        reasoning: int | None = None,
        media: Mapping[str, int] = NO_MEDIA,
    ) -> "Usage":
        """``media``: prompt tokens of media, by modality."""
        details = UNSET if reasoning is None else CompletionTokensDetails(reasoning)
        return cls(prompt, completion, prompt + completion, PromptTokensDetails.of(cached, media), details)

    @classmethod
    def sum(cls, usages: Sequence["Usage"]) -> "Usage":
        """Of several answers to chats."""
        prompts = [usage.prompt_tokens_details for usage in usages]
        outputs = [usage.completion_tokens_details for usage in usages]
        media = {
            modality: sum(each for details in prompts if (each := getattr(details, f"{modality}_tokens")) is not UNSET)
            for modality in MODALITIES
        }
        return cls.of(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            sum(details.cached_tokens for details in prompts),
            sum(details.reasoning_tokens for details in outputs if details is not UNSET),
            {modality: tokens for modality, tokens in media.items() if tokens},
        )


class RequestMetrics(msgspec.Struct, frozen=True, gc=False):
    """Times of the answer to one prompt with one choice."""

    time_to_first_token_ms: float
    """From the first step of the prompt to the first token: without the time in the queue."""
    generation_time_ms: float
    """From the first token to the last."""
    queue_time_ms: float
    mean_itl_ms: float | UnsetType = UNSET
    """Between two tokens; present if there are two."""
    tokens_per_second: float | UnsetType = UNSET
    """Of the time of prompt and generation together; present if the clock saw them take any."""


class PromptLogprob(msgspec.Struct, frozen=True, gc=False):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""One entry per prompt token, keyed by token id; the first is null."""


class Timings(msgspec.Struct, frozen=True):
    """llama.cpp's figures of an answer, in milliseconds and tokens a second."""

    cache_n: int
    """Prompt tokens that were found in the cache; the next counts the others."""
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
