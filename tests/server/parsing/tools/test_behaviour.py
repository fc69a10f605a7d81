"""What calls look like when models do not write them as their template does."""

import json

import pytest

from stentor.server.parsing.interface import CallArguments, CallStart, Content, Tool
from stentor.server.parsing.output import TOOL_FORMATS
from stentor.server.parsing.tools.format import ToolFormat
from stentor.tests.server.parsing.tools.reading import cut, joined, pieces, read

HERMES = TOOL_FORMATS["hermes"]
QWEN = TOOL_FORMATS["qwen3_coder"]
LLAMA = TOOL_FORMATS["llama3_json"]
MISTRAL = TOOL_FORMATS["mistral"]
PYTHONIC = TOOL_FORMATS["pythonic"]
PLAIN = TOOL_FORMATS["plain"]


def order(format: ToolFormat, text: str) -> list[str]:
    return read(format, *cut(text, 2)).order


def test_whitespace_around_calls_is_dropped_and_between_texts_kept() -> None:
    text = (
        '\n Let me see.\n\n<tool_call>{"name": "now"}</tool_call>\n\nAnd \n<tool_call>{"name": "now"}</tool_call>\n \n'
    )
    assert order(HERMES, text) == ["text \n Let me see.", "call now", "end", "text \n\nAnd", "call now", "end"]


def test_arguments_stream_before_the_call_is_whole() -> None:
    _, _, third, *_ = pieces(HERMES, ['<tool_call>{"name": "f", ', '"arguments": {"a": "one', " two", ' three"}}'])
    assert third == [CallArguments(" two")]


def test_a_name_comes_as_soon_as_it_is_whole() -> None:
    assert pieces(HERMES, ['<tool_call>{"name": "f', '"'])[1] == [CallStart("f")]


def test_a_string_argument_between_tags_streams() -> None:
    found = pieces(QWEN, ["<tool_call>\n<function=get_weather>\n<parameter=city>\nZü", 'ri"ch', "\n</para", "x"])
    assert found[0] == [CallStart("get_weather"), CallArguments('{"city": "Zü')]
    assert found[1] == [CallArguments('ri\\"ch')]
    assert found[2] == []
    assert found[3] == [CallArguments("\\n</parax")]


def test_only_what_may_be_a_marker_is_held_back() -> None:
    assert pieces(HERMES, ["a <tool", "box> b", " <"])[:3] == [[Content("a")], [Content(" <toolbox> b")], []]


@pytest.mark.parametrize("arguments", ['"{\\"a\\": \\"}\\\\n\\"}"', '{"a": "}\\n"}', '" {\\"a\\": \\"}\\\\n\\"}"'])
@pytest.mark.parametrize("order", ['{"name": "f", "arguments": ARGS}', '{"arguments": ARGS, "name": "f"}'])
def test_arguments_may_be_an_object_or_its_text_before_or_behind_the_name(arguments: str, order: str) -> None:
    text = f"<tool_call>{order.replace('ARGS', arguments)}</tool_call>"
    assert read(HERMES, *cut(text, 3)).named == [("f", {"a": "}\n"})]


@pytest.mark.parametrize("arguments", ["null", '""', "{}", '"{}"'])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    reading = read(HERMES, f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>')
    assert [call.arguments for call in reading.calls] == ["{}"]
    assert reading.calls[0].whole


def test_arguments_are_the_models_own_text() -> None:
    text = '<tool_call>{"name":"f","arguments":{"a" :1.50,\n"b":"\\u00e9"}}</tool_call>'
    assert read(HERMES, text).calls[0].arguments == '{"a" :1.50,\n"b":"\\u00e9"}'


def test_halves_of_a_character_in_escaped_arguments_are_joined() -> None:
    text = '<tool_call>{"name": "f\\ud83d\\ude00", "arguments": "{\\"a\\": \\"\\ud83d\\ude00\\"}"}</tool_call>'
    reading = read(HERMES, *cut(text, 1))
    assert reading.named == [("f😀", {"a": "😀"})]


def test_half_a_character_is_replaced() -> None:
    reading = read(HERMES, '<tool_call>{"name": "a\\ud83db\\ude00c\\ud83d"}</tool_call>')
    assert reading.calls[0].name == "a\ufffdb\ufffdc\ufffd"


def test_an_unknown_name_is_passed_on() -> None:
    assert read(HERMES, '<tool_call>{"name": "no_such", "arguments": {}}</tool_call>').named == [("no_such", {})]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>nothing</tool_call>",
        '<tool_call>{"nom": 1}</tool_call>',
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"name": "f',
        '<tool_call>{"arguments": {"a": 1}, "nam',
        "<tool_call>",
        "<tool_c",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    reading = read(HERMES, *cut(text, 3))
    assert (reading.content, reading.calls) == (text, [])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"name": "f"', ""),
        ('<tool_call>{"name": "f", "arguments": {"a": "x', '{"a": "x'),
        ('<tool_call>{"name": "f", "arguments": {"a": "x"}', '{"a": "x"}'),
        ('<tool_call>{"name": "f", "arguments": {"a": @', '{"a": '),
    ],
)
def test_a_call_that_is_cut_off_has_no_end(text: str, arguments: str) -> None:
    reading = read(HERMES, *cut(text, 2))
    assert [(call.arguments, call.whole) for call in reading.calls] == [(arguments, False)]


