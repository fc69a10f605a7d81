"""Typed deltas: the output of a generation, independent of the protocol. Each protocol encodes them in its own file.

The deltas of one choice are texts, reasoning and tool calls in the model's order, then one :class:`Finish`. Only
:class:`Text` and :class:`Reasoning` have tokens, each token once; tokens of a tool call come in a ``Text`` without
text.
"""

import msgspec

from .actors import Fault, FinishReason
from .steps import TokenLogprobs


class PromptProcessed(msgspec.Struct, frozen=True, gc=False):
    """The prompt is in the KV cache; comes once, before the first text."""

    cached_tokens: int
    logprobs: list[TokenLogprobs | None] | None
    """Of the first tokens of the prompt; the rest follow as :class:`PromptLogprobs`."""
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
    """The model's reasoning before its answer; otherwise as :class:`Text`. Markers are part of neither."""

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
    """The model's own id, if its format has ids; otherwise each protocol makes one."""


class ToolCallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of a call's arguments. Joined, they are the JSON of one object, ``{}`` without arguments."""

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
    """Experts of prompt and choice, if requested; see :class:`.steps.RowExperts`."""
    field: str = ""
    """The field at fault, where ``fault`` is ``media``."""


Delta = PromptProcessed | PromptLogprobs | Text | Reasoning | ToolCallStart | ToolCallArguments | ToolCallEnd | Finish
