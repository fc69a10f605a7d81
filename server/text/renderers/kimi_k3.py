"""Kimi K3: its conversations are defined by code beside the weights, which have no template.

The format, and the words in which tools and efforts are told (the model was trained on them), are those of
``encoding_k3`` in the model's repository: tags between tokens that a tokenizer keeps whole. What stands between these
tokens is encoded on its own, so that a client's text cannot hold any.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from ..errors import TemplateError
from ..templates.messages import prepare_messages
from ..tokenizers.tokenizer import Marked
from .interface import RenderRequest
from .plain import called, reasoning_of, refuse_template

OPEN: Final = Marked("<|open|>")
CLOSE: Final = Marked("<|close|>")
SEP: Final = Marked("<|sep|>")
END: Final = Marked("<|end_of_msg|>")
EFFORTS: Final = ("low", "high", "max")
MARKS: Final = "".join(f"{OPEN}{channel}{SEP}{CLOSE}{channel}{SEP}" for channel in ("think", "response", "tools"))
"""Stands for the source of a template, by which parsers are chosen."""
_TOOLS: Final = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
_EFFORT: Final = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_REQUIRED: Final = "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message."
_FORBIDDEN: Final = "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message."
_FORMAT: Final = (
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
)
_SCHEMA: Final = "\nThe JSON data must match the following schema:\n```json\n{}\n```"

_Message = dict[str, Any]
_Pieces = list[str]


def write(conversation: RenderRequest) -> list[str]:
    """The prompt's text in pieces, of which only :class:`..tokenizers.tokenizer.Marked` ones have special tokens.

    The model thinks unless ``thinking`` or ``enable_thinking`` of ``template_kwargs`` is false, or ``reasoning_effort``
    is ``none``; how much is told before the messages. Raises TemplateError.
    """
    refuse_template(conversation, "kimi_k3", takes=("image",))
    thinks, effort = _thought(conversation.template_kwargs)
    text: _Pieces = []
    if tools := conversation.tools or conversation.forbidden_tools:
        text += _told("tool-declare", _TOOLS.format(_sorted_json(tools)))
    if effort:
        text += _told("thinking-effort", _EFFORT.format(effort))
    messages = _with_ordered_results(_flat(conversation))
    last = messages.pop() if conversation.continue_final_message else None
    for message in messages:
        text += _written(message, thinks)
    if conversation.must_call:
        text += _told("tool-choice", _REQUIRED)
    elif conversation.forbidden_tools:
        text += _told("tool-choice", _FORBIDDEN)
    if told := _form(conversation.response_format):
        text += _told("response-format", told)
    if last is not None:
        if last["role"] != "assistant" or last.get("tool_calls"):
            raise TemplateError("continue_final_message is set, but the last message is no text of the assistant's.")
        text += _opened("message", role="assistant") + _begun(last, thinks)
    elif conversation.add_generation_prompt:
        text += _opened("message", role="assistant") + _opened("think" if thinks else "response")
    return text


def _flat(conversation: RenderRequest) -> list[_Message]:
    """Messages with contents as pieces, in which pictures stand where they are given. Mutates
    :attr:`..templates.placeholders.MediaText.order`. Raises TemplateError."""
    media = conversation.media
    pictures = iter(()) if media is None else map(Marked, media.texts("image"))
    messages = prepare_messages(conversation.messages, "mixed", knows_developer=False)
    found = [{**message, "content": _content(message["content"], pictures, at)} for at, message in enumerate(messages)]
    if media is not None:
        media.order = ["image" for _ in media.texts("image")]
    return found


def _content(content: Any, pictures: Iterator[str], place: int) -> _Pieces:
    if content is None or isinstance(content, str):
        return [content or ""]
    found: _Pieces = []
    for part in content:
        text = next(pictures, None) if part.get("type") == "image" else part.get("text", part.get("refusal"))
        if text is None:
            raise TemplateError(f"messages[{place}].content has a part that is neither text nor an image.")
        found.append(text)
    return found


def _form(wanted: Mapping[str, Any]) -> str:
    """What is told of the form of the answer; "" if it may be any."""
    kind, described = wanted.get("type"), wanted.get("json_schema")
    if kind == "json_object":
        schema = wanted.get("schema", wanted.get("value"))  # llama.cpp's
    elif kind == "json_schema":
        schema = described.get("schema") if isinstance(described, dict) else {}
    else:
        return ""
    if schema is None:
        return _FORMAT.format("json_object")
    return _FORMAT.format("json_schema") + _SCHEMA.format(_sorted_json(schema))


def _sorted_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


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


def _opened(tag: str, **attributes: object) -> _Pieces:
    told: _Pieces = []
    for key, value in attributes.items():
        told += [f" {key}", '="', str(value).replace("&", "&amp;").replace('"', "&quot;"), '"']
    return [OPEN, tag, *told, SEP]


def _closed(tag: str) -> _Pieces:
    return [CLOSE, tag, SEP]


def _message(content: _Pieces, **attributes: object) -> _Pieces:
    return [*_opened("message", **attributes), *content, *_closed("message"), END]


def _told(kind: str, text: str) -> _Pieces:
    """What the system tells the model of the request."""
    return _message([text], role="system", type=kind)


def _written(message: _Message, thinks: bool) -> _Pieces:
    match message["role"]:
        case "user" | "system" as role:
            named = {"name": message["name"]} if message.get("name") else {}
            return _message(message["content"], role=role, **named)
        case "assistant":
            return _message(_begun(message, thinks) + _closed("response") + _calls(message), role="assistant")
        case "tool":
            if not message["tool"]:
                raise TemplateError("A tool message answers no call of the message before: no tool is known of it.")
            return _message(message["content"], role="tool", tool=message["tool"], index=message["index"])
        case role:
            raise TemplateError(f"A message's role is {role!r}, which Kimi K3 does not know.")


def _begun(message: _Message, thinks: bool) -> _Pieces:
    """What the assistant thought, and its answer, whose channel stays open."""
    reasoning = reasoning_of(message)
    thought = [*_opened("think"), reasoning if reasoning.strip() else "", *_closed("think")] if thinks else []
    return [*thought, *_opened("response"), *message["content"]]


def _calls(message: _Message) -> _Pieces:
    calls = [
        piece
        for number, (name, arguments) in enumerate(called(message), 1)
        for piece in (*_opened("call", tool=name, index=number), *_arguments(arguments), *_closed("call"))
    ]
    return [*_opened("tools"), *calls, *_closed("tools")] if calls else []


def _arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    for key, value in arguments.items():
        spelled = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield from (*_opened("argument", key=key, type=_type(value)), spelled, *_closed("argument"))


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
