"""From what a request says of its answer to what may be written."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.core.grammar.matcher import Compiler, GrammarError
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.structured import ChoiceAnswer, JsonAnswer, RegexAnswer, json_answer
from stentor.server.grammar.answers import answer_expression
from stentor.server.grammar.lark import Lark
from stentor.server.grammar.whitespace import MAX_LENGTH, bounded_whitespace
from stentor.tests.examples import examples
from stentor.tests.server.grammar.asked import asked
from stentor.tests.server.grammar.test_lark import BYTES, SPECIAL, accepts

Accepts = Callable[[Any, str], bool]


@pytest.fixture(scope="module")
def bytewise() -> Compiler:
    return Compiler(BYTES)


@pytest.fixture(scope="module")
def allows(bytewise: Compiler) -> Accepts:
    """Whether an answer under these ``structured_outputs`` (or this answer) may be that text."""

    def allows(wanted: Any, text: str) -> bool:
        answer = asked(wanted) if isinstance(wanted, dict) else wanted
        lark = Lark(SPECIAL)
        return accepts(bytewise, lark.source(answer_expression(lark, answer)), text)

    return allows


def test_json_object_is_an_object_and_nothing_else(allows: Accepts) -> None:
    for wanted in ({"json_object": True}, asked(response_format={"type": "json_object"})):
        assert allows(wanted, '{"a": [1, {"b": null}]}')
        assert allows(wanted, "{}")
        for other in ("[]", "1", "null", '"a"', "", " {}", "{} "):
            assert not allows(wanted, other)


def test_a_schema_may_come_as_an_object_or_as_text(allows: Accepts) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    described = {"name": "n", "schema": schema, "strict": True, "description": "d"}
    for wanted in (
        {"json": schema},
        {"json": json.dumps(schema)},
        asked(response_format={"type": "json_schema", "json_schema": described}),
        asked(response_format={"type": "json_schema", "json_schema": {"schema": schema}}),
        asked(guided_json=schema),
        asked(json_schema=json.dumps(schema)),
        asked(response_format={"type": "json_object", "schema": schema}),
        asked(response_format={"type": "json_object", "value": schema}),
        asked(response_format={"type": "json", "value": schema}),
    ):
        assert allows(wanted, '{"a": 1}')
        assert not allows(wanted, "{}")


def test_fields_of_other_servers_hold_the_answer_too(allows: Accepts) -> None:
    for wanted in (
        asked(regex="a|b"),
        asked(ebnf='root ::= "a" | "b"'),
        asked(grammar='root ::= "a" | "b"'),
        asked(response_format={"type": "regex", "value": "a|b"}),
    ):
        assert allows(wanted, "a")
        assert not allows(wanted, "c")


def test_objects_have_no_properties_but_those_that_are_declared(allows: Accepts) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "o": {"type": "object"}}, "required": ["a"]}
    open_ = {**schema, "additionalProperties": True}

    def wanted(schema: Any, strict: bool | None) -> Any:
        described = {"name": "n", "schema": schema, "strict": strict}
        return asked(response_format={"type": "json_schema", "json_schema": described})

    for strict in (True, None, False):
        assert not allows(wanted(schema, strict), '{"a": 1, "b": 2}')
        assert allows(wanted(open_, strict), '{"a": 1, "b": 2}')
        assert allows(wanted(schema, strict), '{"a": 1, "o": {"b": 2}}') == (not strict)
    assert allows(wanted(None, True), '{"b": 2}')
    assert allows({"json_object": True, "disable_additional_properties": True}, '{"b": 2}')


def test_choices_patterns_and_their_older_names(allows: Accepts) -> None:
    choices: tuple[Any, ...] = ({"choice": ["a", "ab", "</s>"]}, asked(guided_choice=["a", "ab", "</s>"]))
    for wanted in choices:
        assert [text for text in ("a", "ab", "b", "abc", "") if allows(wanted, text)] == ["a", "ab"]
    for wanted in ({"regex": r"^\d{2}$"}, asked(guided_regex=r"\d{2}")):
        assert [text for text in ("1", "12", "123", "ab") if allows(wanted, text)] == ["12"]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"\d+-\d", ["12-3"], ["\u0663-3", "1-\u0663", "1--2"]),
        (r"\w+", ["aZ_9"], ["\xe9", "-"]),
        (r"\D\W", ["\u0663\xe9", "a "], ["1 ", "aa"]),
        (r"[-\d.]+", ["-1.5"], ["\u0663", "["]),
        (r"[^\w-]", ["\xe9"], ["a", "-"]),
        (r"[+-\d]+", ["+-1"], [",", "a"]),
        (r"[\w--\d]+", ["ab_"], ["1", "\xe9"]),
        (r"\\d\[\\w", ["\\d[\\w"], ["\\1[\\w"]),
    ],
)  # fmt: skip
def test_digits_and_letters_of_a_pattern_are_those_of_ascii(
    allows: Accepts, pattern: str, matching: list[str], others: list[str]
) -> None:
    for wanted in ({"regex": pattern}, asked(guided_regex=pattern)):
        assert [text for text in [*matching, *others] if allows(wanted, text)] == matching


ARITHMETIC = 'root ::= term ("+" term)* # a sum\nterm ::= [0-9]+ | "(" root ")"\n'


@pytest.mark.parametrize(
    ("grammar", "matching", "others"),
    [
        (ARITHMETIC, ["1+(2+33)", "((1))"], ["1+", "(1", "1 + 2", ""]),
        ('root ::= "SELECT " column " from " [a-z]+\ncolumn ::= "a" | "b"', ["SELECT a from x"], ["SELECT c from x"]),
        ('start ::= "only" | \'one\'', ["only", "one"], ["start"]),
        ("root ::= [^a-z\\]]{2}", ["A-", "é日"], ["a]", "A", "AAA"]),
        ('root ::= "\\x41\\u00e9\\U0001F600\\n\\"\\\\"', ['Aé😀\n"\\'], ["A"]),
        ('root ::= ("a" |\n  "b")+\n\n# end', ["abba"], ["", "c"]),
        ('root ::= "a"{2,3} "b"{2} "c"{,1} "d"{1,}', ["aabbd", "aaabbcdd"], ["abbd", "aabb", "aabbccd"]),
        ('a-rule ::= b_rule\nb_rule ::= "x" a-rule | ""', ["xxx", ""], ["y"]),
        ('root ::= "a</s>b"', ["a</s>b"], ["ab"]),
        ('root ::= [a-z]* "abc"', ["abc", "xyzabc", "abcabc"], ["ab", "xyz"]),
        (". ::= 1", None, None),
        ('root ::= "a" b', None, None),
        ('root ::= "a\nb"', None, None),
        ('root ::= ("a"', None, None),
        ('root ::= "a"\nroot ::= "b"', None, None),
        ("root ::= [z-a]", None, None),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, None, None),
        ("root ::= [a-z]{1,99999}", None, None),
        ('start: "a" NUMBER\nNUMBER: /[0-9]+/', ["a12"], ["a"]),
        ('?start: item+\nitem: "x" | "y" -> z\n%ignore " "', ["x y x"], ["z"]),
        ('start: %json {"type": "object"}', ['{"a": 1}', '{\n  "a": 1\n}'], ['{"a":\n\n1}', ' {"a": 1}']),
        ('start: "%json" | /%json/', ["%json"], [""]),
        ('start: %json {"not": {"type": "null"}}', None, None),
        ("start: %json [", None, None),
        ('start: a\na[max_tokens=3]: /.*/', None, None),
        ('start: a "x"\na[stop="x"]: /.*/', None, None),
        ('start: "stop=" | "a"', ["stop="], []),
    ],
)  # fmt: skip
def test_a_grammar_matches_the_texts_that_it_describes(
    allows: Accepts, grammar: str, matching: list[str] | None, others: list[str]
) -> None:
    if matching is None:
        with pytest.raises((BadRequest, GrammarError)) as refused:
            allows({"grammar": grammar}, "")
        if isinstance(refused.value, BadRequest):
            assert (refused.value.param or "").startswith("structured_outputs.grammar")
        return
    for wanted in ({"grammar": grammar}, asked(guided_grammar=grammar)):
        assert [text for text in matching if not allows(wanted, text)] == []
        assert [text for text in others if allows(wanted, text)] == []


@settings(max_examples=examples(40, 400), deadline=None)
@given(st.text(min_size=1, max_size=8))
def test_a_text_in_ebnf_matches_itself(bytewise: Compiler, text: str) -> None:
    quoted = "".join(f"\\U{ord(character):08x}" for character in text)
    lark = Lark(SPECIAL)
    source = lark.source(answer_expression(lark, asked({"grammar": f'root ::= "{quoted}"'})))
    assert accepts(bytewise, source, text)
    assert not accepts(bytewise, source, text + "x")


def _tags(format: dict[str, Any]) -> dict[str, Any]:
    return {"structural_tag": {"type": "structural_tag", "format": format}}


_NUMBER = {"type": "regex", "pattern": "[0-9]+"}
_OBJECT = {"type": "json_schema", "json_schema": {"type": "object"}}
_TRIGGERED = {
    "type": "triggered_tags",
    "triggers": ["<f"],
    "tags": [
        {"begin": "<f=a>", "content": _OBJECT, "end": "</f>"},
        {"begin": "<f=b>", "content": _NUMBER, "end": "</f>"},
    ],
}
_SEPARATED = {"type": "tags_with_separator", "separator": ",", "tags": [{"begin": "[", "content": _NUMBER, "end": "]"}]}


@pytest.mark.parametrize(
    ("format", "matching", "others"),
    [
        (_TRIGGERED, ['hi <f=a>{"x": 1}</f> yo <f=b>12</f>!', "plain < text", ""], ["<f=c>1</f>", "<f=b>x</f>", "<f"]),
        ({**_TRIGGERED, "at_least_one": True}, ["a<f=b>1</f>b"], ["plain"]),
        ({**_TRIGGERED, "at_least_one": True, "stop_after_first": True}, ["a<f=b>1</f>"], ["a<f=b>1</f>b"]),
        (_SEPARATED, ["[1],[23]", "[1]", ""], ["[1],", "[1][2]"]),
        ({**_SEPARATED, "at_least_one": True, "stop_after_first": True}, ["[1]"], ["", "[1],[2]"]),
        ({"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}, ["<t>a<b</t>"], ["<t>a"]),
        ({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "END"}, _NUMBER]},
         ["x END12", "END1"], ["x 12", "END"]),
        ({"type": "or", "elements": [_NUMBER, {"type": "const_string", "value": "none"}]}, ["12", "none"], ["some"]),
        ({"type": "grammar", "grammar": 'root ::= "a"+'}, ["aa"], ["b"]),
        ({"type": "tag", "begin": "<s>", "content": _NUMBER, "end": "</s>"}, ["<s>1</s>"], ["1"]),
    ],
)  # fmt: skip
def test_structural_tags_match_the_texts_that_they_describe(
    allows: Accepts, format: dict[str, Any], matching: list[str], others: list[str]
) -> None:
    for wanted in (_tags(format), {"structural_tag": json.dumps(_tags(format)["structural_tag"])}):
        assert [text for text in matching if not allows(wanted, text)] == []
        assert [text for text in others if allows(wanted, text)] == []


def test_structural_tags_in_their_older_shape(allows: Accepts) -> None:
    old = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=a>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f="],
    }
    wanted = asked(response_format=old)
    assert allows(wanted, "text <f=a>{}</f> more")
    assert not allows(wanted, "text <f=b>")


def test_a_tag_that_no_trigger_begins_is_refused(allows: Accepts) -> None:
    with pytest.raises(BadRequest) as refused:
        allows(_tags({**_TRIGGERED, "triggers": ["<g"]}), "")
    assert refused.value.param == "structured_outputs.structural_tag.triggers"


# ---- white space


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("[ \\n\\t]*", ['{"a":1}', '{ "a" : 1 }', '{\n\t"a": 1\n}'], ['{' + " " * 17 + '"a":1}']),
        (" ?", ['{ "a":1 }', '{"a": 1}'], ['{"a":  1}']),
        ("\\s+", ['{"a":1}', '{\r\n"a":1}'], ['{"a":\v1}']),
        ("(?:\\n {0,4})?", ['{\n    "a":1}', '{\n"a":1\n}'], ['{ "a":1}', '{\n     "a":1}']),
        ("", ['{"a":1}'], ['{"a": 1}']),
    ],
)  # fmt: skip
def test_a_pattern_of_white_space_is_honoured_and_bounded(
    allows: Accepts, pattern: str, matching: list[str], others: list[str]
) -> None:
    wanted = {"json": {"type": "object"}, "whitespace_pattern": pattern}
    assert [text for text in matching if not allows(wanted, text)] == []
    assert [text for text in others if allows(wanted, text)] == []


def test_white_space_may_be_ruled_out(allows: Accepts) -> None:
    wanted = {"json_object": True, "disable_any_whitespace": True}
    assert allows(wanted, '{"a":[1,2]}')
    assert not allows(wanted, '{"a": 1}')


@pytest.mark.parametrize("pattern", ["a", ".", "\\w", "[ a]", "(", ")", "[", "[]", "[^ ]", "*", " {", " {a}", " {3,1}",
                                     "(?=x)", "(?: *)*", "(?: {9}){9}", "\\", "(" * 40, " |b"])  # fmt: skip
def test_a_pattern_of_anything_else_is_refused(pattern: str) -> None:
    with pytest.raises(BadRequest) as refused:
        bounded_whitespace(pattern, "structured_outputs.whitespace_pattern")
    assert refused.value.param == "structured_outputs.whitespace_pattern"


@settings(max_examples=examples(75, 1500), deadline=None)
@given(st.text(" \\ntsr[](){}?*+|,0123456789:", max_size=14))
def test_any_pattern_of_white_space_stays_white_space_of_bounded_length(pattern: str) -> None:
    import re

    try:
        made = bounded_whitespace(pattern, "f")
    except BadRequest:
        return
    for text in (" " * (MAX_LENGTH + 1), "\n" * (MAX_LENGTH + 1), "a", "\\", "{"):
        assert re.fullmatch(made, text) is None


# ---- what is refused before there is a grammar


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 1}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": 1}}},
         "response_format.json_schema.strict"),
        ({"response_format": {"type": "structural_tag", "format": {"type": "tag"}}}, "response_format.format.begin"),
        ({"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
         "response_format.structures"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "3"}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
         "structured_outputs.whitespace_pattern"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_json": "nothing"}, "guided_json"),
        ({"regex": "a", "ebnf": "root ::= [a]"}, "ebnf"),
        ({"response_format": {"type": "json_object", "schema": 3}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "value": 3}}, "response_format.value"),
        ({"response_format": {"type": "json_object", "schema": {}, "value": {}}}, "response_format.value"),
        ({"response_format": {"type": "json"}}, "response_format.value"),
        ({"response_format": {"type": "regex", "value": {}}}, "response_format.value"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        asked(**fields)
    assert refused.value.param == param
    assert refused.value.status == 400


LOW = Limits(max_schema_chars=40, max_schema_depth=3, max_regex_chars=5, max_grammar_chars=12, max_answer_choices=2)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"json": {"description": "x" * 40}}, "json"),
        ({"json": json.dumps({"description": "x" * 40})}, "json"),
        ({"json": {"items": {"items": {"items": {}}}}}, "json"),
        ({"regex": "abcdef"}, "regex"),
        ({"grammar": 'start: "abcdef"'}, "grammar"),
        ({"choice": ["a", "b", "c"]}, "choice"),
        ({"choice": ["abcdef", "ghijklm"]}, "choice"),
        ({"structural_tag": {"format": {"type": "const_string", "value": "x" * 40}}}, "structural_tag"),
        ({"json": {}, "whitespace_pattern": " " * 6}, "whitespace_pattern"),
    ],
)
def test_what_is_beyond_the_operators_limits_is_refused(wanted: dict[str, Any], field: str) -> None:
    asked(wanted)
    with pytest.raises(BadRequest) as refused:
        asked(wanted, LOW)
    assert refused.value.param == f"structured_outputs.{field}"


def test_any_text_will_do_where_nothing_is_said() -> None:
    from stentor.protocols.openai.sampling import SamplingFields
    from stentor.protocols.openai.structured import wanted_answer

    assert wanted_answer(SamplingFields(), Limits()) is None
    assert wanted_answer(SamplingFields(response_format={"type": "text"}), Limits()) is None


def test_answers_are_the_same_whatever_field_they_come_from() -> None:
    assert asked(guided_regex="a") == RegexAnswer("guided_regex", "a")
    assert asked({"regex": "a"}) == RegexAnswer("structured_outputs.regex", "a")
    assert asked({"choice": ["a", "a", "b"]}) == ChoiceAnswer("structured_outputs.choice", ("a", "b"))
    assert asked({"json": {"a": 1}}) == JsonAnswer("structured_outputs.json", {"a": 1})
    assert json_answer({"a": 1}, "text.format.schema", Limits()) == JsonAnswer("text.format.schema", {"a": 1})
    named = {"type": "json_schema", "json_schema": {"name": "n"}}
    assert asked(response_format=named) == JsonAnswer("response_format.json_schema.schema", {"type": "object"})
