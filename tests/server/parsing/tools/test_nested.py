"""MiniMax-M3's calls: elements within elements, whose types only the tool's schema tells."""

from typing import Any, Final

import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.server.grammar.lark import Lark
from stentor.server.parsing.interface import Tool
from stentor.server.parsing.output import TOOL_FORMATS
from stentor.server.parsing.tools.nested import MAX_DEPTH
from stentor.tests.server.parsing.tools.reading import cut, joined, pieces, read
from stentor.tests.server.parsing.tools.test_grammars import compiler_with

FORMAT: Final = TOOL_FORMATS["minimax_m3"]
NS: Final = "]<]minimax[>["
STOP: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "day": {"type": "integer"}, "next": {"$ref": "#/$defs/Stop"}},
    "required": ["name"],
    "additionalProperties": False,
}
TRIP: Final = Tool(
    "plan",
    None,
    {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}, "minItems": 1},
            "home": {"anyOf": [{"$ref": "#/$defs/Stop"}, {"type": "null"}]},
            "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
            "prices": {"type": "object", "additionalProperties": {"type": "number"}},
            "any": {},
        },
        "$defs": {"Stop": STOP},
        "required": ["title"],
    },
)


def e(name: str, *inner: str) -> str:
    return f"{NS}<{name}>{''.join(inner)}{NS}</{name}>"


def call(*members: str, name: str = "plan") -> str:
    return f'{NS}<tool_call>\n{NS}<invoke name="{name}">{"".join(members)}{NS}</invoke>\n{NS}</tool_call>'


def arguments(*members: str) -> Any:
    text = call(*members)
    found = read(FORMAT, text, tools=(TRIP,))
    assert (found.content, len(found.calls), found.calls[0].whole) == ("", 1, True)
    assert read(FORMAT, *cut(text, 1), tools=(TRIP,)) == found
    return found.calls[0].value


@pytest.mark.parametrize(
    ("members", "value"),
    [
        ([e("stops", e("item", e("name", "A"), e("day", "1")), e("item", e("name", "2"), e("next", e("day", "3"))))],
         {"stops": [{"name": "A", "day": 1}, {"name": "2", "next": {"day": 3}}]}),
        ([e("home", e("name", "1"), e("day", "1"))], {"home": {"name": "1", "day": 1}}),
        ([e("home", "null")], {"home": None}),
        ([e("grid", e("item", e("item", "1"), e("item", "2.5")), e("item"))], {"grid": [[1, 2.5], []]}),
        ([e("prices", e("a b", "1.5"), e("c", "2"))], {"prices": {"a b": 1.5, "c": 2}}),
        ([e("stops"), e("prices"), e("title")], {"stops": [], "prices": {}, "title": ""}),
        ([e("any", e("item", "1"), e("item", "b"))], {"any": ["1", "b"]}),
        ([e("any", e("x", e("y", "1")))], {"any": {"x": {"y": "1"}}}),
        ([e("title", " <b>&amp;\n</title>\n ")], {"title": " <b>&amp;\n</title>\n "}),
        ([e("stops", '[{"name": "A"}]'), e("prices", ' {"a": 1} ')], {"stops": [{"name": "A"}], "prices": {"a": 1}}),
        (["\n ", e("grid", "\n", e("item", "\n ", e("item", " 1 "), "\n"), "\n"), "\n"], {"grid": [[1]]}),
    ],
)  # fmt: skip
def test_elements_have_the_types_of_the_schema(members: list[str], value: Any) -> None:
    assert arguments(*members) == value


def test_a_string_is_handed_out_while_it_comes_and_what_only_looks_like_a_tag_is_part_of_it() -> None:
    text = call(e("title", f"a{NS}<b>c", NS), e("grid", e("item", e("item", "1"))))
    found = pieces(FORMAT, cut(text, 1), (TRIP,))
    at = text.index("c" + NS) + 1
    so_far = joined(piece for some in found[:at] for piece in some).calls[0].arguments
    assert so_far == f'{{"title": "a{NS}<b>c'
    assert joined(piece for some in found for piece in some).calls[0].value == {
        "title": f"a{NS}<b>c{NS}",
        "grid": [[1]],
    }


