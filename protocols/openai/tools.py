"""Tools of a chat request, and the tool choice.

Fields are decoded one by one, so that an error names the place (``tools[3].function.name``).
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from ..common.bounds import TEXT_TOO_LONG, chars_at_most, items_at_most
from ..common.decoding import converted
from ..common.errors import BadRequest, refused, wrong
from ..common.limits import MAX_TOOL_DESCRIPTION, MAX_TOOLS, Limits
from .structured import check_schema

CUSTOM_INPUT: Final = "input"
"""The only argument of the function that represents a custom tool."""
MAX_LARK: Final = 1 << 16
"""Characters of a custom tool's grammar, which is rewritten for its place inside a JSON string."""
_GRAMMAR_FOLLOWS: Final = "Text that this grammar, in Lark, allows:"
"""Shown to the model with the grammar. Sampling enforces the grammar anyway; the model writes better text if it knows
it."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")

Mode = Literal["none", "auto", "required"]
_MODES: Final = ("none", "auto", "required")


class _Function(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _FunctionTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    function: _Function


class _GrammarText(msgspec.Struct, frozen=True):
    definition: str
    syntax: Literal["lark", "regex"]


class _TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    pass


class _GrammarFormat(msgspec.Struct, frozen=True, tag_field="type", tag="grammar"):
    grammar: _GrammarText


class _Custom(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    format: _TextFormat | _GrammarFormat | None = None


class _CustomTool(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    custom: _Custom


class _Named(msgspec.Struct, frozen=True):
    name: str


class _NamedFunction(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    function: _Named


class _NamedCustom(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    custom: _Named


class _Allowed(msgspec.Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class _AllowedTools(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    allowed_tools: _Allowed


class OfferedTool(msgspec.Struct, frozen=True):
    """One tool. A custom tool is the model's as a function with one text, ``input``."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    """JSON schema of the arguments; None: no arguments."""
    strict: bool
    custom: bool
    field: str
    """The client's field of the schema."""
    grammar: str | None = None
    """The Lark grammar of a custom tool's text, if it has one."""


class ToolUse(msgspec.Struct, frozen=True):
    """A request's tools and tool choice."""

    tools: tuple[OfferedTool, ...] = ()
    """All tools that the model sees."""
    mode: Mode = "none"
    allowed: frozenset[str] | None = None
    """Names of callable tools; None: all."""
    named: bool = False
    """The client has named the one tool that is called."""
    parallel: bool = True
    """More than one call may be made."""
    legacy: bool = False
    """The client spoke of ``functions``, and reads ``function_call``."""

    @property
    def usable(self) -> tuple[OfferedTool, ...]:
        return self.tools if self.allowed is None else tuple(tool for tool in self.tools if tool.name in self.allowed)

    @property
    def custom(self) -> frozenset[str]:
        """Names of custom tools."""
        return frozenset(tool.name for tool in self.tools if tool.custom)


NO_TOOLS: Final = ToolUse()


class ToolFields(Protocol):
    tools: list[Any] | None
    tool_choice: str | dict[str, Any] | None
    parallel_tool_calls: bool | None
    functions: list[Any] | None
    function_call: str | dict[str, Any] | None


def tool_use(request: ToolFields, limits: Limits) -> ToolUse:
    """Raises BadRequest naming the field."""
    if not (request.tools or request.functions or request.tool_choice or request.function_call):
        return NO_TOOLS
    if request.functions or request.function_call:
        return _legacy_use(request, limits)
    items_at_most(request.tools, MAX_TOOLS, "tools")
    tools = tuple(_tool(tool, f"tools[{index}]", limits) for index, tool in enumerate(request.tools or ()))
    _check_unique([tool.name for tool in tools], "tools", ".function.name")
    _check_length(tools, "tools", limits)
    choice = request.tool_choice
    parallel = request.parallel_tool_calls is not False
    if choice is None:
        return ToolUse(tools, "auto" if tools else "none", parallel=parallel)
    if isinstance(choice, str):
        return ToolUse(tools, _mode(choice, tools, "tool_choice"), parallel=parallel)
    if not tools:
        raise _needs_tools("tool_choice")
    return _chosen(choice, tools, parallel)


def _legacy_use(request: ToolFields, limits: Limits) -> ToolUse:
    """``functions`` and ``function_call``, which came before tools: one call at most."""
    if request.tools or request.tool_choice:
        field = "functions" if request.functions else "function_call"
        raise wrong(field, "excludes `tools` and `tool_choice`; use the latter two")
    items_at_most(request.functions, MAX_TOOLS, "functions")
    tools = []
    for index, function in enumerate(request.functions or ()):
        where = f"functions[{index}]"
        tools.append(_function(converted(function, _Function, where), where, limits))
    _check_unique([tool.name for tool in tools], "functions", ".name")
    _check_length(tools, "functions", limits)
    use = ToolUse(tuple(tools), "auto" if tools else "none", parallel=False, legacy=True)
    choice = request.function_call
    if choice is None:
        return use
    if isinstance(choice, str):
        if choice == "required":
            raise wrong("function_call", 'must be "none", "auto" or name a function')
        return msgspec.structs.replace(use, mode=_mode(choice, use.tools, "function_call"))
    if not tools:
        raise _needs_tools("function_call", "functions")
    name = _known(converted(choice, _Named, "function_call").name, use.tools, "function_call.name", "functions")
    return msgspec.structs.replace(use, mode="required", allowed=frozenset({name}), named=True)


