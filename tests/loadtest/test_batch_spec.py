import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.loadtest.kernels.spec import SpecError, parse_spec


def test_a_group_is_a_count_of_new_tokens_over_keys() -> None:
    assert parse_spec("8q1kv4k").sequences == ((1, 4096),) * 8
    assert parse_spec("q2k").sequences == ((2048, 2048),)
    assert parse_spec("3q5kv7").sequences == ((5, 7),) * 3


def test_decodes_come_first_in_a_mix() -> None:
    spec = parse_spec("q512kv8k_2q1kv1k")
    assert spec.sequences == ((1, 1024), (1, 1024), (512, 8192))
    assert spec.decode_rows == 2
    assert spec.tokens == 514


def test_pairs_are_what_a_causal_mask_leaves() -> None:
    assert parse_spec("q3").pairs == 1 + 2 + 3
    assert parse_spec("2q2kv5").pairs == 2 * (4 + 5)
    assert parse_spec("4q1kv10").pairs == 40


@pytest.mark.parametrize("text", ["", "q", "8", "q0", "q2kv1", "0q1", "q1kv", "q1__q1", "1q1kv1m", "99999999q1"])
def test_what_is_no_batch_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_spec(text)


@given(st.text(alphabet="0123456789qkv_", max_size=20))
def test_any_text_is_a_batch_or_is_refused(text: str) -> None:
    try:
        spec = parse_spec(text)
    except SpecError:
        return
    assert spec.tokens <= spec.keys
    assert spec.pairs >= spec.tokens
