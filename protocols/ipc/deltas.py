"""Typed deltas: what a generation yields, whatever protocol asked. Each protocol encodes them in its own file.

Of one choice, in order: texts, reasoning and tool calls as the model wrote them, then one :class:`Finish`. Tokens ride
in :class:`Text` and :class:`Reasoning` alone, each token once; those of a tool call in a ``Text`` that has no text.
"""

import msgspec

from .actors import Fault, FinishReason
from .steps import TokenLogprobs


class PromptProcessed(msgspec.Struct, frozen=True, gc=False):
    """The prompt is in the KV cache; comes once, before the first text."""

    cached_tokens: int
    logprobs: list[TokenLogprobs | None] | None
    """Of the prompt's first tokens; those of the rest follow as :class:`PromptLogprobs`."""
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0


class PromptLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Log-probabilities of the prompt tokens that follow those of the delta before."""

    logprobs: list[TokenLogprobs | None]


class Text(msgspec.Struct, frozen=True, gc=False):
    """Text that became final for one choice, with the tokens delivered since the last delta.

    ``text`` may be empty while tokens are held back (an unfinished character, a possible stop
    string or tool call); the pieces of a choice joined are exactly its text.
    """

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """As :class:`Text`, of what the model thinks before it answers; its markers are part of neither."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None


class ToolCallStart(msgspec.Struct, frozen=True, gc=False):
    """A call begins. ``call`` counts those of a choice from 0."""

    index: int
    call: int
    name: str
    id: str | None
    """Where the model writes ids of its own; otherwise each protocol makes one."""


class ToolCallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of a call's arguments; joined they are the JSON of one object, ``{}`` where there are none."""

    index: int
    call: int
    text: str


class ToolCallEnd(msgspec.Struct, frozen=True, gc=False):
    """The call is whole. A call that the output was cut off in has no end."""

    index: int
    call: int


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The one terminal delta of a choice."""

    index: int
    reason: FinishReason
    stop_reason: int | str | None
    """The stop token id or stop string that ended it."""
    message: str | None
    """Why, where the reason is ``error``."""
    fault: Fault = ""
    routed_experts: bytes = b""
    """Which experts have computed the prompt and the choice, where they were asked for; see
    :class:`.steps.RowExperts`."""


Delta = PromptProcessed | PromptLogprobs | Text | Reasoning | ToolCallStart | ToolCallArguments | ToolCallEnd | Finish
