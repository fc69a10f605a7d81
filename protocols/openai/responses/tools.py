"""Tools as the Responses API has them (flat), and as chat has them (nested)."""

from collections.abc import Sequence
from typing import Any, Final

from ..bounds import chars_at_most
from ..errors import BadRequest
from ..limits import MAX_NAME_LENGTH
from ..sampling import not_served
from . import mcp

_CHOICES: Final = ("none", "auto", "required")
_NAMED: Final = ("function", "custom")


def check_tools(tools: Sequence[dict[str, Any]]) -> None:
    """Raises BadRequest naming the field."""
    names: set[str] = set()
    served: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise BadRequest(f"`{where}.type` must be a string, such as `function`.", f"{where}.type")
        if kind == mcp.MCP or kind in mcp.HOSTED:
            _check_served(tool, where, served)
            continue
        if kind not in _NAMED:
            raise not_served(f"{where}.type", f"`{where}.type`: a tool of type `{kind[:40]}`")
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise BadRequest(f"`{where}.name` is required.", f"{where}.name", "missing_required_parameter")
        chars_at_most(name, MAX_NAME_LENGTH, f"{where}.name")
        if name in names:
            raise BadRequest(f"`{where}.name`: another tool has this name.", f"{where}.name")
        names.add(name)
        for field, types, what in (
            ("description", str, "a string"),
            ("parameters", dict, "an object"),
            ("strict", bool, "true or false"),
            ("format", dict, "an object"),
        ):
            if not isinstance(tool.get(field), types | None):
                raise BadRequest(f"`{where}.{field}` must be {what}.", f"{where}.{field}")


def _check_served(tool: dict[str, Any], where: str, known: set[str]) -> None:
    """A tool that the server runs; ``known`` are those before it."""
    name = tool["type"]
    if name == mcp.MCP:
        mcp.check_mcp(tool, where)
        name = tool["server_label"]
    if name in known:
        raise BadRequest(f"`{where}`: another tool is this one already.", where)
    known.add(name)
    if len(known) > mcp.MAX_SERVERS:
        raise BadRequest(f"`tools` names more than {mcp.MAX_SERVERS} servers.", "tools", "array_above_max_length")


def check_choice(choice: str | dict[str, Any] | None, tools: Sequence[dict[str, Any]]) -> None:
    """Raises BadRequest naming the field."""
    if choice is None or (isinstance(choice, str) and choice in ("none", "auto")):
        return
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise BadRequest(f"`tool_choice` must be {', '.join(_CHOICES)} or an object.", "tool_choice")
        if not tools:
            raise BadRequest("`tool_choice` is `required`, but there are no `tools`.", "tool_choice")
        return
    kind = choice.get("type")
    if kind in _NAMED or kind == mcp.MCP:
        _check_named(choice, tools, "tool_choice")
    elif kind == "allowed_tools":
        if choice.get("mode") not in ("auto", "required"):
            raise BadRequest("`tool_choice.mode` must be auto or required.", "tool_choice.mode")
        allowed = choice.get("tools")
        if not isinstance(allowed, list) or not allowed:
            raise BadRequest("`tool_choice.tools` must name at least one tool.", "tool_choice.tools")
        for index, one in enumerate(allowed):
            where = f"tool_choice.tools[{index}]"
            if not isinstance(one, dict):
                raise BadRequest(f"`{where}` must be an object.", where)
            _check_named(one, tools, where)
    elif isinstance(kind, str):
        raise not_served("tool_choice.type", f"`tool_choice.type` of `{kind[:40]}`")
    else:
        raise BadRequest("`tool_choice.type` must be function, custom or allowed_tools.", "tool_choice.type")


def _check_named(choice: dict[str, Any], tools: Sequence[dict[str, Any]], where: str) -> None:
    if choice.get("type") == mcp.MCP:
        if not isinstance(choice.get("server_label"), str) or choice["server_label"] not in mcp.labels(tools):
            raise BadRequest(f"`{where}.server_label`: there is no such server in `tools`.", f"{where}.server_label")
        if not isinstance(choice.get("name"), str | None):
            raise BadRequest(f"`{where}.name` must be a string.", f"{where}.name")
        return
    known = {(tool["type"], tool["name"]) for tool in tools if not mcp.runs_here(tool)}
    name = choice.get("name")
    if not isinstance(name, str):
        raise BadRequest(f"`{where}.name` is required.", f"{where}.name", "missing_required_parameter")
    kind = choice.get("type")
    if not isinstance(kind, str) or (kind, name) not in known:
        raise BadRequest(f"`{where}.name`: there is no such tool in `tools`.", f"{where}.name")


def chat_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checked tools in chat's shape, without those that the server runs: it offers them once it knows them."""
    tools = [tool for tool in tools if not mcp.runs_here(tool)]
    return [_custom(tool) if tool["type"] == "custom" else _function(tool) for tool in tools]


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    fields = {
        name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None
    }
    return {"type": "function", "function": fields}


def _custom(tool: dict[str, Any]) -> dict[str, Any]:
    fields = {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}
    if (form := tool.get("format")) is not None:
        inside = {name: value for name, value in form.items() if name != "type"}
        fields["format"] = {"type": "grammar", "grammar": inside} if form.get("type") == "grammar" else form
    return {"type": "custom", "custom": fields}


def chat_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """A checked choice in chat's shape, without what the server runs."""
    if choice is None or isinstance(choice, str):
        return choice
    if choice["type"] == mcp.MCP:
        return None
    if choice["type"] == "allowed_tools":
        named = [_named(one) for one in choice["tools"] if one["type"] != mcp.MCP]
        if not named:
            return None
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": named}}
    return _named(choice)


def _named(choice: dict[str, Any]) -> dict[str, Any]:
    kind = choice["type"]
    return {"type": kind, kind: {"name": choice["name"]}}


def shown_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the response repeats them: with the fields that its type requires."""
    shown = []
    for tool in tools:
        if mcp.runs_here(tool):
            shown.append(mcp.shown(tool))
            continue
        kept: dict[str, Any] = {
            name: tool[name] for name in ("type", "name", "description", "parameters", "strict") if name in tool
        }
        if tool["type"] == "function":
            kept = {"parameters": None, "strict": None, **kept}
        else:
            kept = {name: value for name, value in kept.items() if name in ("type", "name", "description")}
            kept["format"] = tool.get("format") or {"type": "text"}
        shown.append(kept)
    return shown
