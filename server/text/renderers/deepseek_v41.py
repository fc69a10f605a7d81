"""DeepSeek-V4.1: its conversations are defined by code beside the weights, as V4's are.

What differs from V4's: the system has a mark, also between turns; an effort is a number that the first lines name; and
tags of calls have a blank behind their mark.
"""

import re
from itertools import count
from typing import Any, Final

from ..errors import TemplateError
from ..templates.messages import prepare_messages
from .deepseek_v4 import answered, as_turns, explained, tools_in_words
from .deepseek_v32 import ASSISTANT, BOS, DSML, END_THINK, THINK, USER
from .interface import RenderRequest
from .plain import refuse_template

_MARK: Final = f"{DSML} "
_CALLS: Final = f"{_MARK}calls"
_SYSTEM: Final = "<｜System｜>"
_PICTURE: Final = "<｜deepseek_image｜>"
_TOOLS: Final = tools_in_words(_CALLS, _MARK)
_EFFORT: Final = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
EFFORTS: Final = {"low": 50, "high": 75, "xhigh": 75, "max": 100}
_USUAL: Final = "high"
MARKS: Final = f"{USER}{ASSISTANT}{_TOOLS}"
"""Stands for the source of a template, by which parsers are chosen."""


def write(conversation: RenderRequest) -> str:
    """The prompt's text. The model thinks unless ``thinking`` or ``enable_thinking`` of ``template_kwargs`` is false or
    ``reasoning_effort`` is ``none``; what it thought before the last question is left out if there are no tools. Raises
    TemplateError."""
    refuse_template(conversation, "deepseek_v41", takes=("image",))
    kwargs = conversation.template_kwargs
    effort = kwargs.get("reasoning_effort")
    thinks = kwargs.get("thinking", kwargs.get("enable_thinking")) is not False and effort != "none"
    messages = as_turns(_flat(conversation))
    tools = conversation.tools
    if tools and all(message["role"] != "system" for message in messages):
        messages.insert(0, {"role": "system", "content": ""})
    explains = next((index for index, message in enumerate(messages) if message["role"] == "system"), -1)
    asked = max((index for index, message in enumerate(messages) if _asks(index, message)), default=-1)
    remembered = 0 if tools else asked
    text = [BOS]
    if thinks:
        text.append(f"{_SYSTEM}{_EFFORT.format(_budget(effort))}")
    for index, message in enumerate(messages):
        is_last, role = index == len(messages) - 1, message["role"]
        if role == "assistant":
            goes_on = conversation.continue_final_message and is_last
            text.append(answered(message, thinks and index >= remembered, goes_on, _CALLS, _MARK))
            continue
        if role == "user":
            text.append(USER)
        elif index or not thinks:  # the effort's is the first system message's too
            text.append(_SYSTEM)
        text.append(str(message["content"]))
        if tools and index == explains:
            text.append(explained(tools, _TOOLS))
        if (role == "user" or index) and (is_last or messages[index + 1]["role"] == "assistant"):
            text.append(f"{ASSISTANT}{THINK if thinks and index >= remembered else END_THINK}")
    written = "".join(text)
    return written if conversation.media is None else conversation.media.expand(written)


def _flat(conversation: RenderRequest) -> list[dict[str, Any]]:
    """Messages with contents as texts, in which :data:`_PICTURE` stands for each picture. Raises TemplateError."""
    messages = prepare_messages(conversation.messages, "list", knows_developer=False)
    found, pictures = [], count()
    order: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        parts = [_written(part, place) for part in message["content"]]
        numbers = [next(pictures) for part in parts if part is _PICTURE]
        found.append({**message, "content": "\n\n".join(parts)})
        order.append({**message, "content": " ".join(map(str, numbers))})
    turned = [int(number) for turn in as_turns(order) for number in re.findall(r"\b\d+\b", turn["content"])]
    if turned != sorted(turned):
        raise TemplateError(
            "Results of tools with images stand in another order than their calls; give them in theirs."
        )
    return found


def _written(part: dict[str, Any], place: int) -> str:
    """Raises TemplateError."""
    text = part.get("text", part.get("refusal"))
    if part.get("type") == "image":
        return _PICTURE
    if not isinstance(text, str):
        raise TemplateError(f"messages[{place}].content has a part that is neither text nor an image.")
    if _PICTURE in text:
        raise TemplateError(f"A message holds {_PICTURE}, which stands for a picture; leave it out.")
    return text


def _asks(index: int, message: dict[str, Any]) -> bool:
    """Whether a message begins a turn: results of tools alone do not, and the first one if it is the system's."""
    return bool(message.get("asks")) or (message["role"] == "system" and index > 0)


def _budget(effort: object) -> int:
    """The number of an effort. Raises TemplateError."""
    if isinstance(effort, int) and not isinstance(effort, bool) and 1 <= effort <= 100:
        return effort
    found = EFFORTS.get(_USUAL if effort is None else str(effort))
    if found is None:
        raise TemplateError(
            f"reasoning_effort is {str(effort)[:40]!r}, expected {', '.join(EFFORTS)}, none, or a number from 1 to 100 "
            "in chat_template_kwargs."
        )
    return found
