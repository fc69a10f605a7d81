"""Whether and how long a model is to think, from all the ways in which clients say so."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from stentor.protocols.ipc.actors import Thinking

from .output import OutputFormat

_SWITCHES: Final = ("enable_thinking", "thinking")
_NAMES: Final = re.compile(r"\b(enable_thinking|thinking|thinking_mode|thinking_budget|reasoning_effort)\b")
_NO_THINK: Final = "no_think"
"""Hunyuan's name for no thinking."""
_HARMONY_EFFORTS: Final = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts that gpt-oss was not trained for, and their replacements."""


class ThinkingOptions(msgspec.Struct, frozen=True):
    template_kwargs: dict[str, Any]
    """Arguments of the chat template: the request's own, and those derived from its other fields."""
    wanted: bool | None
    """Whether the request enables thinking; None if it does not say."""
    budget: int | None
    """Tokens that thinking may take."""


def thinking_options(
    output: OutputFormat,
    template_source: str,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    effort: str | None = None,
    budget: int | None = None,
) -> ThinkingOptions:
    """A request's settings for thinking, as arguments of its chat template.

    The template gets only arguments that its source names. The request's own arguments take precedence, then its other
    fields, then ``defaults``, the operator's. A renderer without a source gets all of them. ``effort`` is OpenAI's
    (``none`` disables thinking, others enable it), ``budget`` vLLM's ``thinking_token_budget``.
    """
    given = dict(template_kwargs or {})
    names = _named(template_source)
    wanted = _switch(given)
    if wanted is None and effort is not None:
        wanted = effort != "none"
    usual = {**(defaults or {})}
    if wanted is None:
        wanted = _switch(usual)
    made: dict[str, Any] = {}
    if wanted is not None:
        made |= dict.fromkeys(_SWITCHES, wanted)
        made["thinking_mode"] = "enabled" if wanted else "disabled"
    if effort is not None:
        if output.harmony:
            made["reasoning_effort"] = _HARMONY_EFFORTS.get(effort, effort)
        elif effort != "none":
            made["reasoning_effort"] = effort
        elif f"'{_NO_THINK}'" in template_source:
            made["reasoning_effort"] = _NO_THINK
    if wanted is False:
        made["thinking_budget"] = 0
    elif budget is not None:
        made["thinking_budget"] = budget
    said = {name: value for name, value in made.items() if name in names or not template_source}
    return ThinkingOptions(usual | said | given, wanted, budget)


def _switch(kwargs: Mapping[str, Any]) -> bool | None:
    return next((kwargs[name] for name in _SWITCHES if isinstance(kwargs.get(name), bool)), None)


@lru_cache(maxsize=8)
def _named(template_source: str) -> frozenset[str]:
    """Arguments that a template may read; an argument that it names in another sense is harmless."""
    return frozenset(_NAMES.findall(template_source))


class Encoder(Protocol):
    """What is used of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


def thinking_budget(output: OutputFormat, tokenizer: Encoder, budget: int | None, *, opened: bool) -> Thinking | None:
    """The budget for the engine; None if there is none, or the model does not reason.

    ``opened``: the result of :meth:`~.output.OutputFormat.thinking_opened` for the prompt.
    """
    if budget is None or output.reasoning is None:
        return None
    begin = tokenizer.encode(output.reasoning.begin, add_special_tokens=False)
    end = tokenizer.encode(output.reasoning.end, add_special_tokens=False)
    return Thinking(budget, begin, end, opened)
