"""Describes tools in the system prompt, for models whose chat template does not support tools.

The format is that of Hermes (``<tool_call>`` around a JSON object), which its parser reads. A model that was not
trained for tools seldom calls one by itself, but does if ``tool_choice`` requires it, which its grammar enforces.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stentor.protocols.common.encoding import encode

from ..parsing.tools.schemas import Arguments

MAX_DEPTH: Final = 4
"""Levels of an example; deeper values stay empty."""

_INSTRUCTION: Final = """# Tools

These functions can be called:
<tools>
{tools}
</tools>

To call one, write its name and its arguments as a JSON object between tags:
{examples}
The result comes in the next message, between <tool_response> tags."""

_EXAMPLES: Final[dict[str, Any]] = {
    "string": "", "integer": 0, "number": 0.5, "boolean": True, "object": {}, "array": [], "null": None,
}  # fmt: skip
"""Values by type; the first that a schema allows is shown."""


def inject_tool_prompt(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with ``tools`` in its system prompt, and earlier calls and their results as plain text."""
    functions = [tool["function"] for tool in tools]
    examples = "\n".join(_call({**function, "arguments": example_arguments(function)}) for function in functions)
    instruction = _INSTRUCTION.format(tools="\n".join(map(_json, functions)), examples=examples) if functions else ""
    ready = [_plain(message) for message in messages]
    if not instruction:
        return ready
    first = ready[0]
    if first["role"] in ("system", "developer"):
        content = first.get("content")
        if isinstance(content, list) and not _is_text(content):
            told: str | list[Any] = [*content, {"type": "text", "text": instruction}]
        else:
            told = f"{_text(content)}\n\n{instruction}"
        return [{**first, "content": told}, *ready[1:]]
    return [{"role": "system", "content": instruction}, *ready]


def example_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """Example arguments of a call: the required ones, or all if none is required, with values of their types.

    A small model copies names from its prompt, so they are the function's own.
    """
    arguments = Arguments(function.get("parameters"))
    return {
        name: _example(arguments, name, schema, 1) for name, schema in _shown(arguments.properties, arguments.required)
    }


def _shown(properties: Any, required: Any) -> list[tuple[str, Any]]:
    known = properties if isinstance(properties, Mapping) else {}
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, Sequence) else []
    return [(name, known.get(name)) for name in needed or known]


def _example(arguments: Arguments, name: str, schema: Any, depth: int) -> Any:
    found = arguments.resolved(schema)
    values = found.get("enum", [found["const"]] if "const" in found else None)
    if isinstance(values, list) and values:
        return values[0]
    types = arguments.types_of(found)
    kind = next((kind for kind in _EXAMPLES if kind in types), "null")
    if kind == "object" and depth < MAX_DEPTH:
        inner = _shown(found.get("properties"), found.get("required", ()))
        return {name: _example(arguments, name, schema, depth + 1) for name, schema in inner}
    if kind == "array" and depth < MAX_DEPTH and "items" in found:
        return [_example(arguments, name, found["items"], depth + 1)]
    return f"<{name}>" if kind == "string" else _EXAMPLES[kind]


def mentions_tools(messages: Sequence[dict[str, Any]]) -> bool:
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": _response(message.get("content"))}
    calls = message.get("tool_calls")
    if not calls:
        return message
    rest = {name: value for name, value in message.items() if name not in ("tool_calls", "content")}
    said = _text(message.get("content"))
    texts = [said] if said else []
    return {**rest, "content": "\n".join([*texts, *(_call(call["function"]) for call in calls)])}


def _response(content: Any) -> str | list[Any]:
    """The result of a tool between tags; a list where it holds more than text."""
    if _is_text(content):
        return f"<tool_response>\n{_text(content)}\n</tool_response>"
    opened, closed = ({"type": "text", "text": tag} for tag in ("<tool_response>\n", "\n</tool_response>"))
    return [opened, *content, closed]


def _call(function: dict[str, Any]) -> str:
    arguments = function.get("arguments") or {}
    written = arguments if isinstance(arguments, str) else _json(arguments)
    return f'<tool_call>\n{{"name": {_json(function["name"])}, "arguments": {written}}}\n</tool_call>'


def _is_text(content: Any) -> bool:
    return not isinstance(content, list) or all("text" in part or "refusal" in part for part in content)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text") or part.get("refusal") or "" for part in content)
    return content or ""


def _json(value: Any) -> str:
    return encode(value).decode()
