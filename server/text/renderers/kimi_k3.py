"""Kimi K3: its conversations are defined by code beside the weights, which have no template.

The format, and the words in which tools and efforts are told (the model was trained on them), are those of
``encoding_k3`` in the model's repository: tags between tokens that a tokenizer keeps whole.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from ..errors import TemplateError
from ..templates.messages import prepare_messages
from .interface import RenderRequest
from .plain import called, reasoning_of, refuse_template

OPEN: Final = "<|open|>"
CLOSE: Final = "<|close|>"
SEP: Final = "<|sep|>"
END: Final = "<|end_of_msg|>"
EFFORTS: Final = ("low", "high", "max")
MARKS: Final = "".join(f"{OPEN}{channel}{SEP}{CLOSE}{channel}{SEP}" for channel in ("think", "response", "tools"))
"""Stands for the source of a template, by which parsers are chosen."""
_TOOLS: Final = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
_EFFORT: Final = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)

_Message = dict[str, Any]


def write(conversation: RenderRequest) -> str:
    """The prompt's text. The model thinks unless ``thinking`` or ``enable_thinking`` of ``template_kwargs`` is false,
    or ``reasoning_effort`` is ``none``; how much is told before the messages. Raises TemplateError."""
    refuse_template(conversation, "kimi_k3", takes=("image",))
    thinks, effort = _thought(conversation.template_kwargs)
    text = []
    if conversation.tools:
        tools = json.dumps(conversation.tools, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        text.append(_message(_TOOLS.format(tools), role="system", type="tool-declare"))
    if effort:
        text.append(_message(_EFFORT.format(effort), role="system", type="thinking-effort"))
    messages = _with_ordered_results(_flat(conversation))
    last = messages.pop() if conversation.continue_final_message else None
    text += (_written(message, thinks) for message in messages)
    if last is not None:
        if last["role"] != "assistant" or last.get("tool_calls"):
            raise TemplateError("continue_final_message is set, but the last message is no text of the assistant's.")
        text.append(f"{_opened('message', role='assistant')}{_begun(last, thinks)}")
    elif conversation.add_generation_prompt:
        text.append(_opened("message", role="assistant") + _opened("think" if thinks else "response"))
    whole = "".join(text)
    return whole if conversation.media is None else conversation.media.expand(whole)


def _flat(conversation: RenderRequest) -> list[_Message]:
    """Messages with contents as texts, in which pictures stand where they are given. Raises TemplateError."""
    written = {} if conversation.media is None else conversation.media.written
    messages = prepare_messages(conversation.messages, "mixed", knows_developer=False)
    return [{**message, "content": _content(message["content"], written, at)} for at, message in enumerate(messages)]


def _content(content: Any, written: Mapping[str, str], place: int) -> str:
    if isinstance(content, str):
        return content
    texts = [written.get(part.get("type", ""), part.get("text", part.get("refusal"))) for part in content]
    if None in texts:
        raise TemplateError(f"messages[{place}].content has a part that is neither text nor an image.")
    return "".join(map(str, texts))


def _thought(kwargs: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the model thinks, and how much: ``max`` by default, "" to say nothing of it, which ``thinking_effort`` of
    null asks for. Raises TemplateError."""
    thinks = kwargs.get("thinking", kwargs.get("enable_thinking")) is not False
    effort = kwargs["thinking_effort"] if "thinking_effort" in kwargs else kwargs.get("reasoning_effort") or EFFORTS[-1]
    if not thinks or effort == "none":
        return False, ""
    if effort is None:
        return True, ""
    if effort not in EFFORTS:
        known = "', '".join(EFFORTS)
        raise TemplateError(f"reasoning_effort is {str(effort)[:40]!r}; Kimi K3 knows 'none', '{known}'.")
    return True, str(effort)


def _opened(tag: str, **attributes: object) -> str:
    told = ""
    for key, value in attributes.items():
        escaped = str(value).replace("&", "&amp;").replace('"', "&quot;")
        told += f' {key}="{escaped}"'
    return f"{OPEN}{tag}{told}{SEP}"


def _closed(tag: str) -> str:
    return f"{CLOSE}{tag}{SEP}"


def _message(content: str, **attributes: object) -> str:
    return f"{_opened('message', **attributes)}{content}{_closed('message')}{END}"


def _written(message: _Message, thinks: bool) -> str:
    match message["role"]:
        case "user" | "system" as role:
            named = {"name": message["name"]} if message.get("name") else {}
            return _message(message["content"], role=role, **named)
        case "assistant":
            text = f"{_begun(message, thinks)}{_closed('response')}{_calls(message)}"
            return _message(text, role="assistant")
        case "tool":
            if not message["tool"]:
                raise TemplateError("A tool message answers no call of the message before: no tool is known of it.")
            return _message(message["content"], role="tool", tool=message["tool"], index=message["index"])
        case role:
            raise TemplateError(f"A message's role is {role!r}, which Kimi K3 does not know.")


def _begun(message: _Message, thinks: bool) -> str:
    """What the assistant thought, and its answer, whose channel stays open."""
    reasoning = reasoning_of(message)
    thought = f"{_opened('think')}{reasoning if reasoning.strip() else ''}{_closed('think')}" if thinks else ""
    return f"{thought}{_opened('response')}{message['content'] or ''}"


def _calls(message: _Message) -> str:
    calls = "".join(
        f"{_opened('call', tool=name, index=number)}{''.join(_arguments(arguments))}{_closed('call')}"
        for number, (name, arguments) in enumerate(called(message), 1)
    )
    return f"{_opened('tools')}{calls}{_closed('tools')}" if calls else ""


def _arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    for key, value in arguments.items():
        spelled = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{_opened('argument', key=key, type=_type(value))}{spelled}{_closed('argument')}"


def _type(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case int() | float():
            return "number"
        case str():
            return "string"
        case dict():
            return "object"
        case _:
            return "array"


def _with_ordered_results(messages: Sequence[_Message]) -> list[_Message]:
    """The messages with the results of tools in the order of their calls, each with its tool and its number in the
    turn. If some of those that follow one another answer no call, they keep their order, and have the names that they
    bring, or those of the calls at their places."""
    found: list[_Message] = []
    calls: list[tuple[object, str]] = []
    number = 0
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        run = list(group)
        found += () if are_results else run
        if not are_results and run[-1]["role"] == "assistant":
            number, calls = 0, [(call.get("id"), call["function"]["name"]) for call in run[-1].get("tool_calls") or ()]
        if not are_results:
            continue
        places = [_place(calls, message.get("tool_call_id")) for message in run]
        known = [place for place in places if place is not None]
        order = sorted(range(len(run)), key=known.__getitem__) if len(known) == len(run) else range(len(run))
        for at in order:
            place = places[at]
            by_place = calls[number][1] if number < len(calls) else ""
            tool = calls[place][1] if place is not None else run[at].get("name") or by_place
            number += 1
            found.append({**run[at], "tool": tool, "index": number})
    return found


def _place(calls: Sequence[tuple[object, str]], id: object) -> int | None:
    """The place of the call with this id."""
    return next((place for place, (known, _) in enumerate(calls) if known == id), None)
