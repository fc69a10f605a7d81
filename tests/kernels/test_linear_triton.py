"""The product of few rows in Triton: right for any shape, and taken where a table says that it is faster."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from stentor.kernels import linear
from stentor.kernels.linear import choose
from stentor.kernels.linear import triton_skinny as skinny
from stentor.kernels.linear.triton_gemv import DEFAULT, OPERATION, candidates, gemv_key, tunables
from stentor.kernels.linear_fp8.triton_skinny import block_of_tokens
from stentor.kernels.tuning import Config, overridden, table
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

pytestmark = pytest.mark.triton
DTYPES = [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
SMALL = Config.of(num_warps=4, BLOCK_N=4, BLOCK_K=64, STAGES=2)


def operands(columns: int, inner: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, bias = normal(1, inner, seed=1), normal(columns, inner, seed=2), normal(columns, seed=3)
    return x.to(dtype).to(DEVICE), weight.to(dtype).to(DEVICE), bias.to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "inner"), [(1, 1), (33, 40), (96, 200), (7, 64)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_product_of_a_row_is_the_product(columns: int, inner: int, with_bias: bool, dtype: torch.dtype) -> None:
    x, weight, bias = operands(columns, inner, dtype)
    expected = x.double() @ weight.double().T + (bias.double() if with_bias else 0.0)
    with overridden(OPERATION, SMALL):
        found = linear(x, weight, bias if with_bias else None, variant="triton")
    assert_close(found, expected.to(dtype), {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "columns", "inner"), [(2, 1, 1), (5, 33, 40), (17, 96, 200), (64, 7, 300)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("splits", [1, 3])
def test_the_product_of_few_rows_is_the_product(
    tokens: int, columns: int, inner: int, with_bias: bool, splits: int, dtype: torch.dtype
) -> None:
    _, weight, bias = operands(columns, inner, dtype)
    x = normal(tokens, inner, seed=4).to(dtype).to(DEVICE)
    expected = x.double() @ weight.double().T + (bias.double() if with_bias else 0.0)
    config = Config.of(BLOCK_T=block_of_tokens(tokens), BLOCK_N=32, BLOCK_K=32, SPLITS=splits)
    with overridden(skinny.OPERATION, config):
        found = linear(x, weight, bias if with_bias else None, variant="triton")
        assert_same_bits(linear(x, weight, bias if with_bias else None, variant="triton"), found)
    assert_close(found, expected.to(dtype), {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype])


@pytest.mark.parametrize(
    ("rows", "entries"),
    [
        (1, {OPERATION: {gemv_key(96, 200, torch.float16): SMALL.to_json()}}),
        (2, {skinny.OPERATION: {skinny.skinny_key(9, 96, 200, torch.float16): skinny.default(9).to_json()}}),
    ],
)
def test_it_runs_unasked_where_the_table_has_its_shape(
    rows: int, entries: table.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_table", lambda *_: entries)
    monkeypatch.setattr(sys.modules["stentor.kernels.linear"], "triton_unsupported_reason", lambda *_: None)
    table._picked.cache_clear()
    (x, known, _), (_, unknown, _) = (operands(columns, 200, torch.float16) for columns in (96, 95))
    on_cuda: Any = _Elsewhere(x.expand(rows, -1).contiguous())
    try:
        assert choose(on_cuda, known) == "triton"
        assert choose(on_cuda, unknown, invariant=True) == "triton"
        assert choose(on_cuda, unknown) == "reference"
        others: Any = _Elsewhere(x.expand(20, -1).contiguous())  # of which the table says nothing
        assert choose(others, known) == "reference"
    finally:
        table._picked.cache_clear()


class _Elsewhere:
    """A tensor that says it lies on a GPU."""

    is_cuda = True

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> object:
        return getattr(self._tensor, name)


@pytest.mark.parametrize(
    ("rows", "dtype", "why"), [(65, torch.float16, "takes up to 64 rows"), (1, torch.float32, "bfloat16 or float16")]
)
def test_what_it_does_not_take_is_refused_by_name(rows: int, dtype: torch.dtype, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        linear(torch.zeros(rows, 8, dtype=dtype), torch.zeros(4, 8, dtype=dtype), variant="triton")


def test_the_tuner_tries_what_is_taken_by_default() -> None:
    tried = {(config["BLOCK_N"], config["BLOCK_K"], config.num_warps) for config in candidates()}
    assert (DEFAULT["BLOCK_N"], DEFAULT["BLOCK_K"], DEFAULT.num_warps) in tried
    offered = [*tunables(), *skinny.tunables()]
    assert len({each.key for each in offered}) == len(offered)
    for rows in (16, 32, 64):
        assert skinny.default(rows) in skinny.candidates(rows, 4096)


@pytest.mark.gpu
def test_every_candidate_gives_the_product() -> None:
    x, weight, _ = operands(300, 4096, torch.bfloat16)
    expected = linear(x, weight, variant="reference")
    for config in candidates():
        with overridden(OPERATION, config):
            assert_close(linear(x, weight, variant="triton"), expected, 1.6e-2)
    for tokens in (9, 32, 60):
        x = normal(tokens, 4096, seed=4).to(weight)
        expected = linear(x, weight, variant="reference")
        for config in skinny.candidates(tokens, 300):
            with overridden(skinny.OPERATION, config):
                assert_close(linear(x, weight, variant="triton"), expected, 1.6e-2)
