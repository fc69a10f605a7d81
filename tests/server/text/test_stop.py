"""Stop strings against a naive search, over every way to cut a text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.text.output.stop import StopMatcher, StopStrings
from stentor.tests.examples import examples


def naive(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The end of the match and its stop string: the earliest end, then the first in list order."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return end, stop
    return None


def held(text: str, stops: list[str]) -> int:
    """The longest suffix that begins a stop string without being it."""
    longest = max(map(len, stops))
    return max(
        (
            size
            for size in range(1, longest)
            if any(stop != text[-size:] and stop.startswith(text[-size:]) for stop in stops) and size <= len(text)
        ),
        default=0,
    )


letters = st.text("abc", max_size=14)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=examples(60, 2000), deadline=None)
@given(letters, stop_lists, st.lists(st.integers(0, 4), max_size=8), st.booleans())
def test_the_match_is_the_one_that_a_naive_search_finds(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    matcher = StopMatcher(StopStrings(stops), include=include)
    out, rest, seen = "", text, ""
    for size in [*cuts, len(text)]:
        piece, rest = rest[:size], rest[size:]
        seen += piece
        out += matcher.push(piece)
        if matcher.matched is None:
            assert out == (seen if include else seen[: len(seen) - held(seen, stops)])
    expected = naive(text, stops)
    if expected is None:
        assert matcher.matched is None
        assert out + matcher.finish() == text
    else:
        end, stop = expected
        assert matcher.matched == stop
        assert out + matcher.finish() == (text[:end] if include else text[: end - len(stop)])


@settings(max_examples=examples(60, 1000), deadline=None)
@given(letters, letters, stop_lists)
def test_a_stop_string_that_ends_while_unarmed_does_not_match(early: str, late: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    out = matcher.push(early, armed=False) + matcher.push(late)
    ends = [
        (end, stop)
        for end in range(len(early) + 1, len(early + late) + 1)
        for stop in stops
        if (early + late)[:end].endswith(stop)
    ]
    if not ends:
        assert matcher.matched is None
        assert out + matcher.finish() == early + late
    else:
        end, stop = ends[0]
        assert matcher.matched == stop
        assert out == (early + late)[: end - len(stop)]


def test_nothing_is_held_back_that_cannot_become_a_stop_string() -> None:
    matcher = StopMatcher(StopStrings(["\n\nUser:"]))
    assert matcher.push("Hello\n") == "Hello"
    assert matcher.push("there") == "\nthere"
    assert matcher.push("\n\nUse") == ""
    assert matcher.push("d: x") == "\n\nUsed: x"


def test_a_stop_string_over_three_pieces_leaves_no_trace() -> None:
    matcher = StopMatcher(StopStrings(["</answer>"]))
    assert [matcher.push(piece) for piece in ("42</", "ans", "wer> more")] == ["42", "", ""]
    assert matcher.matched == "</answer>"
    assert matcher.push("later") + matcher.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