def test_a_forgotten_bracket_ends_the_call_at_its_tag() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>b'
    assert order(HERMES, text) == ["call f", "end", "text b"]


def test_a_bracket_too_many_is_dropped_in_front_of_the_tag_alone() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}}'
    assert order(HERMES, call + "\n</tool_call>b") == ["call f", "end", "text b"]
    assert order(HERMES, call + " b") == ["call f", "end", "text } b"]


def test_a_value_follows_the_schema() -> None:
    tool = Tool(
        "f",
        None,
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "ratio": {"type": "number"},
                "flag": {"type": "boolean"},
                "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "list": {"$ref": "#/$defs/L"},
                "map": {"type": "object"},
                "other": {},
                "kind": {"enum": ["1", "2"]},
            },
            "$defs": {"L": {"type": "array"}},
        },
    )
    values = {
        "text": ("12", "12"),
        "count": ("007", 7),
        "ratio": ("2.50", 2.5),
        "flag": ("True", True),
        "maybe": ("null", None),
        "list": ("[1, 'x', (None,)]", [1, "x", [None]]),
        "map": ("{'a': True}", {"a": True}),
        "other": ("[1]", "[1]"),
        "kind": ("1", "1"),
        "unknown": ("5", "5"),
    }
    parameters = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, (text, _) in values.items())
    reading = read(QWEN, *cut(f"<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>", 4), tools=[tool])
    assert reading.named == [("f", {key: value for key, (_, value) in values.items()})]


def test_a_string_inside_an_object_may_hold_what_ends_a_value() -> None:
    text = '<function=get_weather>\n<parameter=place>\n{"a": "</parameter></function>"}\n</parameter>\n</function>'
    assert read(QWEN, *cut(text, 3)).named == [("get_weather", {"place": {"a": "</parameter></function>"}})]


@pytest.mark.parametrize("text", ["abc", "1.5", "[1", "1e999", "NaN"])
def test_a_value_that_does_not_fit_its_schema_is_passed_on(text: str) -> None:
    source = f"<tool_call>\n<function=get_weather>\n<parameter=days>\n{text}\n</parameter>\n</function>\n</tool_call>"
    value = read(QWEN, source).calls[0].value["days"]
    assert value == (1.5 if text == "1.5" else text)


def test_a_parameter_without_its_end_ends_where_the_next_begins() -> None:
    text = "<function=f>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>\n</tool_call>"
    assert read(QWEN, *cut(text, 3)).named == [("f", {"a": "1", "b": "2"})]


def test_bare_json_is_a_call_only_with_a_name_and_arguments() -> None:
    for text in (
        '{"name": "Bob", "age": 3}',
        '{"temperature": 20}',
        '{"name": "f"}',
        "[1, 2]",
        '{"name": "f", "arguments": 3}',
    ):
        reading = read(LLAMA, *cut(text, 2))
        assert (reading.content, reading.calls) == (text, [])
    assert read(LLAMA, '\n{"type": "function", "name": "f", "parameters": {"a": 1}}').named == [("f", {"a": 1})]


def test_an_answer_in_json_is_released_at_its_first_other_key() -> None:
    assert pieces(LLAMA, ['{"', "temperature", '": ', "20"])[3] == [Content('{"temperature": 20')]


def test_bare_calls_may_be_several() -> None:
    call = '{"name": "f", "parameters": {"a": "; {"}}'
    for text in (f"{call}; {call}", f"{call}\n{call}", f"[{call}, {call}]", f"<|python_tag|>{call};{call}"):
        assert read(LLAMA, *cut(text, 3)).named == [("f", {"a": "; {"})] * 2


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": [1]}}]',
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}, "id": "123456789"}]',
        '[TOOL_CALLS]f[ARGS]{"a": [1]}',
        '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": [1]}',
        '[TOOL_CALLS]f{"a": [1]}',
    ],
)
def test_mistral_writes_calls_in_several_ways(text: str) -> None:
    reading = read(MISTRAL, *cut("Hi " + text, 3))
    assert reading.named == [("f", {"a": [1]})]
    assert reading.content == "Hi"


