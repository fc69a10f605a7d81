"""gpt-oss's channels."""

import json
from functools import partial

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.parsing.harmony import MARKERS, HarmonyParser
from stentor.server.parsing.interface import CallArguments, CallEnd, CallStart, Content, Piece, Thought, Tool
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.tests.examples import examples
from stentor.tests.server.parsing.pieces import check_every_split, cut, cuts, parse, texts

TOOLS = [Tool("get_weather", None, {"type": "object"}), Tool("browser.search", None, None)]

PYTHON = [*TOOLS, Tool("python.python", None, None)]

TEMPLATE = (
    "<|start|>user<|message|>{{ question }}<|end|><|start|>assistant"
    "{% if thinking %}<|channel|>analysis<|message|>{{ thinking }}<|end|><|start|>assistant{% endif %}"
    "{% if preamble %}<|channel|>commentary<|message|>{{ preamble }}<|end|><|start|>assistant{% endif %}"
    "{% if call %}{% if early %} to=functions.{{ call.name }}<|channel|>commentary"
    "{% else %}<|channel|>commentary to=functions.{{ call.name }}{% endif %}"
    " <|constrain|>json<|message|>{{ call.arguments | json }}<|call|>"
    "{% else %}<|channel|>final<|message|>{{ answer }}<|return|>{% endif %}"
)
"""Written from the cookbook's description of the format."""


def read(text: str, tools: list[Tool] = TOOLS, *, opened: bool = False) -> list[Piece]:
    return check_every_split(lambda: HarmonyParser(tools, opened=opened), text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel|>analysis<|message|>Hm.<|end|>", [Thought("Hm.")]),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hé 😀<|return|>",
            [Thought("Hm."), Content("Hé 😀")],
        ),
        ("<|channel|>final<|message|>a < b <|en", [Content("a < b <|en")]),
        ("<|channel|>analysis<|message|>cut o", [Thought("cut o")]),
        ("<|channel|>fin", []),
        ("<|channel|>final<|mess", []),
        ("<|channel|>final<|message|><|return|>", []),
        ("<|message|>Hi<|return|>", [Content("Hi")]),
        ("Hello, no channels", [Content("Hello, no channels")]),
        ("to be <|end|> said", [Content("to be ")]),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>",
            [Thought("a\nb")],
        ),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>Done.",
            [Content("I look.\nDone.")],
        ),
        ("<|channel|>final<|message|>a<|start|>assistant<|channel|>final<|message|>b", [Content("a\nb")]),
    ],
)
def test_messages_are_told_apart_by_their_channels(text: str, expected: list[Piece]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get_weather<|message|>",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.get_weather<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=functions.get_weather code<|message|>",
        "<|channel|>commentary to=get_weather <|constrain|>json<|message|>",
    ],
)
def test_a_message_to_a_function_is_a_call(header: str) -> None:
    assert read(header + '{"city": "Zürich"}<|call|>') == [
        CallStart("get_weather"),
        CallArguments('{"city": "Zürich"}'),
        CallEnd(),
    ]


def test_a_call_without_arguments_has_an_empty_object_and_one_cut_short_no_end() -> None:
    header = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>"
    assert read(header + " <|call|>") == [CallStart("now"), CallArguments("{}"), CallEnd()]
    assert read(header + '{"a": 1') == [CallStart("now"), CallArguments('{"a": 1')]
    assert read(header) == [CallStart("now")]


def test_several_calls_follow_one_another() -> None:
    one = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    assert read(f"{one}<|start|>assistant{one}") == 2 * [CallStart("f"), CallArguments("{}"), CallEnd()]


def test_a_built_in_tool_is_called_where_it_is_offered_and_else_thought() -> None:
    text = '<|channel|>analysis to=browser.search code<|message|>{"query": "x"}<|call|>'
    assert read(text) == [CallStart("browser.search"), CallArguments('{"query": "x"}'), CallEnd()]
    assert read(text, TOOLS[:1]) == [Thought('{"query": "x"}')]
    assert read(text.replace("browser.search", "functions.f"), []) == [Thought('{"query": "x"}')]


def test_only_the_body_of_an_analysis_counts_as_thought() -> None:
    parser = HarmonyParser(TOOLS, opened=False)
    counted = []
    parts = ("<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>", "assistant")
    for token in (*parts, "<|channel|>", "final", "<|message|>", "Hi", "<|return|>"):
        counted.append(parser.thinking)
        parser.push(token)
    assert counted == [False, False, False, True, True, *[False] * 7]


