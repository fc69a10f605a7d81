"""Tokens of a window taken apart by their timestamps."""

from hypothesis import given
from hypothesis import strategies as st

from stentor.server.asr.segments import compression_ratio, cut_window
from stentor.tests.server.asr.scripted import VOCABULARY, says

BEGIN = VOCABULARY.timestamp_begin


def cut(*parts: str | float, seek: int = 0, frames: int = 3000) -> tuple[list[tuple[float, float]], int, bool]:
    found = cut_window(says(*parts), BEGIN, seek, frames)
    return [(round(part.start, 2), round(part.stop, 2)) for part in found.parts], found.advance, found.whole


def test_what_follows_the_last_pair_of_timestamps_is_heard_again() -> None:
    assert cut(0.0, "one", 4.0, 4.0, "two", 9.5, 9.5, "cut off") == ([(0.0, 4.0), (4.0, 9.5)], 950, False)


def test_a_single_timestamp_at_the_end_says_that_nothing_follows() -> None:
    assert cut(0.0, "one", 4.0, 4.2, "two", 9.5) == ([(0.0, 4.0), (4.2, 9.5)], 3000, True)


def test_one_segment_without_a_pair_is_the_whole_window() -> None:
    assert cut(0.0, "all of it", 7.0, frames=1200) == ([(0.0, 7.0)], 1200, True)
    assert cut(0.0, "no end", frames=1200) == ([(0.0, 12.0)], 1200, True)
    assert cut("without timestamps", frames=1200) == ([(0.0, 12.0)], 1200, True)


def test_times_count_from_the_window_s_beginning() -> None:
    assert cut(1.0, "one", 4.0, 4.0, "two", 5.0, seek=1250) == ([(13.5, 16.5), (16.5, 17.5)], 3000, True)


def test_nothing_at_all_is_one_empty_part() -> None:
    found = cut_window([], BEGIN, 0, 3000)
    assert [(part.begin, part.end) for part in found.parts] == [(0, 0)]


@given(st.lists(st.one_of(st.integers(0, 200), st.integers(BEGIN, BEGIN + 1500)), max_size=60), st.integers(1, 3000))
def test_parts_never_overlap_and_never_go_back(tokens: list[int], frames: int) -> None:
    found = cut_window(tokens, BEGIN, 500, frames)
    ends = [0, *(part.end for part in found.parts)]
    assert [part.begin for part in found.parts] == ends[:-1]
    assert ends[-1] <= len(tokens)
    assert found.advance >= 0
    assert all(part.start >= 5.0 for part in found.parts)


def test_what_repeats_itself_compresses_well() -> None:
    assert compression_ratio("to be or not to be, that is the question") < 1.5
    assert compression_ratio("thank you " * 40) > 2.4
    assert compression_ratio("") == 0
