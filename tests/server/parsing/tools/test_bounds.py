"""Long and hostile outputs: linear time, bounded nesting, and little that is held back."""

from collections.abc import Callable
from functools import partial

import pytest

from stentor.server.parsing.interface import Content
from stentor.server.parsing.markers import MarkerScanner
from stentor.server.parsing.output import FORMATS, TOOL_FORMATS
from stentor.server.parsing.tools.format import ToolFormat
from stentor.server.parsing.tools.output import MAX_SPACE
from stentor.server.parsing.tools.reader import MAX_KEPT
from stentor.tests.server.parsing.tools.reading import cut, joined, pieces, read
from stentor.tests.server.parsing.tools.templates import BARE, CALLS, template
from stentor.tests.server.parsing.tools.test_round_trips import rendered
from stentor.tests.support.counting import takes_linear_time

pytestmark = pytest.mark.sampled

LONG = 500_000
PIECE = 64


def reading_is_linear(format: ToolFormat, before: str, filling: str, length: int, after: str = "") -> bool:
    def work(length: int) -> Callable[[], None]:
        parts = cut(before + filling * (length // len(filling)) + after, PIECE)
        return partial(_read_parts, format, parts)

    return takes_linear_time(work, length)


def _read_parts(format: ToolFormat, parts: list[str]) -> None:
    parser = format.parser(())
    for part in parts:
        parser.push(part)
    parser.finish()


@pytest.mark.parametrize("name", sorted({*CALLS, *BARE}))
def test_a_long_argument_takes_linear_time(name: str) -> None:
    body = CALLS.get(name, BARE.get(name, ""))
    around = rendered(template(body), "", [("f", {"a": "LONG"})])
    before, _, after = around.partition("LONG")
    assert reading_is_linear(TOOL_FORMATS[name], before, "é{< ", LONG // 8, after)


@pytest.mark.parametrize("filling", [" ", "<", "{", "[", '{"name": "', "<tool_call>", "```", "[f(a=", "\\", '"', "\n"])
@pytest.mark.parametrize(
    "name", ["hermes", "qwen3_coder", "llama3_json", "pythonic", "plain", "functiongemma", "mistral"]
)
def test_repeated_beginnings_take_linear_time(name: str, filling: str) -> None:
    assert reading_is_linear(TOOL_FORMATS[name], "", filling, LONG // 16)
    started = "<tool_call>\n<function=f>\n<parameter=a>\n[TOOL_CALLS]f[ARGS]<start_function_call>call:f{a:["
    assert reading_is_linear(TOOL_FORMATS[name], started, filling, LONG // 16)


@pytest.mark.parametrize("opening", ["[", "{'a': ", "("])
def test_deep_nesting_of_python_values_ends_the_call(opening: str) -> None:
    reading = read(TOOL_FORMATS["pythonic"], "[f(a=" + opening * 100_000)
    assert not reading.calls[0].whole
    assert read(TOOL_FORMATS["pythonic"], "[f(a=" + "[" * 60 + "]" * 60 + ")]").calls[0].whole


def test_deep_nesting_of_json_is_counted_and_not_kept() -> None:
    text = '<tool_call>{"name": "f", "arguments": ' + '{"a": ' * 10_000 + "1" + "}" * 10_000 + "}</tool_call>"
    assert read(TOOL_FORMATS["hermes"], *cut(text, 1000)).calls[0].whole


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_at_most_so_much_is_held_back(format: ToolFormat) -> None:
    marker = next(iter(sorted(format.markers)), "[")
    for text in ("{[", marker + '{"arguments": {"a": "', marker, '[{"name": "', "<tool_call>\n{", '{"parameters": "'):
        handed_out = 0
        parser = format.parser(())
        for part in cut(text + "x" * 3 * MAX_KEPT, 4096):
            for piece in parser.push(part):
                handed_out += len(piece.text) if isinstance(piece, Content) else 0
        held = len(text) + 3 * MAX_KEPT - handed_out
        assert held <= MAX_KEPT + 4096 or joined(parser.finish()).calls or _began(format, text)


def _began(format: ToolFormat, text: str) -> bool:
    return bool(read(format, text + "x" * 100).calls)


@pytest.mark.parametrize("size", [1000, 4095, MAX_KEPT - 1, 3 * MAX_KEPT])
def test_what_is_held_too_long_is_content_however_it_is_cut(size: int) -> None:
    text = '<tool_call>{"arguments": {"a": "' + "x<tool_call>" * (MAX_KEPT // 6)
    whole = read(TOOL_FORMATS["hermes"], text)
    assert whole.content == text
    assert read(TOOL_FORMATS["hermes"], *cut(text, size)) == whole


def test_whitespace_is_held_back_up_to_a_bound() -> None:
    parts = [" " * 1000] * 10
    found = pieces(TOOL_FORMATS["hermes"], parts)
    assert (
        sum(len(piece.text) for some in found[:-1] for piece in some if isinstance(piece, Content))
        == 10_000 - MAX_SPACE
    )
    assert read(TOOL_FORMATS["hermes"], *parts).content == " " * 10_000


def test_markers_that_hide_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="lies inside another"):
        MarkerScanner(("abcd", "bc"))
