"""What a format's grammar allows, its parser reads as calls of the tools with arguments that fit their schemas."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from msgspec.structs import replace

from stentor.engine.core.grammar.matcher import Compiler
from stentor.engine.core.grammar.vocabulary import TokenBytes
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.tools import CUSTOM_INPUT
from stentor.server.config.models import JsonWhitespace
from stentor.server.generation.calls import CallFilter
from stentor.server.grammar.lark import Lark
from stentor.server.grammar.whitespace import WHITESPACE
from stentor.server.parsing.interface import CallArguments, CallEnd, CallStart, Piece, Tool
from stentor.server.parsing.output import FORMATS, HARMONY_TOOLS, TOOL_FORMATS
from stentor.server.parsing.tools.format import ToolFormat
from stentor.server.parsing.tools.gemma import GemmaCalls
from stentor.server.parsing.tools.json_calls import JsonCalls
from stentor.server.parsing.tools.layout import MOST_CALLS
from stentor.server.parsing.tools.nested import NestedCalls
from stentor.server.text.tokenizers.grammar_tokens import special_tokens_of, token_bytes_of
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.server.grammar.walking import KeepingCompiler, written
from stentor.tests.server.parsing.tools.reading import Reading, cut, read

pytestmark = pytest.mark.sampled

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 6},
        "days": {"type": "integer", "minimum": -5, "maximum": 5},
        "unit": {"type": "string", "enum": ["°C", 'f"']},
        "rain": {"type": "boolean"},
        "hours": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "place": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "why": {"type": "string", "maxLength": 2}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "place"],
    "additionalProperties": False,
}
REFERRED: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "pattern": "^[a/b]{1,3}$"},
        "maybe": {"type": ["string", "null"], "maxLength": 4},
        "numbers": {"$ref": "#/$defs/N"},
    },
    "$defs": {"N": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}},
    "required": ["word", "numbers"],
    "additionalProperties": False,
}
TOOLS: Final = (Tool("get_weather", None, SCHEMA), Tool("now", None, None), Tool("z-9_B", None, REFERRED))
LARK: Final = r"""
start: item{1,3}
item: "(" item* ")" | "\"" | "</parameter>" | "</arg_value>" | "<escape>" | "}" | line LF | WORD
line: "-" /[a \\"<é]*/
WORD: /[a-z]{1,3}/
%import common.LF
"""
CUSTOM: Final = Tool(
    "patch",
    None,
    {"type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT]},
    strict=True,
    grammar=LARK,
)
EMPTY: Final[dict[str, Any]] = {"type": "object", "maxProperties": 0}
VALIDATORS: Final = {tool.name: jsonschema.Draft202012Validator(tool.parameters or EMPTY) for tool in TOOLS}
BYTES: Final = 256
INDENTATION: Final = b"\n  "
END: Final = BYTES


SPECIAL_ABOVE_ALL: Final = [pytest.param(False, marks=pytest.mark.proof), True]
"""Whether markers are special tokens, where the tests of whole calls show that the same grammar does for both."""


def vocabulary_with(markers: list[str]) -> TokenBytes:
    """Every byte, an end and special tokens."""
    tokens = [bytes([value]) for value in range(BYTES)] + [b"<end>"] + [marker.encode() for marker in markers]
    return TokenBytes(tokens, list(range(END, len(tokens))), [END])


@lru_cache
def compiler_with(markers: tuple[str, ...]) -> KeepingCompiler:
    return KeepingCompiler(vocabulary_with(list(markers)))


def ids_of(markers: list[str]) -> dict[str, int]:
    return {marker: END + 1 + number for number, marker in enumerate(markers)}


def tokens_of(text: str, ids: Mapping[str, int]) -> list[int]:
    """Cuts the text as a tokenizer does: markers first."""
    for marker in sorted(ids, key=len, reverse=True):
        before, found, after = text.partition(marker)
        if found:
            return [*tokens_of(before, ids), ids[marker], *tokens_of(after, ids)]
    return list(text.encode())


def check(reading: Reading, text: str) -> None:
    assert all(call.whole for call in reading.calls), text
    for name, value in reading.named:
        VALIDATORS[name].validate(value)


def texts(
    format: ToolFormat, markers: list[str], parallel: bool, seeds: range, tools: Sequence[Tool] = TOOLS
) -> Iterator[str]:
    vocabulary = vocabulary_with(markers)
    lark = Lark(ids_of(markers))
    source = lark.source(format.grammar(lark, tools, parallel=parallel))
    compiler = compiler_with(tuple(markers))
    for seed in seeds:
        text, ended = written(compiler, vocabulary, source, seed, most=4000)
        if ended:
            yield text


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_required_calls_always_parse(format: ToolFormat, special: bool) -> None:
    markers = sorted(format.markers) if special else []
    found = 0
    for text in texts(format, markers, True, range(1)):
        reading = read(format, *cut(text, 5), tools=TOOLS)
        check(reading, text)
        assert reading.calls, text
        assert reading.content == "", text
        found += 1
    for text in texts(format, markers, False, range(1, 3)):
        reading = read(format, text, tools=TOOLS)
        check(reading, text)
        assert len(reading.calls) == 1, text
        assert reading.content == "", text
        found += 1
    assert found >= 3


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_free_answer_may_be_any_text_or_well_formed_calls(format: ToolFormat, special: bool) -> None:
    markers = sorted(format.markers) if special else []
    ids = ids_of(markers)
    lark = Lark(ids)
    compiler = compiler_with(tuple(markers))
    free = lark.source(format.free_grammar(lark, TOOLS))

    def fits(text: str) -> bool:
        matcher = compiler.compile(free)
        return all(matcher.consume(token) for token in tokens_of(text, ids)) and matcher.accepting()

    assert fits("")
    assert fits("Hello, wörld. 1 < 2\n")
    call = next(texts(format, markers, False, range(3)))
    assert fits(call), call
    reading = read(format, call, tools=TOOLS)
    broken = call.replace(reading.calls[0].name, "no_such_tool", 1)
    assert not fits(broken), broken
    if not read(format, "A. " + call, tools=TOOLS).calls:
        return  # calls can only begin the answer
    assert fits("A. " + call), call
    assert fits(f"A. {call}\n\nand {call}"), call
    if isinstance(format, JsonCalls) and format.within:
        return  # a bracket within text says too little to constrain what follows
    assert not fits("A. " + broken)


@pytest.mark.parametrize("special", SPECIAL_ABOVE_ALL, ids=["text", "special"])
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_name_may_begin_another(format: ToolFormat, special: bool) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["c", "cm"]}, "ab": {"type": "string", "enum": ["x"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tools = [Tool(name, None, parameters) for name in ("get", "get_weather", "get_w", "get-weather")]
    ids = ids_of(sorted(format.markers) if special else [])
    vocabulary = vocabulary_with(list(ids))
    compiler = compiler_with(tuple(ids))

    def source(usable: list[Tool]) -> str:
        lark = Lark(ids)
        return lark.source(format.grammar(lark, usable, parallel=False))

    every = source(tools)
    for tool in tools:
        alone = source([tool])
        text, _ = written(compiler, vocabulary, alone, 0)
        matcher = compiler.compile(every)
        assert all(matcher.consume(token) for token in tokens_of(text, ids)), text
        assert matcher.accepting(), text
        assert [call.name for call in read(format, text, tools=tools).calls] == [tool.name]


@pytest.mark.parametrize("special", SPECIAL_ABOVE_ALL, ids=["text", "special"])
@pytest.mark.parametrize("format", [*FORMATS, HARMONY_TOOLS], ids=lambda format: format.name)
def test_a_custom_tool_is_given_text_that_its_own_grammar_allows(format: ToolFormat, special: bool) -> None:
    markers = sorted(format.markers) if special else []
    compiler = compiler_with(tuple(markers))
    found = 0
    for parallel in (False, True):
        for text in texts(format, markers, parallel, range(2), (CUSTOM,)):
            parser = CallFilter(format.parser((CUSTOM,)), {"patch"}, parallel=True)
            pieces = [*(piece for part in cut(text, 5) for piece in parser.push(part)), *parser.finish()]
            inputs = joined(pieces)
            assert inputs, text
            for input in inputs:
                matcher = compiler.compile(LARK)
                assert all(matcher.consume(byte) for byte in input.encode()), (input, text)
                assert matcher.accepting(), (input, text)
            found += len(inputs)
    assert found >= 4


def joined(pieces: Sequence[Piece]) -> list[str]:
    """The inputs of calls, of which each must be whole."""
    inputs: list[str] = []
    ended = 0
    for piece in pieces:
        if isinstance(piece, CallStart):
            inputs.append("")
        elif isinstance(piece, CallArguments):
            inputs[-1] += piece.text
        elif isinstance(piece, CallEnd):
            ended += 1
    assert ended == len(inputs)
    return inputs


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "gemma4"])
def test_text_of_a_custom_tool_that_is_not_in_quotes_is_taken_as_it_stands(name: str) -> None:
    format = TOOL_FORMATS[name]
    schema = {"type": "object", "properties": {CUSTOM_INPUT: {"type": "string", "pattern": "^[a-c<\n]{5}$"}}}
    plain = replace(CUSTOM, grammar=None, parameters={**schema, "required": [CUSTOM_INPUT]})
    lark = Lark({})
    vocabulary = vocabulary_with([])
    text, ended = written(
        compiler_with(()), vocabulary, lark.source(format.grammar(lark, [plain], parallel=False)), 1, most=4000
    )
    assert ended
    assert read(format, text, tools=(CUSTOM,)).named == read(format, text, tools=(plain,)).named


@pytest.fixture(scope="module")
def demo(demo_gguf: Path) -> tuple[TokenBytes, Compiler, Mapping[str, int]]:
    tokenizer = load_tokenizer(demo_gguf)
    assert tokenizer.eos_token_id is not None
    vocabulary = token_bytes_of(tokenizer, (tokenizer.eos_token_id,))
    return vocabulary, KeepingCompiler(vocabulary), special_tokens_of(tokenizer)


@pytest.mark.parametrize("name", ["plain", "qwen3_coder", "pythonic", "glm45", "functiongemma"])
def test_required_calls_of_a_real_vocabulary_always_parse(
    name: str, demo: tuple[TokenBytes, Compiler, Mapping[str, int]]
) -> None:
    vocabulary, compiler, special = demo
    lark = Lark(special)
    format = TOOL_FORMATS[name]
    source = lark.source(format.grammar(lark, TOOLS, parallel=False))
    for seed in range(2):
        text, ended = written(compiler, vocabulary, source, seed)
        assert ended
        reading = read(format, *cut(text, 7), tools=TOOLS)
        check(reading, text)
        assert len(reading.calls) == 1


def test_calls_that_are_required_come_to_an_end() -> None:
    format = TOOL_FORMATS["hermes"]
    lark = Lark({})
    matcher = compiler_with(()).compile(lark.source(format.grammar(lark, TOOLS[1:2], parallel=True)))
    call = b'<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert all(matcher.consume(byte) for byte in call + (b"\n" + call) * (MOST_CALLS - 1))
    assert matcher.accepting()
    assert not matcher.consume(ord("\n"))


@pytest.mark.parametrize("format", [*FORMATS, HARMONY_TOOLS], ids=lambda format: format.name)
def test_arguments_have_no_names_but_those_that_are_declared(format: ToolFormat) -> None:
    inner = {"type": "object", "properties": {"x": {"type": "null"}}}
    nested = {"type": "object", "properties": {"o": inner}, "required": ["o"]}
    for parameters, allowed in (
        (None, [{}]),
        ({}, [{}]),
        ({"type": "object"}, [{}]),
        ({"type": "object", "properties": {}}, [{}]),
        (nested, [{"o": {}}, {"o": {"x": None}}]),
    ):
        for text in texts(format, [], False, range(2), (Tool("f", None, parameters),)):
            (call,) = read(format, text, tools=(Tool("f", None, parameters),)).named
            assert call[1] in allowed, text


def test_arguments_may_have_other_names_where_a_schema_says_so() -> None:
    lark = Lark({})
    tool = Tool("f", None, {"type": "object", "additionalProperties": {"type": "integer"}})
    matcher = compiler_with(()).compile(lark.source(TOOL_FORMATS["mistral"].grammar(lark, [tool], parallel=False)))
    assert all(matcher.consume(byte) for byte in b'[TOOL_CALLS]f[ARGS]{"x": 1, "y": 2}')
    assert matcher.accepting()


@pytest.mark.parametrize("special", SPECIAL_ABOVE_ALL, ids=["text", "special"])
@pytest.mark.parametrize("format", [*FORMATS, HARMONY_TOOLS], ids=lambda format: format.name)
def test_indented_arguments_are_read_as_they_are(format: ToolFormat, special: bool) -> None:
    """An indentation stands wherever the grammar allows one."""
    inner = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "boolean"}}}, "required": ["x"]}
    tool = Tool("f", None, {"properties": {"o": inner, "n": {"type": "integer"}}, "required": ["o", "n"]})
    ids = ids_of(sorted(format.markers) if special else [])
    name_of = {id: marker.encode() for marker, id in ids.items()}
    vocabulary = vocabulary_with(list(ids))
    compiler = compiler_with(tuple(ids))

    def source(whitespace: JsonWhitespace) -> str:
        lark = Lark(ids, WHITESPACE[whitespace])
        return lark.source(format.grammar(lark, (tool,), parallel=False))

    for seed in range(2):
        text, ended = written(compiler, vocabulary, source("none"), seed, most=4000)
        assert ended
        spread = bytearray()
        matcher = compiler.compile(source("indented"))
        for token in tokens_of(text, ids):
            if matcher.allows(INDENTATION[0]):
                trial = matcher.copy()
                if all(trial.consume(byte) for byte in INDENTATION) and trial.allows(token):
                    matcher = trial
                    spread += INDENTATION
            assert matcher.consume(token), (text, bytes(spread))
            spread += name_of.get(token, bytes([token % BYTES]))
        assert matcher.accepting()
        indented = spread.decode()
        assert (INDENTATION in spread) == (not isinstance(format, GemmaCalls | NestedCalls)), indented
        reading = read(format, *cut(indented, 5), tools=(tool,))
        assert reading.named == read(format, text, tools=(tool,)).named, indented
        assert reading.content == ""


@pytest.mark.parametrize("format", [*FORMATS, HARMONY_TOOLS], ids=lambda format: format.name)
def test_a_schema_whose_parts_are_met_many_times_has_a_grammar_of_its_own_size(format: ToolFormat) -> None:
    steps = 12
    parts = {
        f"d{step}": {"type": "object", "properties": {f"p{k}": {"$ref": f"#/$defs/d{step + 1}"} for k in range(8)}}
        for step in range(steps)
    } | {f"d{steps}": {"type": "boolean"}}
    tool = Tool("f", None, {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": parts})
    lark = Lark({})
    assert len(lark.source(format.grammar(lark, [tool], parallel=False))) < 100_000


def test_arguments_are_an_object_though_a_schema_does_not_say_so() -> None:
    lark = Lark({})
    tool = Tool("f", None, {"properties": {"a": {"type": "integer"}}})
    matcher = compiler_with(()).compile(lark.source(TOOL_FORMATS["mistral"].grammar(lark, [tool], parallel=False)))
    assert all(matcher.consume(byte) for byte in b"[TOOL_CALLS]f[ARGS]")
    assert matcher.allowed() == 1 << ord("{")


def test_calls_that_begin_the_answer_are_held_too() -> None:
    lark = Lark({})
    compiler = compiler_with(())
    source = lark.source(TOOL_FORMATS["plain"].free_grammar(lark, TOOLS))
    for text, allowed in (("{", False), (" [", False), ("a {[", True), ("\n\n", True)):
        matcher = compiler.compile(source)
        assert all(matcher.consume(byte) for byte in text.encode()) == allowed, text


def test_a_string_between_tags_cannot_hold_what_would_end_it() -> None:
    format = TOOL_FORMATS["qwen3_coder"]
    lark = Lark({})
    source = lark.source(
        format.grammar(lark, [Tool("f", None, {"properties": {"a": {"type": "string"}}})], parallel=False)
    )
    matcher = compiler_with(()).compile(source)
    begun = "<tool_call>\n<function=f>\n<parameter=a>\nx</function"
    assert all(matcher.consume(byte) for byte in begun.encode())
    assert not matcher.consume(ord(">"))


def test_a_schema_that_cannot_be_held_is_refused_with_its_tool() -> None:
    tool = Tool("f", None, {"type": "object", "properties": {"a": {"type": "object", "if": {}}}})
    for name in ("hermes", "qwen3_coder", "pythonic"):
        with pytest.raises(BadRequest, match=r"tools\.f\.parameters"):
            TOOL_FORMATS[name].grammar(Lark({}), [tool], parallel=True)
