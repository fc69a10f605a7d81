import pytest
import torch
from torch import Tensor

from stentor.kernels import force_variant, linear
from stentor.kernels.linear import choose
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count

DTYPES = (torch.float32, torch.bfloat16)
SHAPES = (
    (1, 1, 1),
    (1, 576, 192),
    (2, 40, 33),
    (3, 7, 5),
    (4, 9, 64),
    (5, 100, 17),
    (6, 8, 31),
    (13, 50, 96),
    (70, 61, 130),
)


def expected(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = x.double() @ weight.double().T
    return (wide if bias is None else wide + bias.double()).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_native_product_is_the_product(dtype: torch.dtype, shape: tuple[int, int, int], with_bias: bool) -> None:
    rows, columns, inner = shape
    x, weight = normal(rows, inner, seed=1, dtype=dtype), normal(columns, inner, seed=2, dtype=dtype)
    bias = normal(columns, seed=3, dtype=dtype) if with_bias else None
    assert choose(x, weight, variant="native") == "native"
    assert_close(linear(x, weight, bias, variant="native"), expected(x, weight, bias))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_be_strided_on_both_sides(dtype: torch.dtype) -> None:
    x, weight = normal(9, 100, seed=1, dtype=dtype)[:, 20:70], normal(30, 80, seed=2, dtype=dtype)[:, 10:60]
    assert_close(linear(x, weight, variant="native"), expected(x, weight, None))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "inner"), [(576, 192), (50, 75), (9, 1536)])
def test_an_invariant_row_is_bitwise_the_same_in_any_batch_place_and_thread_count(
    dtype: torch.dtype, columns: int, inner: int
) -> None:
    x, weight = normal(67, inner, seed=1, dtype=dtype), normal(columns, inner, seed=2, dtype=dtype)
    bias = normal(columns, seed=3, dtype=dtype)
    assert choose(x, weight, invariant=True) == "native"
    alone = torch.cat([linear(row.unsqueeze(0), weight, bias, invariant=True) for row in x])
    for threads in (1, 2, 5):
        with thread_count(threads):
            assert_same_bits(linear(x, weight, bias, invariant=True), alone)
            for count in (2, 3, 4, 5, 6, 7, 11, 66):
                assert_same_bits(linear(x[1 : 1 + count], weight, bias, invariant=True), alone[1 : 1 + count])


def test_the_reference_takes_invariant_rows_one_by_one() -> None:
    x, weight = normal(5, 33, seed=1), normal(12, 33, seed=2)
    with force_variant("reference"), thread_count(1):
        assert choose(x, weight, invariant=True) == "reference"
        batch = linear(x, weight, invariant=True)
        assert_same_bits(batch[3:4], linear(x[3:4], weight, invariant=True))
    assert_close(batch, expected(x, weight, None))
    assert linear(x[:0], weight, invariant=True, variant="reference").shape == (0, 12)


def test_the_choice_is_native_for_few_rows_and_torch_for_many_in_bfloat16() -> None:
    weight = normal(64, 64, seed=1, dtype=torch.bfloat16)
    assert choose(normal(1, 64, seed=2, dtype=torch.bfloat16), weight) == "native"
    assert choose(normal(512, 64, seed=2, dtype=torch.bfloat16), weight) == "reference"
    with force_variant("native"):
        assert choose(normal(512, 64, seed=2, dtype=torch.bfloat16), weight) == "native"
    assert choose(normal(1, 64, seed=2, dtype=torch.float16), weight.half()) == "reference"
    assert choose(normal(64, 1, seed=2).T, normal(64, 64, seed=1), variant="auto") == "native"


def test_no_rows_give_no_rows() -> None:
    assert linear(torch.empty(0, 8), torch.ones(4, 8), variant="native").shape == (0, 4)


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [
        (torch.ones(2, 3), torch.ones(4, 5), None),
        (torch.ones(2, 3), torch.ones(4, 3).bfloat16(), None),
        (torch.ones(3), torch.ones(4, 3), None),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(3)),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(4).bfloat16()),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(8)[::2]),
    ],
)
def test_what_does_not_fit_is_refused(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    with pytest.raises(ValueError, match=r"linear: .*does not fit weight"):
        linear(x, weight, bias)


def test_native_is_refused_where_it_cannot_run() -> None:
    with pytest.raises(ValueError, match="native variant cannot run: it takes float32 or bfloat16, not float16"):
        linear(torch.ones(1, 8).half(), torch.ones(4, 8).half(), variant="native")
    with pytest.raises(ValueError, match="contiguous rows"):
        linear(torch.ones(8, 2).T, torch.ones(4, 8), variant="native")
