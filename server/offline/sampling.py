"""What a program says of how its prompts are continued."""

from typing import Any

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As in ``/v1/completions``, by vLLM's names. None leaves a field to the model's own defaults.

    A value that cannot be served is refused when it is used, with the message that the endpoint has for it.
    """

    n: int = 1
    max_tokens: int | None = 16
    """Where nothing is said; None takes the rest of the context."""
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structured_outputs: dict[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        """What a request's body holds of it."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        if self.max_tokens is not None:
            found["max_tokens"] = self.max_tokens
        return found
