import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.kernels.linear_heads import choose, linear_heads
from stentor.tests.examples import examples
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "heads", "columns", "inner"), [(1, 4, 32, 16), (9, 3, 131, 70), (40, 2, 7, 5), (0, 2, 8, 8)]
)
def test_each_head_has_a_weight_of_its_own(
    tokens: int, heads: int, columns: int, inner: int, dtype: torch.dtype
) -> None:
    """Of slices of wider tensors, as attention takes them."""
    x = normal(tokens, heads, inner + 3, seed=1, dtype=dtype)[..., :inner]
    weight = normal(heads, columns + 2, inner, seed=2, dtype=dtype)[:, 2:]
    assert choose(x, weight) == "native"
    found = linear_heads(x, weight)
    assert found.is_contiguous()
    expected = torch.einsum("thk,hnk->thn", x.float(), weight.float()).to(dtype)
    assert_close(found, expected, 5e-6 if dtype == torch.float32 else None)
    for invariant in (False, True):
        reference = linear_heads(x, weight, invariant=invariant, variant="reference")
        assert_close(reference, expected, 5e-6 if dtype == torch.float32 else None)


@settings(max_examples=examples(20), deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    tokens=st.integers(1, 30),
    threads=st.sampled_from([1, 3]),
    variant=st.sampled_from(["native", "reference"]),
)
def test_a_row_is_bitwise_the_same_for_any_batch_and_thread_count(
    dtype: torch.dtype, tokens: int, threads: int, variant: str
) -> None:
    x, weight = normal(30, 3, 24, seed=3, dtype=dtype)[:tokens], normal(3, 50, 24, seed=4, dtype=dtype)
    with thread_count(threads):
        whole = linear_heads(x, weight, invariant=True, variant=variant)  # type: ignore[arg-type]
    for row in range(tokens):
        alone = linear_heads(x[row : row + 1], weight, invariant=True, variant=variant)  # type: ignore[arg-type]
        assert_same_bits(alone[0], whole[row])


def test_a_weight_as_the_other_way_round_is_taken_by_the_reference() -> None:
    x, weight = normal(2, 3, 8, seed=1), normal(3, 8, 5, seed=2).transpose(1, 2)
    assert choose(x, weight) == "reference"
    assert_close(linear_heads(x, weight), torch.einsum("thk,hnk->thn", x, weight))


def test_shapes_that_do_not_agree_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit weight"):
        linear_heads(torch.zeros(2, 3, 4), torch.zeros(2, 5, 4))
