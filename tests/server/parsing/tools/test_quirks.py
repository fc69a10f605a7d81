"""What models of one family write now and then, beside what their template says."""

from typing import Any

import pytest

from stentor.server.grammar.lark import Lark
from stentor.server.parsing.interface import Tool
from stentor.server.parsing.output import TOOL_FORMATS
from stentor.tests.server.parsing.tools.reading import cut, read

LLAMA = TOOL_FORMATS["llama3_json"]
MINICPM = TOOL_FORMATS["minicpm5"]
NOW = Tool("now", None, None)


def tool(**properties: Any) -> Tool:
    return Tool("f", None, {"type": "object", "properties": properties})


def dsml(parameters: str) -> str:
    call = f'<｜DSML｜invoke name="f">\n{parameters}\n</｜DSML｜invoke>'
    return f"<｜DSML｜function_calls>\n{call}\n</｜DSML｜function_calls>"


def parameter(name: str, value: str, string: str) -> str:
    return f'<｜DSML｜parameter name="{name}" string="{string}">{value}</｜DSML｜parameter>'


@pytest.mark.parametrize(
    ("schema", "string", "written", "value"),
    [
        ({"type": "integer"}, "true", "42", 42),
        ({"type": "integer"}, "true", "many", "many"),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, "true", '{"a": 1}', {"a": 1}),
        ({"type": ["string", "integer"]}, "true", "42", "42"),
        ({"type": "string"}, "false", "null", "null"),
        ({"type": "string"}, "false", "42", "42"),
        ({"type": "string"}, "false", '"quoted"', "quoted"),
        ({"type": ["string", "null"]}, "false", "null", None),
        ({}, "false", "null", None),
        ({}, "true", "null", "null"),
    ],
)
def test_the_schema_decides_where_deepseek_marks_a_value_as_another_type(
    schema: dict[str, Any], string: str, written: str, value: Any
) -> None:
    text = dsml(parameter("a", written, string))
    assert read(TOOL_FORMATS["deepseek_v32"], *cut(text, 1), tools=[tool(a=schema)]).named == [("f", {"a": value})]


@pytest.mark.parametrize("key", ["arguments", "input"])
def test_an_object_of_all_arguments_under_one_key_is_the_arguments(key: str) -> None:
    text = dsml(parameter(key, '{"a": "</x>", "b": [1]}', "false"))
    format = TOOL_FORMATS["deepseek_v32"]
    known, other = tool(a={"type": "string"}), tool(**{key: {"type": "object"}})
    assert read(format, *cut(text, 1), tools=[known]).named == [("f", {"a": "</x>", "b": [1]})]
    assert read(format, *cut(text, 1), tools=[other]).named == [("f", {key: {"a": "</x>", "b": [1]}})]
    plain = dsml(parameter(key, "abc", "true"))
    assert read(format, *cut(plain, 1), tools=[known]).named == [("f", {key: "abc"})]


def test_minicpm_wraps_arguments_as_python_writes_them() -> None:
    text = "<function name=\"f\"><param name=\"properties\">{'a': 'b'}</param></function>"
    assert read(MINICPM, *cut(text, 1), tools=[tool(a={"type": "string"})]).named == [("f", {"a": "b"})]


@pytest.mark.parametrize(
    ("schema", "inside", "value"),
    [
        ({"type": "string"}, "  a </param> ]] b\n", "  a </param> ]] b\n"),
        ({"type": "integer"}, "7", 7),
        ({"type": "string"}, "", ""),
    ],
)
def test_minicpm_quotes_values_that_contain_markers(schema: dict[str, Any], inside: str, value: Any) -> None:
    text = f'<function name="f"><param name="a"><![CDATA[{inside}]]></param></function>.'
    reading = read(MINICPM, *cut(text, 1), tools=[tool(a=schema)])
    assert (reading.named, reading.content) == ([("f", {"a": value})], ".")


def test_a_quoted_value_that_is_cut_off_leaves_the_call_open() -> None:
    reading = read(MINICPM, '<function name="f"><param name="a"><![CDATA[x', cut_off=True)
    assert [(call.arguments, call.whole) for call in reading.calls] == [('{"a": "x', False)]


def test_gemma_may_omit_the_word_in_front_of_a_name() -> None:
    text = 'So <|tool_call>:f{a:<|"|>b<|"|>}<tool_call|>'
    assert read(TOOL_FORMATS["gemma4"], *cut(text, 1)).named == [("f", {"a": "b"})]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("{'x', 'y'}", ["x", "y"]),
        ("{1, 2.5,}", [1, 2.5]),
        ("{('x', 1)}", [["x", 1]]),
        ("{}", {}),
        ("{'k': {'x'}}", {"k": ["x"]}),
        ("{1: 'v', True: {}}", {"1": "v", "true": {}}),
        ("07", 7),
        ("-007.5", -7.5),
        ("0", 0),
        ("0x1F", 31),
        ("'sed -n '1,5p' a.py'", "sed -n '1,5p' a.py"),
        ('"say "hi" now"', 'say "hi" now'),
        ("''", ""),
        ("'a' ", "a"),
    ],
)
def test_python_calls_are_read_where_python_itself_would_not(written: str, value: Any) -> None:
    text = f"<|tool_call_start|>[f(a={written}, b=1)]<|tool_call_end|>."
    reading = read(TOOL_FORMATS["lfm2"], *cut(text, 1))
    assert (reading.named, reading.content) == ([("f", {"a": value, "b": 1})], ".")


