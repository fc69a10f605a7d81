"""Products of few rows with a norm before and a gate or a sum after: what the operations give one by one."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from stentor.kernels import ActivationKind, NormedProduct, add_linear_, linear, normed_linear
from stentor.kernels.linear_fp8.triton_skinny import block_of_tokens
from stentor.kernels.linear_normed import choose, choose_added, triton_row, triton_skinny
from stentor.kernels.linear_normed.triton_skinny import default, skinny_key
from stentor.kernels.linear_normed.tunables import candidates, skinny_candidates, tunables
from stentor.kernels.tuning import Config, overridden, table
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

pytestmark = pytest.mark.triton
DTYPES = [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = Config.of(num_warps=4, BLOCK_N=4, PROGRAMS_PER_SM=1, STAGES=2)
# [T, K] and N: rows that fill no tile, widths that are no multiples, more parts of squares than are read at once
FEW = [(2, 40, 34), (3, 64, 6), (17, 200, 1032), (64, 301, 70)]


def skinny(rows: int, **sizes: Any) -> Config:
    return Config.of(BLOCK_T=block_of_tokens(rows), BLOCK_N=32, BLOCK_K=64, **sizes)


def operands(width: int, outputs: int, dtype: torch.dtype, rows: int = 1) -> dict[str, Tensor]:
    made = {
        "x": normal(rows, width, seed=1),
        "norm": 1 + 0.2 * normal(width, seed=2),
        "weight": normal(outputs, width, seed=3) / width**0.5,
        "residual": normal(rows, width, seed=4),
        "bias": 0.2 * normal(outputs, seed=5),
    }
    return {name: each.to(dtype).to(DEVICE) for name, each in made.items()}


def run(of: dict[str, Tensor], variant: Any, *names: str, **options: Any) -> NormedProduct:
    given: dict[str, Any] = {name: of[name].clone() for name in names}
    return normed_linear(of["x"], of["norm"], of["weight"], 1e-5, variant=variant, **given, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "outputs"), [(64, 6), (40, 34), (200, 1032)])
@pytest.mark.parametrize("names", [(), ("residual",), ("residual", "bias")])
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("kind", [None, "silu", "gelu_tanh"])
def test_a_row_is_normed_multiplied_and_gated(
    width: int,
    outputs: int,
    names: tuple[str, ...],
    plus_one: bool,
    kind: ActivationKind | None,
    dtype: torch.dtype,
) -> None:
    of = operands(width, outputs, dtype)
    options = {"plus_one": plus_one, "kind": kind}
    expected = run(of, "reference", *names, **options)
    with overridden("normed_row", SMALL):
        found = run(of, "triton", *names, **options)
    assert_close(found.product, expected.product, TOLERANCE[dtype])
    assert_same_bits(found.total, expected.total)


def squares_of(stream: Tensor, parts: int) -> Tensor:
    """In parts of some columns each."""
    columns = stream.float().square().split(-(-stream.shape[1] // parts), dim=1)
    return torch.stack([part.sum(1) for part in columns])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "outputs"), FEW)
@pytest.mark.parametrize("names", [(), ("bias",)])
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("kind", [None, "silu", "gelu_tanh"])
def test_few_rows_are_normed_multiplied_and_gated(
    rows: int,
    width: int,
    outputs: int,
    names: tuple[str, ...],
    plus_one: bool,
    kind: ActivationKind | None,
    dtype: torch.dtype,
) -> None:
    of = operands(width, outputs, dtype, rows)
    options = {"plus_one": plus_one, "kind": kind}
    expected = run(of, "reference", *names, **options)
    with overridden("normed_skinny", skinny(rows)):
        found = run(of, "triton", *names, squares=squares_of(of["x"], 20), **options)
    assert_close(found.product, expected.product, TOLERANCE[dtype])
    assert found.total is of["x"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "outputs"), FEW)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("splits", [1, 3])
def test_a_product_is_added_to_the_stream_as_if_by_itself_and_its_squares_are_summed(
    rows: int, width: int, outputs: int, with_bias: bool, splits: int, dtype: torch.dtype
) -> None:
    of = operands(width, outputs, dtype, rows)
    given = of["x"], of["weight"]
    bias = of["bias"] if with_bias else None
    stream = normal(rows, outputs, seed=6).to(of["x"])
    with overridden("linear_skinny", skinny(rows, SPLITS=splits)):
        expected = stream + linear(*given, bias, variant="triton")
        squares = add_linear_(*given, stream, bias, variant="triton")
    assert_same_bits(stream, expected)
    assert squares.shape == (-(-outputs // 32) if splits == 1 else -(-outputs // 512), rows)
    assert_close(squares.sum(0), stream.float().square().sum(1), 1e-5)
    plain = normal(rows, outputs, seed=6).to(of["x"])
    assert_close(add_linear_(*given, plain, bias, variant="reference").sum(0), squares.sum(0), TOLERANCE[dtype])
    assert_close(plain, stream, TOLERANCE[dtype])


def test_a_product_behind_a_norm_takes_the_squares_of_the_product_before() -> None:
    before, behind = operands(96, 600, torch.float16, 17), operands(600, 66, torch.float16, 17)
    given = before["x"], before["weight"]
    found, expected = (normal(17, 600, seed=6).to(before["x"]) for _ in range(2))
    squares = add_linear_(*given, found, variant="triton")
    of = behind["norm"], behind["weight"], 1e-5
    product = normed_linear(found, *of, squares=squares, kind="silu", variant="triton").product
    add_linear_(*given, expected, variant="reference")
    assert_close(product, normed_linear(expected, *of, kind="silu", variant="reference").product, 4e-3)


def test_a_row_has_the_same_bits_beside_any_others() -> None:
    of, others = operands(200, 70, torch.float16, 17), normal(30, 200, seed=7).to(torch.float16).to(DEVICE)
    others[0] = of["x"][0]

    def first(x: Tensor) -> tuple[Tensor, Tensor]:
        stream = torch.ones(len(x), 70, dtype=x.dtype, device=x.device)
        squares = add_linear_(x, of["weight"], stream, variant="triton")
        given = stream, of["norm"][:70], of["weight"][:, :70].contiguous()
        return stream[0], normed_linear(*given, 1e-5, squares=squares, variant="triton").product[0]

    for alone, beside in zip(first(of["x"]), first(others), strict=True):
        assert_same_bits(alone, beside)


def test_the_stream_that_all_programs_read_is_not_written() -> None:
    of = operands(64, 1200, torch.float16)
    before, residual = of["residual"].clone(), of["residual"]
    with overridden("normed_row", SMALL):
        found = normed_linear(of["x"], of["norm"], of["weight"], 1e-5, residual=residual, variant="triton")
    assert_same_bits(residual, before)
    assert found.total.data_ptr() != residual.data_ptr()


def test_it_runs_unasked_where_the_table_has_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        "normed_row": {"96x200_float16_gated": SMALL.to_json()},
        "normed_skinny": {skinny_key(2, 96, 200, torch.float16, gated=True): default(2).to_json()},
    }
    monkeypatch.setattr(table, "_table", lambda *_: entries)
    monkeypatch.setattr(sys.modules["stentor.kernels.linear_normed"], "triton_unsupported_reason", lambda *_: None)
    table._picked.cache_clear()
    of, other = operands(200, 96, torch.float16), operands(200, 95, torch.float16)
    try:
        assert choose(of["x"], of["weight"], "silu") == "triton"
        assert choose(of["x"], of["weight"]) == "reference"
        assert choose(of["x"], other["weight"], "silu") == "reference"
        two, many = (of["x"].expand(rows, -1).contiguous() for rows in (2, 17))
        assert choose(two, of["weight"], "silu") == "reference"
        assert choose(two, of["weight"], "silu", squared=True) == "triton"
        assert choose(two, of["weight"], squared=True) == "reference"
        assert choose(many, of["weight"], "silu", squared=True) == "reference"
    finally:
        table._picked.cache_clear()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"norm": torch.ones(63, dtype=torch.float16)}, "do not fit"),
        ({"weight": torch.ones(8, 64)}, "of the dtype of x"),
        ({"residual": torch.ones(2, 64, dtype=torch.float16)}, r"residual .* must be \(1, 64\)"),
        ({"bias": torch.ones(7, dtype=torch.float16)}, r"bias .* must be \(8,\)"),
        ({"kind": "tanh"}, "no gate of"),
        ({"squares": torch.ones(4, 1), "residual": torch.ones(1, 64, dtype=torch.float16)}, "without a residual"),
        ({"squares": torch.ones(4)}, r"must be float32 \[parts, T\]"),
        ({"squares": torch.ones(4, 1, dtype=torch.float16)}, "must be float32"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], why: str) -> None:
    of: dict[str, Any] = {
        "x": torch.ones(1, 64, dtype=torch.float16),
        "norm": torch.ones(64, dtype=torch.float16),
        "weight": torch.ones(8, 64, dtype=torch.float16),
        **changed,
    }
    with pytest.raises(ValueError, match=why):
        normed_linear(of.pop("x"), of.pop("norm"), of.pop("weight"), 1e-5, **of)


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "why"),
    [
        (2, 64, torch.float16, "one row, or up to 64 with their squares"),
        (1, 64, torch.float32, "bfloat16 or float16"),
        (1, 8208, torch.float16, "one row of up to 8192"),
    ],
)
def test_what_it_does_not_take_is_refused_by_name(rows: int, width: int, dtype: torch.dtype, why: str) -> None:
    x, norm, weight = (torch.zeros(*shape, dtype=dtype) for shape in ((rows, width), (width,), (4, width)))
    with pytest.raises(ValueError, match=why):
        normed_linear(x, norm, weight, 1e-5, variant="triton")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"residual": torch.ones(2, 9, dtype=torch.float16)}, "do not fit"),
        ({"weight": torch.ones(8, 63, dtype=torch.float16)}, "fits neither x"),
        ({"bias": torch.ones(7, dtype=torch.float16)}, "nor the bias"),
        ({"residual": torch.ones(2, 8)}, "of the dtype of x"),
        ({"x": torch.ones(64, 2, dtype=torch.float16).t()}, "must be contiguous"),
    ],
)
def test_a_sum_that_does_not_fit_is_refused(changed: dict[str, Any], why: str) -> None:
    given = {"x": torch.ones(2, 64), "weight": torch.ones(8, 64), "residual": torch.ones(2, 8)}
    with pytest.raises(ValueError, match=why):
        add_linear_(**{**{name: each.half() for name, each in given.items()}, **changed})


@pytest.mark.parametrize(("rows", "why"), [(1, "two rows or more"), (65, "up to 64 rows")])
def test_a_sum_of_other_numbers_of_rows_is_refused_by_name(rows: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        choose_added(torch.zeros(rows, 8).half(), torch.zeros(4, 8).half(), "triton")


def test_no_candidate_stands_for_the_separate_operations() -> None:
    for tunable in tunables():
        module = triton_row if tunable.operation == triton_row.OPERATION else triton_skinny
        assert tunable.candidates
        assert module.LIBRARY not in tunable.candidates


@pytest.mark.gpu
def test_every_candidate_gives_the_product() -> None:
    of = operands(4096, 600, torch.bfloat16)
    for kind in (None, "silu"):
        expected = run(of, "reference", "residual", kind=kind)
        for config in candidates(4096, gated=kind is not None):
            with overridden("normed_row", config):
                assert_close(run(of, "triton", "residual", kind=kind).product, expected.product, 3e-2)
    for rows in (9, 32, 60):
        of = operands(4096, 600, torch.bfloat16, rows)
        for kind in (None, "silu"):
            expected = run(of, "reference", kind=kind)
            for config in skinny_candidates(block_of_tokens(rows), gated=kind is not None):
                with overridden("normed_skinny", config):
                    found = run(of, "triton", kind=kind, squares=squares_of(of["x"], 64))
                assert_close(found.product, expected.product, 3e-2)
