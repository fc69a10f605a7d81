"""Calls as a request wants them, at every split of what the model writes."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.generation.calls import CallFilter, InputText
from stentor.server.parsing.interface import CallArguments, CallEnd, CallStart, Content, Piece

SOME_TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
SPLITS = st.lists(st.integers(0, 400), max_size=8)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place for place in places if place < len(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def decoded(pieces: list[str]) -> str:
    reader = InputText()
    return "".join(map(reader.push, pieces)) + reader.finish()


@settings(deadline=None)
@given(SOME_TEXTS, st.booleans(), st.integers(0, 4), SPLITS)
def test_an_input_is_decoded_at_every_split(text: str, ascii_only: bool, spaces: int, places: list[int]) -> None:
    space = " " * spaces
    written = f'{space}{{{space}"input":{space}{json.dumps(text, ensure_ascii=ascii_only)}{space}}}'
    assert decoded(cut(written, places)) == text
    assert decoded(list(written)) == text


@settings(deadline=None)
@given(
    SOME_TEXTS | st.sampled_from(['{"input": 5}', '{"other": "x"}', '{"in put": "x"}', " " * 300 + '{"input":"']),
    SPLITS,
)
def test_what_is_no_input_is_left_as_it_is(text: str, places: list[int]) -> None:
    assert decoded(cut(text, places)) == text
    assert decoded(list(text)) == text


@settings(deadline=None)
@given(SOME_TEXTS, st.integers(0, 200))
def test_an_input_that_is_cut_off_is_the_beginning_of_the_whole(text: str, length: int) -> None:
    written = json.dumps({"input": text})
    found = decoded(list(written[: 11 + length]))
    assert text.startswith(found)


@pytest.mark.parametrize(
    ("written", "text"),
    [(r"\ud83d", "�"), (r"\ud83dx", "�x"), (r"\ud83d\n", "�\n"), (r"\ude00", "�"), (r"\uzzzz", "�"), (r"\q", "q")],
)
def test_half_a_character_is_none(written: str, text: str) -> None:
    whole = f'{{"input": "{written}"}}'
    assert decoded([whole]) == text
    assert decoded(list(whole)) == text


class Given:
    """A parser that has been told what it finds."""

    thinking = False

    def __init__(self, *batches: list[Piece]) -> None:
        self._batches = list(batches)

    def push(self, text: str) -> list[Piece]:
        return self._batches.pop(0)

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return self._batches.pop(0) if self._batches else []


CALLS: list[Piece] = [
    Content("so "),
    CallStart("f", "1"),
    CallArguments("{}"),
    CallEnd(),
    Content("and"),
    CallStart("c"),
    CallArguments('{"input": "a'),
    CallArguments('\\n"}'),
    CallEnd(),
]


def test_calls_of_custom_tools_are_text_and_others_stay() -> None:
    assert CallFilter(Given(list(CALLS)), {"c"}, parallel=True).push("") == [
        *CALLS[:6],
        CallArguments("a"),
        CallArguments("\n"),
        CallEnd(),
    ]


def test_without_parallel_calls_the_first_one_counts() -> None:
    parser = CallFilter(Given(CALLS[:7], CALLS[7:]), {"c"}, parallel=False)
    assert parser.push("") + parser.push("") + parser.finish() == CALLS[:5]


def test_a_call_that_is_cut_off_keeps_what_it_has() -> None:
    parser = CallFilter(Given([CallStart("c"), CallArguments('{"inp')]), {"c"}, parallel=True)
    assert parser.push("") == [CallStart("c")]
    assert parser.finish() == [CallArguments('{"inp')]
