"""However a text is cut, what a parser hands out is the same, joined; and it never raises."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.parsing.output import FORMATS, TOOL_FORMATS
from stentor.server.parsing.tools.format import ToolFormat
from stentor.tests.examples import examples
from stentor.tests.server.parsing.tools.reading import cut, read
from stentor.tests.server.parsing.tools.templates import BARE, CALLS, template
from stentor.tests.server.parsing.tools.test_round_trips import ARGUMENTS, rendered

FRAGMENTS = (
    *(
        '{"name": "f"',
        '"arguments": ',
        '{"a": "é}{\\"\\u00e9\\ud83d\\ude00"}',
        "[1, {}]",
        "}",
        "]",
        ", ",
        "; ",
        ": ",
        '"',
        "null",
    ),
    *(
        "\n",
        "  ",
        "Füße 日本😀",
        "\\",
        "'",
        "(",
        ")",
        "=",
        "f(a='x', b=[1, None])",
        "call:f{a:1,b:",
        "<",
        "```",
        "json",
        "get_weather",
    ),
    *(
        '"{\\"x\\": 1}"',
        '{"arguments": {}, "name": "g"}',
        "True",
        "1e5",
        '"id": "1", ',
        "functions.f:0",
        "function",
        "city",
        "days",
        "rain",
    ),
)


def material(format: ToolFormat) -> st.SearchStrategy[str]:
    """Texts made of the format's own markers, of pieces of calls and of anything else."""
    own = [*format.markers, *(marker[: len(marker) // 2] for marker in format.markers)]
    parts = st.one_of(st.sampled_from(FRAGMENTS), st.sampled_from([*own, "x"]), st.text(max_size=4))
    return st.lists(parts, max_size=25).map("".join)


def split(data: st.DataObject, text: str) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_any_text_is_read_the_same_however_it_is_cut(format: ToolFormat) -> None:
    @settings(max_examples=examples(5, 125), deadline=None)
    @given(text=material(format), data=st.data(), cut_off=st.booleans())
    def check(text: str, data: st.DataObject, cut_off: bool) -> None:
        whole = read(format, text, cut_off=cut_off)
        assert read(format, *cut(text, 1), cut_off=cut_off) == whole
        assert read(format, *split(data, text), cut_off=cut_off) == whole

    check()


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_text_that_is_cut_off_has_the_calls_of_any_other_and_no_more_content(format: ToolFormat) -> None:
    @settings(max_examples=examples(5, 125), deadline=None)
    @given(text=material(format))
    def check(text: str) -> None:
        ended, cut_off = read(format, text), read(format, text, cut_off=True)
        assert [call.name for call in cut_off.calls] == [call.name for call in ended.calls]
        assert ended.content.startswith(cut_off.content)

    check()


SHORT = {"city": 'Zü"{\n\\</x>', "days": [-3]}
"""Arguments of a text of which every beginning is read."""


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"plain", "xlam"}))
def test_a_call_that_is_cut_off_leaves_no_marker_in_the_content(name: str) -> None:
    format = TOOL_FORMATS[name]
    content = "Größe 😀"
    text = rendered(template(CALLS[name]), content, [("get_weather", SHORT), ("now", {})])
    for place in range(len(text)):
        reading = read(format, text[:place], cut_off=True)
        said = reading.content.removeprefix(content).strip()
        if place <= len(content):
            assert reading.content == text[:place]
        elif said:  # it could have been anything else
            assert any(len(said) <= max(3, len(marker) // 2) for marker in format.markers if marker.startswith(said))


TWO_CALLS = [("get_weather", ARGUMENTS), ("now", {})]
APART = 32
"""Characters between two cuts: more than most markers have."""


def two_calls(name: str) -> str:
    body, content = (CALLS[name], "Größe 😀") if name in CALLS else (BARE[name], "")
    return rendered(template(body), content, TWO_CALLS)


@pytest.mark.parametrize("name", sorted({*CALLS, *BARE}))
def test_calls_are_read_the_same_wherever_they_are_cut(name: str) -> None:
    """Each place is cut in one reading, with no other cut nearby."""
    text, format = two_calls(name), TOOL_FORMATS[name]
    whole = read(format, text)
    assert [called for called, _ in whole.named] == [called for called, _ in TWO_CALLS]
    for place in range(APART):
        assert read(format, text[:place], *cut(text[place:], APART)) == whole, place


@pytest.mark.proof
@pytest.mark.parametrize("name", sorted({*CALLS, *BARE}))
def test_calls_are_read_the_same_at_every_single_cut(name: str) -> None:
    text, format = two_calls(name), TOOL_FORMATS[name]
    whole = read(format, text)
    for place in range(len(text)):
        assert read(format, text[:place], text[place:]) == whole


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_text_without_calls_comes_out_unchanged(format: ToolFormat) -> None:
    @settings(max_examples=examples(5, 50), deadline=None)
    @given(st.text(alphabet=st.characters(exclude_characters="[{<`f|", exclude_categories=["Cs"]), max_size=60))
    def check(text: str) -> None:
        reading = read(format, *cut(text, 3))
        assert reading.content == text
        assert not reading.calls

    check()
