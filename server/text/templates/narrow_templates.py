"""Conversations that a published template would refuse or cut short, in a form that it renders whole.

Llama 3's and gpt-oss's write the first call of a message and no other. gpt-oss's also refuses reasoning beside a text
in front of a call, drops instructions behind the first, and fails on a tool without a description.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jinja2 import nodes

from ...parsing.harmony import CHANNEL, MESSAGE

Message = dict[str, Any]

_CALLS: Final = "tool_calls"
_INSTRUCTIONS: Final = ("system", "developer")


def takes_one_call(tree: nodes.Template) -> bool:
    """Whether a template reads the first call of a message, and goes through them nowhere."""
    first = any(
        isinstance(item.arg, nodes.Const) and item.arg.value == 0 and _is_calls(item.node)
        for item in tree.find_all(nodes.Getitem)
    )
    return first and not any(
        _is_calls(part)
        for loop in tree.find_all(nodes.For)
        for part in (loop.iter, *loop.iter.find_all((nodes.Name, nodes.Getattr, nodes.Getitem)))
    )


def _is_calls(node: nodes.Node) -> bool:
    match node:
        case nodes.Name(name=name):
            return name == _CALLS
        case nodes.Getattr(attr=name):
            return name == _CALLS
        case nodes.Getitem(arg=nodes.Const(value=name)):
            return bool(name == _CALLS)
        case _:
            return False


def is_harmony(source: str) -> bool:
    """Whether a template writes gpt-oss's channels."""
    return CHANNEL in source and MESSAGE in source


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """A message of several calls as several messages, each followed by its own result. Results without an id, or with
    one that names no call, follow in their order behind the last."""
    apart: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get(_CALLS) or ()
        if len(calls) < 2:
            apart.append(message)
            continue
        results: dict[object, list[Message]] = {}
        while at < len(messages) and messages[at].get("role") == "tool":
            results.setdefault(messages[at].get("tool_call_id"), []).append(messages[at])
            at += 1
        for number, call in enumerate(calls):
            said = message if number == 0 else {"role": message.get("role"), "content": ""}
            apart.append({**said, _CALLS: [call]})
            if (id := call.get("id")) is not None:
                apart += results.pop(id, ())
        apart += (each for left in results.values() for each in left)
    return apart


def for_harmony(messages: Sequence[Message], reasoning_names: Sequence[str]) -> list[Message]:
    """Moves all instructions to the first message, and joins reasoning and the text before a call in one analysis
    message.

    ``reasoning_names``: the fields of reasoning in messages.
    """
    instructions = [message for message in messages if message.get("role") in _INSTRUCTIONS]
    ready = [_thought(message, reasoning_names) for message in messages if message.get("role") not in _INSTRUCTIONS]
    if instructions:
        ready.insert(0, {**instructions[0], "content": "\n\n".join(message["content"] for message in instructions)})
    return ready


def _thought(message: Message, names: Sequence[str]) -> Message:
    said, thought = message.get("content"), message.get(names[0])
    if not (message.get(_CALLS) and said and thought):
        return message
    return {**message, "content": "", **dict.fromkeys(names, f"{thought}\n{said}")}


def described(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Functions without a description have an empty one."""
    functions = [tool.get("function", {}) for tool in tools]
    described = [{**function, "description": function.get("description") or ""} for function in functions]
    return [{**tool, "function": function} for tool, function in zip(tools, described, strict=True)]
