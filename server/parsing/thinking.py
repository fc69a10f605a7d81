"""Whether and how long a model is to think, from all the ways in which clients say so."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

from stentor.protocols.ipc.actors import Thinking

from .output import OutputFormat

_SWITCHES: Final = ("enable_thinking", "thinking")
_NAMES: Final = re.compile(r"\b(enable_thinking|thinking|thinking_mode|thinking_budget|reasoning_effort)\b")
_NO_THINK: Final = "no_think"
"""What Hunyuan's templates call no effort at all."""
_HARMONY_EFFORTS: Final = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Those that gpt-oss was not trained for."""


@dataclass(frozen=True)
class ThinkingOptions:
    template_kwargs: dict[str, Any]
    """For the chat template: the request's own, and what its other fields come to."""
    wanted: bool | None
    """Whether the request asks for thinking; None where it does not say."""
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
    """What a request says of thinking, in the words of the chat template that renders it.

    The template gets what its source names and nothing else; arguments that the request gives it itself count most,
    and ``defaults``, the operator's, where the request says nothing.
    Without a source it is a renderer that is told, which takes what it knows.
    ``effort`` is OpenAI's (``none`` is no thinking, others are some), ``budget`` vLLM's ``thinking_token_budget``.
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
    """Arguments that a template may read; one that it names in another sense gets what it does not look at."""
    return frozenset(_NAMES.findall(template_source))


class Encoder(Protocol):
    """See :class:`stentor.server.text.tokenizer.Tokenizer`."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


def thinking_budget(output: OutputFormat, tokenizer: Encoder, budget: int | None, *, opened: bool) -> Thinking | None:
    """The budget in the engine's terms; None where there is none, or the model does not reason.

    ``opened``: what :meth:`~.output.OutputFormat.thinking_opened` says of the prompt.
    """
    if budget is None or output.reasoning is None:
        return None
    begin = tokenizer.encode(output.reasoning.begin, add_special_tokens=False)
    end = tokenizer.encode(output.reasoning.end, add_special_tokens=False)
    return Thinking(budget, begin, end, opened)