def test_a_prompt_may_have_begun_a_message() -> None:
    format = REASONING_FORMATS["gpt_oss"]
    assert not format.opened("<|start|>assistant", None, "")
    assert not format.opened("<|start|>user<|message|><|channel|>analysis<|end|><|start|>assistant", None, "")
    assert format.opened("<|start|>assistant<|channel|>analysis<|message|>", None, "")
    assert format.opened("<|start|>assistant<|channel|>analysis<|message|>Let me", None, "")
    assert not format.opened("<|start|>assistant<|channel|>final<|message|>The", None, "")
    assert format.opened("<|channel|>analysis<|message|>Let me", None, "")
    ended = "<|start|>assistant<|channel|>analysis<|message|>Hm"
    assert not format.opened(f"{ended}<|end|><|start|>assistant", None, "")
    assert not format.opened(f"{ended}<|end|>", None, "")
    assert read(" see<|end|><|start|>assistant<|channel|>final<|message|>Hi", opened=True) == [
        Thought(" see"),
        Content("Hi"),
    ]


@settings(max_examples=examples(60, 600), deadline=None)
@given(texts(*sorted(MARKERS), " to=functions.f", "analysis", "final", "commentary", "assistant"), cuts, st.booleans())
def test_however_a_text_is_cut_it_means_what_the_whole_means(text: str, places: list[int], opened: bool) -> None:
    whole = parse(HarmonyParser(TOOLS, opened=opened), [text])
    assert parse(HarmonyParser(TOOLS, opened=opened), cut(text, places)) == whole
    assert parse(HarmonyParser(TOOLS, opened=opened), list(text)) == whole


def test_a_header_without_end_becomes_an_answer_and_is_not_held_for_ever() -> None:
    text = "<|channel|>final" + "x" * 6000 + "<|message|>late"
    whole = parse(HarmonyParser(TOOLS, opened=False), [text])
    assert whole == [Content(text)]
    parser = HarmonyParser(TOOLS, opened=False)
    assert parse(parser, cut(text, list(range(0, len(text), 7)))) == whole


names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,12}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('a"{}\\é😀 ', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab{", max_size=3), inner, max_size=3),
    max_leaves=6,
)
said = st.text("ab.<| é😀\n", max_size=12)


@settings(max_examples=examples(50, 500), deadline=None)
@given(said, said, said, names, st.dictionaries(st.text("ab", min_size=1), values, max_size=3), st.booleans(), cuts)
def test_what_a_template_writes_is_read_back(
    thinking: str, preamble: str, answer: str, name: str, arguments: dict[str, object], early: bool, places: list[int]
) -> None:
    environment = jinja2.Environment(autoescape=False)
    environment.filters["json"] = partial(json.dumps, ensure_ascii=False)
    template = environment.from_string(TEMPLATE)
    prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
    for call in ({"name": name, "arguments": arguments}, None):
        whole = template.render(
            question="Hi", thinking=thinking, preamble=preamble, answer=answer, call=call, early=early
        )
        assert whole.startswith(prompt)
        text = whole.removeprefix(prompt)
        pieces = parse(HarmonyParser(TOOLS, opened=False), cut(text, places))
        expected: list[Piece] = [Thought(thinking)] if thinking else []
        if call is None:
            content = "\n".join(part for part in (preamble, answer) if part)
            expected += [Content(content)] if content else []
        else:
            expected += [Content(preamble)] if preamble else []
            expected += [CallStart(name), CallArguments(json.dumps(arguments, ensure_ascii=False)), CallEnd()]
        assert pieces == expected


@pytest.mark.parametrize("code", ["print('é')\n", ' x = "\\n" # 😀', '{"a": 1}', "\t"])
def test_code_for_python_becomes_its_one_argument(code: str) -> None:
    text = f"<|channel|>analysis to=python code<|message|>{code}<|call|>"
    start, *arguments, end = read(text, PYTHON)
    assert (start, end) == (CallStart("python.python"), CallEnd())
    assert json.loads("".join(piece.text for piece in arguments if isinstance(piece, CallArguments))) == {"code": code}


def test_without_code_or_without_such_a_tool_nothing_is_made_up() -> None:
    empty = "<|channel|>analysis to=python code<|message|><|call|>"
    assert read(empty, PYTHON) == [CallStart("python.python"), CallArguments('{"code": ""}'), CallEnd()]
    assert read("<|channel|>analysis to=python code<|message|>print(1)<|call|>") == [Thought("print(1)")]
    own = [Tool("python", None, None)]
    assert read('<|channel|>commentary to=functions.python<|message|>{"a":1}<|call|>', own) == [
        CallStart("python"),
        CallArguments('{"a":1}'),
        CallEnd(),
    ]
