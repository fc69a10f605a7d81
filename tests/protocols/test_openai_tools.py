"""Tools of a chat request: what is read of them, and what is refused with its place."""

from typing import Any

import msgspec
import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import MAX_TOOL_DESCRIPTION, MAX_TOOLS, Limits
from stentor.protocols.openai.tools import MAX_LARK, NO_TOOLS, ToolUse, tool_use


class Request(msgspec.Struct):
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def custom(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **fields}}


def grammar(syntax: str, definition: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def allowed(mode: str, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


F, G = function("f", description="does", parameters=SCHEMA, strict=True), function("g.h-1")


def read(**fields: Any) -> ToolUse:
    return tool_use(Request(**fields), Limits())


def test_nothing_said_is_no_tools() -> None:
    assert read() is NO_TOOLS
    assert read(tools=[]) is NO_TOOLS
    assert read(tool_choice="none").mode == "none"


def test_a_function_is_read_whole() -> None:
    use = read(tools=[F, G])
    assert [(tool.name, tool.description, tool.parameters, tool.strict) for tool in use.tools] == [
        ("f", "does", SCHEMA, True),
        ("g.h-1", None, None, False),
    ]
    assert (use.mode, use.named, use.parallel, use.legacy, use.usable) == ("auto", False, True, False, use.tools)


@pytest.mark.parametrize(
    ("choice", "mode", "usable", "named"),
    [
        (None, "auto", "fg", False),
        ("auto", "auto", "fg", False),
        ("none", "none", "fg", False),
        ("required", "required", "fg", False),
        ({"type": "function", "function": {"name": "g"}}, "required", "g", True),
        ({"function": {"name": "g"}}, "required", "g", True),
        (allowed("auto", function("f")), "auto", "f", False),
        (allowed("required", function("f"), function("g")), "required", "fg", False),
    ],
)
def test_each_tool_choice_is_read_as_its_mode_and_usable_tools(
    choice: Any, mode: str, usable: str, named: bool
) -> None:
    use = read(tools=[F, function("g")], tool_choice=choice)
    assert (use.mode, "".join(tool.name for tool in use.usable), use.named) == (mode, usable, named)
    assert len(use.tools) == 2


def test_a_named_tool_is_called_once_and_parallel_calls_can_be_declined() -> None:
    assert read(tools=[F], tool_choice="required").parallel
    assert not read(tools=[F], parallel_tool_calls=False).parallel
    assert not read(tools=[F], tool_choice={"type": "function", "function": {"name": "f"}}).parallel


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    use = read(tools=[custom("c"), custom("d", format={"type": "text"}), custom("e", format=grammar("regex", "a|b"))])
    plain, text, constrained = (tool.parameters or {} for tool in use.tools)
    assert plain == text
    assert plain["properties"] == {"input": {"type": "string"}}
    assert plain["required"] == ["input"]
    assert constrained["properties"]["input"]["pattern"] == "^(?:a|b)$"
    assert [tool.strict for tool in use.tools] == [False, False, True]
    assert use.custom == {"c", "d", "e"}
    named = read(tools=[custom("c"), F], tool_choice={"type": "custom", "custom": {"name": "c"}})
    assert [tool.name for tool in named.usable] == ["c"]


def test_a_grammar_is_told_to_the_model_and_kept() -> None:
    definition = 'start: "a" | "b"'
    (tool,) = read(tools=[custom("c", format=grammar("lark", definition))]).tools
    assert (tool.grammar, tool.strict, tool.field) == (definition, True, "tools[0].custom.format.grammar.definition")
    assert tool.parameters is not None
    said = tool.parameters["properties"]["input"]
    assert said["type"] == "string"
    assert definition in said["description"]


def test_functions_are_tools_of_which_one_is_called() -> None:
    use = read(functions=[{"name": "f", "parameters": SCHEMA}, {"name": "g"}])
    assert (use.mode, use.legacy, use.parallel) == ("auto", True, False)
    assert read(functions=[{"name": "f"}], function_call="none").mode == "none"
    named = read(functions=[{"name": "f"}, {"name": "g"}], function_call={"name": "g"})
    assert (named.mode, named.named, [tool.name for tool in named.usable]) == ("required", True, ["g"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [F, function("")]}, "tools[1].function.name"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("é")]}, "tools[0].function.name"),
        ({"tools": [function("a" * 129)]}, "tools[0].function.name"),
        ({"tools": [function("f", description=5)]}, "tools[0].function.description"),
        (
            {"tools": [function("f", description="x" * (MAX_TOOL_DESCRIPTION + 1))]},
            "tools[0].function.description",
        ),
        ({"tools": [function("f", parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function("f", parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
        ({"tools": [function("f", parameters={"description": "x" * (1 << 20)})]}, "tools[0].function.parameters"),
        ({"tools": [function("f", strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [F, F]}, "tools[1].function.name"),
        ({"tools": [function(f"f{index}") for index in range(MAX_TOOLS + 1)]}, "tools"),
        ({"tools": [custom("c", format={"type": "xml"})]}, "tools[0].custom.format.type"),
        ({"tools": [custom("c", format=grammar("peg", "a"))]}, "tools[0].custom.format.grammar.syntax"),
        (
            {"tools": [custom("c", format=grammar("lark", "a" * (MAX_LARK + 1)))]},
            "tools[0].custom.format.grammar.definition",
        ),
        (
            {"tools": [custom("c", format=grammar("regex", "a" * (1 << 20)))]},
            "tools[0].custom.format.grammar.definition",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [F], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
        ({"tools": [F], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [F], "tool_choice": {"type": "tool"}}, "tool_choice.type"),
        ({"tools": [F], "tool_choice": {"name": "f"}}, "tool_choice.type"),
        ({"tools": [F], "tool_choice": allowed("none", F)}, "tool_choice.allowed_tools.mode"),
        ({"tools": [F], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [F], "tool_choice": allowed("auto", G)}, "tool_choice.allowed_tools.tools[0].function.name"),
        ({"tools": [F], "tool_choice": allowed("auto", F, 5)}, "tool_choice.allowed_tools.tools[1]"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
        ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
        ({"functions": [{"name": "f"}], "tools": [F]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"function_call": "auto", "tools": [F]}, "function_call"),
    ],
)
def test_a_mistake_is_named_with_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert f"`{param}`" in caught.value.message
    assert len(caught.value.message) < 400
