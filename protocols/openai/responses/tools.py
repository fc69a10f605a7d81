"""Tools as the Responses API has them (flat), and as chat has them (nested)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...common.bounds import chars_at_most
from ...common.errors import missing, refused, wrong
from ...common.limits import MAX_NAME_LENGTH
from ..sampling import not_served
from . import client_tools, mcp

NAMESPACE: Final = "namespace"
TOOL_SEARCH: Final = "tool_search"
_CHOICES: Final = ("none", "auto", "required")
_NAMED: Final = ("function", "custom")
_CHOSEN: Final = ("shell", "apply_patch")
"""Types that ``tool_choice`` may name alone."""


class ClientTool(NamedTuple):
    """A tool that the client runs, as one function that a model is offered."""

    kind: str
    """The type of the tool."""
    name: str
    namespace: str | None
    """The client's namespace for it."""
    where: str
    """The field of the client's definition."""
    tool: dict[str, Any]
    """The function, or the custom tool."""


def function_name(name: str, namespace: str | None) -> str:
    """The model's name of a function in a namespace."""
    return name if namespace is None else f"{namespace}__{name}"


def check_tools(tools: Sequence[dict[str, Any]], field: str = "tools") -> None:
    """Raises BadRequest naming the field."""
    names: set[str] = set()
    served: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"{field}[{index}]"
        kind = _kind(tool, where)
        if kind == mcp.MCP or kind in mcp.HOSTED:
            _check_served(tool, where, served)
            continue
        if kind in client_tools.CALLS:
            _check_described(tool, where)
        elif kind == NAMESPACE:
            _check_namespace(tool, where)
        elif kind in _NAMED:
            _check_named_tool(tool, where)
        else:
            raise not_served(f"{where}.type", f"`{where}.type`: a tool of type `{kind[:40]}`")
        for name, offered in _offered(tool, where):
            if name in names:
                place = f"{offered.where}.{'type' if kind in client_tools.CALLS else 'name'}"
                raise refused(place, "another tool has this name")
            names.add(name)


def _kind(tool: Any, where: str) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str):
        raise wrong(f"{where}.type", "must be a string, such as `function`")
    return kind


def _check_fields(tool: Mapping[str, Any], where: str, *fields: tuple[str, Any, str]) -> None:
    for field, types, what in fields:
        if not isinstance(tool.get(field), types | None):
            raise wrong(f"{where}.{field}", f"must be {what}")


def _check_name(tool: Mapping[str, Any], where: str) -> None:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise missing(f"{where}.name")
    chars_at_most(name, MAX_NAME_LENGTH, f"{where}.name")


def _check_named_tool(tool: Mapping[str, Any], where: str) -> None:
    _check_name(tool, where)
    _check_fields(
        tool,
        where,
        ("description", str, "a string"),
        ("parameters", dict, "an object"),
        ("strict", bool, "true or false"),
        ("defer_loading", bool, "true or false"),
        ("format", dict, "an object"),
    )


def _check_namespace(tool: Mapping[str, Any], where: str) -> None:
    _check_name(tool, where)
    _check_fields(tool, where, ("description", str, "a string"))
    if not isinstance(tool.get("tools"), list):
        raise wrong(f"{where}.tools", "must be a list of tools")
    for index, inner in enumerate(tool["tools"]):
        place = f"{where}.tools[{index}]"
        if _kind(inner, place) not in _NAMED:
            raise wrong(f"{place}.type", f"must be {' or '.join(_NAMED)}", "invalid_value")
        _check_named_tool(inner, place)


def _check_described(tool: Mapping[str, Any], where: str) -> None:
    """One whose function is known here."""
    if tool["type"] == TOOL_SEARCH:
        _check_fields(tool, where, ("description", str, "a string"), ("parameters", dict, "an object"))
        if tool.get("execution") not in (None, "server", "client"):
            raise wrong(f"{where}.execution", "must be server or client", "invalid_value")
    if tool["type"] != "shell" or tool.get("environment") is None:
        return
    environment, field = tool["environment"], f"{where}.environment"
    if not isinstance(environment, dict):
        raise wrong(field, "must be an object")
    if environment.get("type") != "local":
        raise not_served(f"{field}.type", f"`{field}.type`: a shell that is not the client's own (`local`)")
    skills = environment.get("skills")
    if not isinstance(skills, list | None) or not all(
        isinstance(skill, dict) and all(isinstance(skill.get(name), str) for name in _SKILL) for skill in skills or ()
    ):
        raise wrong(f"{field}.skills", f"must be a list of objects with {', '.join(_SKILL)}")