def test_ids_that_a_format_writes_are_kept() -> None:
    assert read(MISTRAL, "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}").calls[0].id == "123456789"
    text = "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    call = read(TOOL_FORMATS["kimi_k2"], text).calls[0]
    assert (call.name, call.id) == ("f", "functions.f:3")


def test_no_two_calls_have_one_id() -> None:
    call = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert [call.id for call in read(TOOL_FORMATS["kimi_k2"], call + call).calls] == ["functions.f:0", None]


@pytest.mark.parametrize(
    "text", ["functools[CALL]", "<|tool_call|>[CALL]<|/tool_call|>", "<|tool_call|>functools[CALL]"]
)
def test_phi_marks_calls_by_a_word_or_a_token(text: str) -> None:
    reading = read(TOOL_FORMATS["phi4_mini_json"], *cut(text.replace("CALL", '{"name": "f", "arguments": {}}'), 2))
    assert (reading.named, reading.content) == ([("f", {})], "")


def test_python_literals_become_json() -> None:
    values = "a='it\\'s \\x41\\n', b=\"q\\u00e9\", c=-1_000.5, d=[True, None, ()], e={'k': {1: 'v'}}, g='''x\"y'''"
    text = f"[f({values}), h.i()]"
    wanted = {"a": "it's A\n", "b": "qé", "c": -1000.5, "d": [True, None, []], "e": {"k": {"1": "v"}}, "g": 'x"y'}
    assert read(PYTHONIC, *cut(text, 1)).named == [("f", wanted), ("h.i", {})]


@pytest.mark.parametrize("text", ["[see](http://x)", "[1, 2]", "[f(1)]", "[f(a==1)]", "[f", "a [f()]", "[]"])
def test_a_list_that_holds_no_calls_is_content(text: str) -> None:
    reading = read(PYTHONIC, *cut(text, 2))
    assert (reading.content, reading.calls) == (text, [])


def test_the_plain_format_reads_fences_and_leaves_other_code_alone() -> None:
    text = (
        'So:\n```json\n{"name": "f", "arguments": {"a": 1}}\n```\nThen ```python\nx = 1\n``` and ```json\n{"a": 1}\n```'
    )
    reading = read(PLAIN, *cut(text, 3), tools=[Tool("f", None, {})])
    assert reading.named == [("f", {"a": 1})]
    assert reading.content == 'So:\nThen ```python\nx = 1\n``` and ```json\n{"a": 1}\n```'


@pytest.mark.parametrize("begin", ["", "```json\n", "So: ```"])
@pytest.mark.parametrize("call", ['{"name": "Bob", "arguments": {"a": 1}}', '{"arguments": {"a": 1}, "name": "Bob"}'])
def test_json_that_names_no_tool_is_an_answer_where_no_format_was_asked_for(begin: str, call: str) -> None:
    reading = read(PLAIN, *cut(begin + call, 2), tools=[Tool("f", None, {})])
    assert (reading.content, reading.calls) == (begin + call, [])


def test_what_comes_behind_an_end_changes_nothing() -> None:
    parser = HERMES.parser(())
    parser.push("a <tool")
    assert joined(parser.finish()).content == " <tool"
    assert parser.push("more") == parser.finish() == []


def test_gemma_values_without_quotes_are_json_where_they_can_be() -> None:
    text = (
        "<start_function_call>call:f{a:1.5,b:true,c:two words,d:{e:[null,x]},days:<escape>3<escape>}<end_function_call>"
    )
    tool = Tool("f", None, {"type": "object", "properties": {"days": {"type": "integer"}}})
    value = read(TOOL_FORMATS["functiongemma"], *cut(text, 1), tools=[tool]).calls[0].value
    assert value == {"a": 1.5, "b": True, "c": "two words", "d": {"e": [None, "x"]}, "days": 3}


def test_deepseek_says_which_values_are_strings() -> None:
    text = (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="false">[1]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    )
    assert read(TOOL_FORMATS["deepseek_v32"], *cut(text, 1)).named == [("f", {"a": "1", "b": [1]})]


def test_arguments_that_are_no_object_are_passed_on() -> None:
    reading = read(HERMES, *cut('<tool_call>{"name": "f", "arguments": "say \\"hi\\"\\n"}</tool_call>', 2))
    assert json.loads(reading.calls[0].arguments) == 'say "hi"\n'
