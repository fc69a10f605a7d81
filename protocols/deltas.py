"""Typed deltas: what a generation yields, whatever protocol asked. Each protocol encodes them in its own file."""

import msgspec

from .actors import FinishReason
from .steps import TokenLogprobs


class PromptProcessed(msgspec.Struct, frozen=True, gc=False):
    """The prompt is in the KV cache; comes once, before the first text."""

    cached_tokens: int
    logprobs: list[TokenLogprobs | None] | None
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0


class Text(msgspec.Struct, frozen=True, gc=False):
    """Text that became final for one choice, with the tokens delivered since the last delta.

    ``text`` may be empty while tokens are held back (an unfinished character, a possible stop
    string); the pieces of a choice joined are exactly its text.
    """

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The one terminal delta of a choice."""

    index: int
    reason: FinishReason
    stop_reason: int | str | None
    """The stop token id or stop string that ended it."""
    message: str | None
    """Why, where the reason is ``error``."""


Delta = PromptProcessed | Text | Finish
