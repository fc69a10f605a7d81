"""How a sentence that is too long for one run of a model is taken apart."""

from hypothesis import given
from hypothesis import strategies as st

from stentor.engine.tts.onnx import runs


def test_a_sentence_is_run_whole_or_in_parts_that_end_between_words() -> None:
    assert list(runs([*"ab cd"], 5)) == [[*"ab cd"]]
    assert list(runs([*"ab cd ef"], 5)) == [[*"ab "], [*"cd ef"]]
    assert list(runs([*"abcdefgh"], 3)) == [[*"abc"], [*"def"], [*"gh"]]
    assert list(runs([], 3)) == []


@given(st.lists(st.sampled_from(["a", " "]), max_size=60), st.integers(1, 20))
def test_no_phoneme_is_lost(phonemes: list[str], most: int) -> None:
    parts = list(runs(phonemes, most))
    assert [phoneme for part in parts for phoneme in part] == phonemes
    assert all(0 < len(part) <= most for part in parts)