_SKILL: Final = ("name", "description", "path")


def _check_served(tool: dict[str, Any], where: str, known: set[str]) -> None:
    """A tool that the server runs; ``known`` are those before it."""
    name = tool["type"]
    if name == mcp.MCP:
        mcp.check_mcp(tool, where)
        name = tool["server_label"]
    else:
        _check_fields(tool, where, ("external_web_access", bool, "true or false"))
    if name in known:
        raise refused(where, "another tool is this one already")
    known.add(name)
    if len(known) > mcp.MAX_SERVERS:
        raise wrong("tools", f"names more than {mcp.MAX_SERVERS} servers", "array_above_max_length")


# ---- what a model is offered


def client_functions(tools: Iterable[dict[str, Any]]) -> dict[str, ClientTool]:
    """All that the client runs, of checked tools, by the name of the function."""
    return dict(_all_offered(tools))


def _all_offered(tools: Iterable[dict[str, Any]]) -> list[tuple[str, ClientTool]]:
    return [one for index, tool in enumerate(tools) for one in _offered(tool, f"tools[{index}]")]


def _offered(tool: dict[str, Any], where: str) -> list[tuple[str, ClientTool]]:
    kind = tool["type"]
    if mcp.runs_here(tool) or _is_unused(tool):
        return []
    if kind in client_tools.CALLS:
        return [(kind, ClientTool(kind, kind, None, where, client_tools.described(tool)))]
    if kind != NAMESPACE:
        return [(tool["name"], ClientTool(kind, tool["name"], None, where, tool))]
    found = []
    for index, inner in enumerate(tool["tools"]):
        name = function_name(inner["name"], tool["name"])
        made = {**inner, "name": name}
        if index == 0 and tool.get("description"):
            # once: it would be repeated to the model for each function
            said = f"About all {tool['name']}__ functions: {tool['description']}"
            made["description"] = f"{inner['description']}\n\n{said}" if inner.get("description") else said
        found.append((name, ClientTool(inner["type"], inner["name"], tool["name"], f"{where}.tools[{index}]", made)))
    return found


def _is_unused(tool: Mapping[str, Any]) -> bool:
    """Whether it is accepted, and gives a model nothing to call: a search of the web that may not reach it, and a
    search by the server for tools that the model is offered anyway."""
    if tool["type"] == TOOL_SEARCH:
        return tool.get("execution") != "client"
    return tool["type"] in mcp.HOSTED and not mcp.runs_here(tool)


def chat_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checked tools in chat's shape, without those that the server runs: it offers them once it knows them."""
    found = [offered.tool for _, offered in _all_offered(tools)]
    return [_custom(tool) if tool["type"] == "custom" else _function(tool) for tool in found]


def places_of(tools: Sequence[dict[str, Any]]) -> list[str]:
    """The fields of the client's definitions of :func:`chat_tools`."""
    return [offered.where for _, offered in _all_offered(tools)]


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