@pytest.mark.parametrize("written", ["{['x']: 1}", "{1", "{'x' 1}", "0x", "{'k': 1, 'x'}"])
def test_a_python_value_that_is_none_ends_the_call_without_an_end(written: str) -> None:
    reading = read(TOOL_FORMATS["lfm2"], *cut(f"<|tool_call_start|>[f(a={written}, b=1)]<|tool_call_end|>", 1))
    assert [call.whole for call in reading.calls] == [False]


def test_llama_calls_a_tool_within_text() -> None:
    text = 'Sure: {"name": "now", "parameters": {}}; {"name": "now", "parameters": {"a": 1}} Done {x}.'
    reading = read(LLAMA, *cut(text, 1), tools=[NOW])
    assert reading.order == ["text Sure:", "call now", "end", "call now", "end", "text  Done {x}."]


@pytest.mark.parametrize(
    "text",
    [
        'Sure: {"name": "Bob", "parameters": {}}',
        'Sure: {"name": "now"}',
        'Sure: {"a": {"name": "now"}} and { "b',
        "int f() { return {1}; }",
        "{",
    ],
)
def test_json_within_text_that_calls_no_tool_is_content(text: str) -> None:
    reading = read(LLAMA, *cut(text, 1), tools=[NOW])
    assert (reading.content, reading.calls) == (text, [])


def test_a_marker_that_begins_with_a_bracket_is_no_bare_array() -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}]'
    assert read(TOOL_FORMATS["xlam"], *cut(text, 1)).named == [("f", {})]


def test_text_between_a_sections_begin_and_its_first_call_is_content_without_the_marker() -> None:
    call = '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
    text = f"So. <|tool_calls_section_begin|> well {call}<|tool_calls_section_end|>"
    reading = read(TOOL_FORMATS["kimi_k2"], *cut(text, 1))
    assert (reading.named, reading.content) == ([("f", {"a": 1})], "So.  well")


def test_keys_of_kimi_k3_are_attributes() -> None:
    format, known = TOOL_FORMATS["kimi_k3"], tool(**{'a & "b"': {"type": "integer"}})
    key = "a &amp; &quot;b&quot;"
    argument = f'<|open|>argument key="{key}" type="number"<|sep|>1<|close|>argument<|sep|>'
    call = f'<|open|>call tool="f" index="1"<|sep|>{argument}<|close|>call<|sep|>'
    text = f"<|open|>tools<|sep|>{call}<|close|>tools<|sep|>"
    assert read(format, *cut(text, 1), tools=[known]).named == [("f", {'a & "b"': 1})]
    lark = Lark({})
    assert f'key=\\"{key}\\"' in lark.source(format.free_grammar(lark, [known]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "deepseek_v4",
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">b'
            "</｜DSML｜parameter>\n</｜DSML｜tool_calls>Done.",
        ),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n</tool_call>Done."),
    ],
)
def test_the_end_of_a_section_ends_a_call_that_has_no_end_of_its_own(name: str, text: str) -> None:
    reading = read(TOOL_FORMATS[name], *cut(text, 1))
    assert (reading.named, reading.content, reading.order[-2]) == ([("f", {"a": "b"})], "Done.", "end")


def test_a_call_whose_name_has_no_end_does_not_take_the_arguments_of_the_next() -> None:
    call = "<seed:tool_call>\n<function=f>\n<parameter=a>b</parameter>\n</function>\n</seed:tool_call>"
    text = f"<seed:tool_call>\n<function=broken</function>\n</seed:tool_call>{call}"
    assert read(TOOL_FORMATS["seed_oss"], *cut(text, 1)).named == [("broken", {}), ("f", {"a": "b"})]


def test_line_breaks_in_values_of_mimo_are_part_of_them() -> None:
    text = "<tool_call><function=f><parameter=a>\nb\n</parameter></function></tool_call>"
    assert read(TOOL_FORMATS["mimo"], *cut(text, 1)).named == [("f", {"a": "\nb\n"})]


def test_a_bare_number_of_gemma_is_a_string_where_the_schema_says_so() -> None:
    text = "<|tool_call>call:f{zip:01234,code:12,label:null,free:5,many:[1]}<tool_call|>"
    known = tool(zip={"type": "string"}, code={"type": "string"}, label={"type": "string"})
    value = {"zip": "01234", "code": "12", "label": None, "free": 5, "many": [1]}
    assert read(TOOL_FORMATS["gemma4"], *cut(text, 1), tools=[known]).named == [("f", value)]
