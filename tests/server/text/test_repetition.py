"""Sequences that repeat themselves are found where their definition says, and ended there."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.openai.sampling import RepetitionDetection
from stentor.server.text.output.repetition import RepetitionDetector
from stentor.tests.examples import examples


def plainly(tokens: list[int], detection: RepetitionDetection, min_tokens: int) -> int | None:
    """The number of tokens up to the first repetition: every length, pattern and place is compared."""
    for length in range(max(1, min_tokens), len(tokens) + 1):
        for size in range(max(1, detection.min_pattern_size), detection.max_pattern_size + 1):
            known = tokens[:length]
            pattern = known[-size:]
            if size * detection.min_count <= length and known[-size * detection.min_count :] == (
                pattern * detection.min_count
            ):
                return length
    return None


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(2, 4),
    st.integers(0, 12),
    st.integers(1, 7),
)
@settings(max_examples=examples(300), deadline=None)
def test_the_first_repetition_is_found_however_the_tokens_arrive(
    tokens: list[int], least: int, more: int, count: int, min_tokens: int, together: int
) -> None:
    detection = RepetitionDetection(max(1, least + more), least, count)
    detector, found = RepetitionDetector(detection, min_tokens), None
    for begin in range(0, len(tokens), together):
        end = detector.find(tokens[begin : begin + together])
        if end is not None:
            found = begin + end
            break
    assert found == plainly(tokens, detection, min_tokens)


def test_a_detector_keeps_no_more_tokens_than_the_longest_repetition_needs() -> None:
    detector = RepetitionDetector(RepetitionDetection(3, 2, 4))
    assert all(detector.find([token]) is None for token in range(10_000))
    assert len(detector._tail) <= 2 * 12 + 1