def loaded_tools(tools: Sequence[dict[str, Any]], found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """``tools``, and behind them those that are ``found`` in items and that are not among them; all are checked."""
    known = set(client_functions(tools))
    more: list[dict[str, Any]] = []
    for tool in found:
        inner = tool["tools"] if tool["type"] == NAMESPACE else [tool]
        namespace = tool["name"] if tool["type"] == NAMESPACE else None
        new = [one for one in inner if function_name(one["name"], namespace) not in known]
        known.update(function_name(one["name"], namespace) for one in new)
        more += new if namespace is None else [{**tool, "tools": new}] if new else []
    return [*tools, *more]


# ---- what it must do with them


def check_choice(choice: str | dict[str, Any] | None, tools: Sequence[dict[str, Any]]) -> None:
    """Raises BadRequest naming the field."""
    if choice is None or (isinstance(choice, str) and choice in ("none", "auto")):
        return
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise wrong("tool_choice", f"must be {', '.join(_CHOICES)} or an object")
        if not tools:
            raise wrong("tool_choice", "is `required`, but there are no `tools`")
        return
    kind = choice.get("type")
    if kind in _NAMED or kind in _CHOSEN or kind == mcp.MCP:
        _check_named(choice, tools, "tool_choice")
    elif kind == "allowed_tools":
        if choice.get("mode") not in ("auto", "required"):
            raise wrong("tool_choice.mode", "must be auto or required")
        allowed = choice.get("tools")
        if not isinstance(allowed, list) or not allowed:
            raise wrong("tool_choice.tools", "must name at least one tool")
        for index, one in enumerate(allowed):
            where = f"tool_choice.tools[{index}]"
            if not isinstance(one, dict):
                raise wrong(where, "must be an object")
            _check_named(one, tools, where)
    elif isinstance(kind, str):
        raise not_served("tool_choice.type", f"`tool_choice.type` of `{kind[:40]}`")
    else:
        raise wrong("tool_choice.type", "must be function, custom or allowed_tools")


def _check_named(choice: dict[str, Any], tools: Sequence[dict[str, Any]], where: str) -> None:
    kind = choice.get("type")
    if kind == mcp.MCP:
        if not isinstance(choice.get("server_label"), str) or choice["server_label"] not in mcp.labels(tools):
            raise refused(f"{where}.server_label", "there is no such server in `tools`")
        if not isinstance(choice.get("name"), str | None):
            raise wrong(f"{where}.name", "must be a string")
        return
    if kind in client_tools.CALLS or kind in mcp.HOSTED:
        if all(tool["type"] != kind or mcp.runs_here(tool) for tool in tools):
            raise refused(f"{where}.type", "there is no such tool in `tools`")
        return
    if not isinstance(choice.get("name"), str):
        raise missing(f"{where}.name")
    if not isinstance(kind, str) or not functions_meant(choice, client_functions(tools)):
        raise refused(f"{where}.name", "there is no such tool in `tools`")


def functions_meant(choice: Mapping[str, Any], functions: Mapping[str, ClientTool]) -> list[str]:
    """Names of the ``functions`` that one tool of a choice means: a namespace means all that it holds."""
    kind, name, namespace = choice["type"], choice.get("name"), choice.get("namespace")
    if kind == NAMESPACE:
        return [function for function, tool in functions.items() if tool.namespace == name]
    if kind in _NAMED:
        # a function of a namespace may be named as a model knows it, for the SDK's type has no word for the namespace
        return [
            function
            for function, tool in functions.items()
            if tool.kind == kind
            and ((tool.name, tool.namespace) == (name, namespace) or (function, None) == (name, namespace))
        ]
    return [function for function, tool in functions.items() if tool.kind == kind]


def chat_choice(choice: str | dict[str, Any] | None, tools: Sequence[dict[str, Any]]) -> str | dict[str, Any] | None:
    """A checked choice in chat's shape, without tools that the server runs."""
    if choice is None or isinstance(choice, str):
        return choice
    functions = client_functions(tools)
    if choice["type"] == "allowed_tools":
        meant = [name for one in choice["tools"] for name in functions_meant(one, functions)]
        if not meant:
            return None if any(one["type"] == mcp.MCP for one in choice["tools"]) else "none"
        named = [_named(functions[name], name) for name in dict.fromkeys(meant)]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": named}}
    if choice["type"] == mcp.MCP:
        return None
    name = next(iter(functions_meant(choice, functions)), None)
    if name is None:  # it is refused as one that is not there
        return {"type": choice["type"], choice["type"]: {"name": choice.get("name")}}
    return _named(functions[name], name)


def _named(tool: ClientTool, name: str) -> dict[str, Any]:
    kind = "custom" if tool.kind == "custom" else "function"
    return {"type": kind, kind: {"name": name}}


# ---- what a response repeats


def shown_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools as the response repeats them, with all required fields of their types."""
    return [_shown(tool) for tool in tools]


_SHOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "function": ("type", "name", "description", "parameters", "strict", "defer_loading"),
    "custom": ("type", "name", "description", "defer_loading"),
    "shell": ("type", "environment"),
    TOOL_SEARCH: ("type", "execution", "description", "parameters"),
}


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["type"] == mcp.MCP or tool["type"] in mcp.HOSTED:
        return mcp.shown(tool)
    kept: dict[str, Any] = {name: tool[name] for name in _SHOWN.get(tool["type"], ("type",)) if name in tool}
    match tool["type"]:
        case "function":
            return {"parameters": None, "strict": None, **kept}
        case "custom":
            return {**kept, "format": tool.get("format") or {"type": "text"}}
        case "namespace":
            said = {"name": tool["name"], "description": tool.get("description") or ""}
            return {**kept, **said, "tools": shown_tools(tool["tools"])}
        case "shell" if kept.get("environment"):
            return {**kept, "environment": _shown_environment(kept["environment"])}
        case _:
            return kept


def _shown_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    if not environment.get("skills"):
        return {"type": "local"}
    return {"type": "local", "skills": [{name: skill[name] for name in _SKILL} for skill in environment["skills"]]}
