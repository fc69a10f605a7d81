"""Reasoning, then content with tool calls in it."""

import json

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.parsing.interface import CallArguments, CallEnd, CallStart, Content, Parser, Piece, Thought, Tool
from stentor.server.parsing.output import TOOL_FORMATS, settle_output
from stentor.tests.examples import examples
from stentor.tests.server.parsing.pieces import check_every_split, cut, cuts, parse, texts

TOOLS = [Tool("f", None, {"type": "object", "properties": {"a": {"type": "string"}}})]
CALLS: list[Piece] = [CallStart("f"), CallArguments('{"a": "é"}'), CallEnd()]

FAMILIES = {
    "qwen3": (
        "hermes",
        "{% if opened %}{% else %}<think>\n{% endif %}{{ thought }}\n</think>\n\n{{ said }}"
        '<tool_call>\n{"name": {{ name | json }}, "arguments": {{ arguments | json }}}\n</tool_call>',
    ),
    "mistral": (
        "mistral",
        "{% if opened %}{% else %}[THINK]{% endif %}{{ thought }}[/THINK]{{ said }}"
        "[TOOL_CALLS]{{ name }}[ARGS]{{ arguments | json }}",
    ),
    "deepseek_v3": (
        "deepseek_v31",
        "{% if opened %}{% else %}<think>{% endif %}{{ thought }}</think>{{ said }}"
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>{{ name }}"
        "<\uff5ctool\u2581sep\uff5c>{{ arguments | json }}<\uff5ctool\u2581call\u2581end\uff5c>"
        "<\uff5ctool\u2581calls\u2581end\uff5c>",
    ),
    "kimi_k2": (
        "kimi_k2",
        "{% if opened %}{% else %}<think>{% endif %}{{ thought }}</think>{{ said }}"
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ name }}:0<|tool_call_argument_begin|>"
        "{{ arguments | json }}<|tool_call_end|><|tool_calls_section_end|>",
    ),
}
"""Of each, tools' format and what an assistant's turn looks like, written from the published formats."""


def parser(reasoning: str, tools: str, *, opened: bool = False, offered: list[Tool] = TOOLS) -> Parser:
    made = settle_output(reasoning, tools, "", "").parser(offered, opened=opened)
    assert made is not None
    return made


CALL_PARTS = ('{"name": "f", "arguments": {"a": "é"}}', '{"a": "é"}', "f", "functions.f:0", "f(a=1)", "[f()]", '"a"')
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        (f"<think>\nHm.\n</think>\n\n{CALL}", False, [Thought("Hm."), *CALLS]),
        (f"Hm.\n</think>\n\n{CALL}", True, [Thought("Hm."), *CALLS]),
        (f"Hm.\n{CALL}", True, [Thought("Hm."), *CALLS]),
        (CALL, False, CALLS),
        ("<think>Hm</think>Hi", False, [Thought("Hm"), Content("Hi")]),
        ("Hm </thi", True, [Thought("Hm </thi")]),
        ("<think>Hm</think><tool_c", False, [Thought("Hm"), Content("<tool_c")]),
    ],
)
def test_calls_are_looked_for_behind_reasoning_only(text: str, opened: bool, expected: list[Piece]) -> None:
    assert check_every_split(lambda: parser("qwen3", "hermes", opened=opened), text) == expected


def test_a_family_whose_reasoning_no_call_ends_thinks_on() -> None:
    text = f"I could write {CALL}.</think>Hi"
    pieces = check_every_split(lambda: parser("deepseek_r1", "hermes", opened=True), text)
    assert pieces == [Thought(f"I could write {CALL}."), Content("Hi")]


def test_without_tools_a_call_is_text() -> None:
    text = f"<think>Hm</think>{CALL}"
    pieces = check_every_split(lambda: parser("qwen3", "hermes", offered=[]), text)
    assert pieces == [Thought("Hm"), Content(CALL)]


@settings(max_examples=examples(40, 400), deadline=None)
@given(texts("<think>", "</think>", "<tool_call>", "</tool_call>", CALL), cuts, st.booleans())
def test_however_a_text_is_cut_it_means_what_the_whole_means(text: str, places: list[int], opened: bool) -> None:
    whole = parse(parser("qwen3", "hermes", opened=opened), [text])
    assert parse(parser("qwen3", "hermes", opened=opened), cut(text, places)) == whole
    assert parse(parser("qwen3", "hermes", opened=opened), list(text)) == whole


@pytest.mark.parametrize("tools", sorted({format.name for format in TOOL_FORMATS.values()}))
def test_every_format_of_calls_behind_reasoning_means_the_same_however_it_is_cut(tools: str) -> None:
    fragments = [*sorted(TOOL_FORMATS[tools].markers), *CALL_PARTS]

    @settings(max_examples=examples(10, 125), deadline=None)
    @given(texts("<think>", "</think>", *fragments), cuts, st.booleans())
    def check(text: str, places: list[int], opened: bool) -> None:
        whole = parse(parser("qwen3", tools, opened=opened), [text])
        assert parse(parser("qwen3", tools, opened=opened), cut(text, places)) == whole
        assert parse(parser("qwen3", tools, opened=opened), list(text)) == whole

    check()


thoughts = st.text("ab<]. é😀\n{", min_size=1, max_size=10).map(lambda text: text.strip("\n")).filter(bool)
arguments = st.dictionaries(st.text("ab", min_size=1), st.text('a"{}\\é😀< ', max_size=6), max_size=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_template_writes_is_read_back(family: str) -> None:
    tools, source = FAMILIES[family]
    environment = jinja2.Environment(autoescape=False)
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(source)

    @settings(max_examples=examples(40), deadline=None)
    @given(thoughts, arguments, st.sampled_from(["", "I look. "]), st.booleans(), cuts)
    def check(thought: str, given: dict[str, str], said: str, opened: bool, places: list[int]) -> None:
        text = template.render(thought=thought, arguments=given, said=said, opened=opened, name="f")
        pieces = parse(parser(family, tools, opened=opened), cut(text, places))
        kinds = [type(piece) for piece in pieces]
        assert kinds == [Thought, *([Content] if said else []), CallStart, CallArguments, CallEnd]
        assert pieces[0] == Thought(thought)
        content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        assert content.strip() == said.strip()
        call, body = (piece for piece in pieces if isinstance(piece, CallStart | CallArguments))
        assert isinstance(call, CallStart)
        assert call.name == "f"
        assert isinstance(body, CallArguments)
        assert json.loads(body.text) == given

    check()