def _mode(choice: str, tools: tuple[OfferedTool, ...], field: str) -> Mode:
    if choice not in _MODES:
        raise wrong(field, 'must be "none", "auto", "required", or an object', "invalid_value")
    if not tools and choice != "none":
        raise _needs_tools(field, "functions" if field == "function_call" else "tools")
    return choice  # type: ignore[return-value]  # it is one of them


def _chosen(choice: dict[str, Any], tools: tuple[OfferedTool, ...], parallel: bool) -> ToolUse:
    if "type" not in choice and "function" in choice:  # Hugging Face's client sends no type
        choice = {"type": "function", **choice}
    read = converted(choice, _NamedFunction | _NamedCustom | _AllowedTools, "tool_choice")
    if isinstance(read, _AllowedTools):
        allowed = read.allowed_tools
        names = _allowed_names(allowed.tools, tools)
        return ToolUse(tools, allowed.mode, names, parallel=parallel)
    name = _name_of(read, tools, "tool_choice")
    return ToolUse(tools, "required", frozenset({name}), named=True, parallel=False)


def _allowed_names(listed: list[dict[str, Any]], tools: tuple[OfferedTool, ...]) -> frozenset[str]:
    where = "tool_choice.allowed_tools.tools"
    if not listed:
        raise wrong(where, "must name at least one tool")
    items_at_most(listed, MAX_TOOLS, where)
    names = set()
    for index, tool in enumerate(listed):
        place = f"{where}[{index}]"
        names.add(_name_of(converted(tool, _NamedFunction | _NamedCustom, place), tools, place))
    return frozenset(names)


def _name_of(read: _NamedFunction | _NamedCustom, tools: tuple[OfferedTool, ...], where: str) -> str:
    if isinstance(read, _NamedCustom):
        return _known(read.custom.name, tools, f"{where}.custom.name")
    return _known(read.function.name, tools, f"{where}.function.name")


def _known(name: str, tools: tuple[OfferedTool, ...], field: str, among: str = "tools") -> str:
    if all(tool.name != name for tool in tools):
        shown = name if len(name) <= 128 else name[:128] + "…"
        raise refused(field, f"there is no tool `{shown}` in `{among}`", "invalid_value")
    return name


def _needs_tools(field: str, among: str = "tools") -> BadRequest:
    return wrong(field, f"needs `{among}`; send at least one, or leave it out")


def _tool(value: Any, where: str, limits: Limits) -> OfferedTool:
    read = converted(value, _FunctionTool | _CustomTool, where)
    if isinstance(read, _CustomTool):
        return _custom(read.custom, f"{where}.custom", limits)
    return _function(read.function, f"{where}.function", limits)


def _function(function: _Function, where: str, limits: Limits) -> OfferedTool:
    _check_name(function.name, where)
    chars_at_most(function.description, MAX_TOOL_DESCRIPTION, f"{where}.description")
    parameters, field = function.parameters, f"{where}.parameters"
    if parameters is not None:
        if parameters.get("type", "object") != "object":
            raise wrong(f"{field}.type", 'must be "object": arguments have names')
        check_schema(parameters, field, limits)
    return OfferedTool(function.name, function.description, parameters, bool(function.strict), False, field)


def _custom(custom: _Custom, where: str, limits: Limits) -> OfferedTool:
    _check_name(custom.name, where)
    chars_at_most(custom.description, MAX_TOOL_DESCRIPTION, f"{where}.description")
    text: dict[str, Any] = {"type": "string"}
    field = f"{where}.format"
    lark: str | None = None
    constrained = isinstance(custom.format, _GrammarFormat)
    if isinstance(custom.format, _GrammarFormat):
        grammar, field = custom.format.grammar, f"{where}.format.grammar.definition"
        if grammar.syntax == "lark":
            chars_at_most(grammar.definition, min(limits.max_grammar_chars, MAX_LARK), field)
            lark = grammar.definition
            text["description"] = f"{_GRAMMAR_FOLLOWS}\n{lark}"
        else:
            chars_at_most(grammar.definition, limits.max_regex_chars, field)
            text["pattern"] = f"^(?:{grammar.definition})$"
    parameters = {
        "type": "object",
        "properties": {CUSTOM_INPUT: text},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    return OfferedTool(custom.name, custom.description, parameters, constrained, True, field, lark)


def _check_name(name: str, where: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise wrong(
            f"{where}.name",
            "must be 1 to 128 characters of a-z, A-Z, 0-9, underscores, dots and dashes",
            "invalid_value",
        )


def _check_length(tools: Sequence[OfferedTool], field: str, limits: Limits) -> None:
    """All of them are written into the prompt."""
    length = sum(len(tool.description or "") + len(msgspec.json.encode(tool.parameters)) for tool in tools)
    if length > limits.max_prompt_chars:
        raise wrong(
            field, f"come to {length} characters; this server allows at most {limits.max_prompt_chars}", TEXT_TOO_LONG
        )


def _check_unique(names: list[str], field: str, tail: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            place = f"{field}[{index}]{tail}"
            raise refused(place, f"there is a tool `{name}` already", "invalid_value")
        seen.add(name)