def test_an_end_tag_that_is_missing_or_misspelt_ends_what_it_should() -> None:
    item, end = f"{NS}<item>", f"{NS}</item>"
    assert arguments(f"{NS}<grid>{item}{item}1{end}", f"{NS}</grid>", e("title", "x")) == {"grid": [[1]], "title": "x"}
    assert arguments(f"{NS}<title>x{NS}</titel>", e("any", "y")) == {"title": "x", "any": "y"}
    assert arguments(f"{NS}<home>{NS}<name>x") == {"home": {"name": "x"}}


def test_a_call_that_is_nested_too_deeply_ends_without_recursion() -> None:
    reading = read(FORMAT, *cut(call(f"{NS}<x>" * 100_000), 4096), tools=(TRIP,))
    assert [each.whole for each in reading.calls] == [False]
    assert reading.calls[0].arguments.count("{") <= MAX_DEPTH


def test_a_custom_tools_text_may_hold_tags() -> None:
    tool = Tool("patch", None, {"properties": {"input": {"type": "string"}}}, grammar="start: /.*/")
    text = call(e("input", f'"a{NS}</input>"'), name="patch")
    assert read(FORMAT, text, tools=(tool,)).named == [("patch", {"input": f"a{NS}</input>"})]


def fits(tool: Tool, text: str) -> bool:
    lark = Lark({})
    matcher = compiler_with(()).compile(lark.source(FORMAT.grammar(lark, [tool], parallel=True)))
    return all(matcher.consume(byte) for byte in text.encode()) and matcher.accepting()


@pytest.mark.parametrize(
    ("members", "allowed"),
    [
        ([e("title", "x")], True),
        ([e("title", "x"), e("stops", e("item", e("name", "A"), e("day", "1")))], True),
        ([e("title", "x"), e("home", e("name", "A"))], True),
        ([e("title", "x"), e("home", "null")], True),
        ([e("title", "x"), e("grid", e("item", e("item", "1")), e("item"))], True),
        ([e("title", "x"), e("grid")], True),
        ([e("title", "x"), e("prices", '{"a": 1}')], True),
        ([], False),
        ([e("title", "x"), e("stops")], False),
        ([e("title", "x"), e("stops", e("item", e("day", "1")))], False),
        ([e("title", "x"), e("stops", e("item", e("name", "A"), e("day", "one")))], False),
        ([e("title", "x"), e("grid", e("item", "1"))], False),
        ([e("title", f"x{NS}<b>")], False),
        ([e("title", "x"), e("other", "x")], False),
    ],
)
def test_the_grammar_holds_elements_to_the_schema(members: list[str], allowed: bool) -> None:
    assert fits(TRIP, call(*members)) == allowed


def test_the_grammar_follows_a_schema_that_contains_itself() -> None:
    inner = e("name", "D")
    for name in "CBA":
        inner = f"{e('name', name)}{e('next', inner)}"
    assert fits(TRIP, call(e("title", "x"), e("stops", e("item", inner))))
    assert not fits(TRIP, call(e("title", "x"), e("stops", e("item", inner.replace("name", "nam")))))


def test_what_elements_cannot_hold_is_json_in_the_grammar() -> None:
    odd = {"type": "object", "properties": {"a>b": {"type": "integer"}}, "required": ["a>b"]}
    tool = Tool("plan", None, {"properties": {"o": odd}, "required": ["o"]})
    assert fits(tool, call(e("o", '{"a>b": 1}')))
    assert not fits(tool, call(e("o", e("a>b", "1"))))


@pytest.mark.parametrize("bounds", [{"maxItems": "} x {"}, {"minItems": -1}])
def test_bounds_that_are_no_counts_are_refused(bounds: dict[str, Any]) -> None:
    tool = Tool("f", None, {"properties": {"a": {"type": "array", "items": {"type": "integer"}, **bounds}}})
    with pytest.raises(BadRequest, match=f"tools.f.parameters.{next(iter(bounds))}"):
        FORMAT.grammar(Lark({}), [tool], parallel=False)
