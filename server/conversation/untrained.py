"""Tools for a model whose chat template knows nothing of them: told in the system prompt, in a form of our own.

The form is that of Hermes (``<tool_call>`` around a JSON object), which its parser reads. A model that was not trained
to call tools seldom begins to by itself, but does where ``tool_choice`` requires it, and then its grammar holds.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode

_INSTRUCTION: Final = """# Tools

These functions can be called:
<tools>
{tools}
</tools>

To call one, write its name and its arguments as a JSON object between tags:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>
The result comes in the next message, between <tool_response> tags."""


def told(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with ``tools`` in its system prompt, and earlier calls and their results as plain text."""
    instruction = _INSTRUCTION.format(tools="\n".join(_json(tool["function"]) for tool in tools)) if tools else ""
    ready = [_plain(message) for message in messages]
    if not instruction:
        return ready
    first = ready[0]
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{_text(first.get('content'))}\n\n{instruction}"}, *ready[1:]]
    return [{"role": "system", "content": instruction}, *ready]


def speaks_of_tools(messages: Sequence[dict[str, Any]]) -> bool:
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    rest = {name: value for name, value in message.items() if name not in ("tool_calls", "content")}
    said = _text(message.get("content"))
    texts = [said] if said else []
    return {**rest, "content": "\n".join([*texts, *(_call(call["function"]) for call in calls)])}


def _call(function: dict[str, Any]) -> str:
    arguments = function.get("arguments") or {}
    written = arguments if isinstance(arguments, str) else _json(arguments)
    return f'<tool_call>\n{{"name": {_json(function["name"])}, "arguments": {written}}}\n</tool_call>'


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text") or part.get("refusal") or "" for part in content)
    return content or ""


def _json(value: Any) -> str:
    return encode(value).decode()
