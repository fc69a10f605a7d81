"""Tools on their way to the model: as its parser knows them, and as its chat template writes them."""

from collections.abc import Sequence
from typing import Any, Final

from stentor.protocols.openai.tools import CUSTOM_INPUT, OfferedTool

from ..parsing.interface import Tool

NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def callable_tools(tools: Sequence[OfferedTool]) -> list[Tool]:
    return [Tool(tool.name, tool.description, tool.parameters, tool.strict, tool.grammar) for tool in tools]


def template_tools(tools: Sequence[OfferedTool]) -> list[dict[str, Any]]:
    """In the form that chat templates expect, whatever the client's protocol: OpenAI's functions."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: OfferedTool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    parameters = NO_PARAMETERS if tool.parameters is None else tool.parameters
    return {"name": tool.name, **described, "parameters": parameters}


def with_functions_as_tools(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What stands in a conversation in other forms, as tools: calls of custom tools, and the old ``function_call``
    with its role ``function``. Messages without any are the client's own."""
    return [_message(message) for message in messages]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if calls and any(call.get("type") == "custom" for call in calls):
        return {**message, "tool_calls": [_call(call) for call in calls]}
    if message.get("function_call"):
        rest = {name: value for name, value in message.items() if name != "function_call"}
        function = message["function_call"]
        return {**rest, "tool_calls": [{"id": function["name"], "type": "function", "function": function}]}
    if message.get("role") == "function":
        return {"tool_call_id": message.get("name"), **message, "role": "tool"}
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    if call.get("type") != "custom":
        return call
    custom = call["custom"]
    arguments = {CUSTOM_INPUT: custom.get("input") or ""}
    return {**call, "type": "function", "function": {"name": custom["name"], "arguments": arguments}, "custom": None}
