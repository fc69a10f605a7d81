"""The product of one row with its norm before and its gate after: what the operations give one by one."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from stentor.kernels import ActivationKind, NormedProduct, normed_linear
from stentor.kernels.linear_row import choose
from stentor.kernels.tuning import Config, overridden, table
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

pytestmark = pytest.mark.triton
DTYPES = [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = Config.of(num_warps=4, BLOCK_N=4, PROGRAMS_PER_SM=1, STAGES=2)


def operands(width: int, outputs: int, dtype: torch.dtype) -> dict[str, Tensor]:
    made = {
        "x": normal(1, width, seed=1),
        "norm": 1 + 0.2 * normal(width, seed=2),
        "weight": normal(outputs, width, seed=3) / width**0.5,
        "residual": normal(1, width, seed=4),
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


def test_the_stream_that_all_programs_read_is_not_written() -> None:
    of = operands(64, 1200, torch.float16)
    before, residual = of["residual"].clone(), of["residual"]
    with overridden("normed_row", SMALL):
        found = normed_linear(of["x"], of["norm"], of["weight"], 1e-5, residual=residual, variant="triton")
    assert_same_bits(residual, before)
    assert found.total.data_ptr() != residual.data_ptr()


def test_it_runs_unasked_where_the_table_has_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"normed_row": {"96x200_float16_gated": SMALL.to_json()}}
    monkeypatch.setattr(table, "_table", lambda *_: entries)
    monkeypatch.setattr(sys.modules["stentor.kernels.linear_row"], "triton_unsupported_reason", lambda *_: None)
    table._picked.cache_clear()
    of, other = operands(200, 96, torch.float16), operands(200, 95, torch.float16)
    try:
        assert choose(of["x"], of["weight"], "silu") == "triton"
        assert choose(of["x"], of["weight"]) == "reference"
        assert choose(of["x"], other["weight"], "silu") == "reference"
        assert choose(of["x"].expand(2, -1), of["weight"], "silu") == "reference"
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
        (2, 64, torch.float16, "takes one row"),
        (1, 64, torch.float32, "bfloat16 or float16"),
        (1, 8208, torch.float16, "rows of up to 8192"),
    ],
)
def test_what_it_does_not_take_is_refused_by_name(rows: int, width: int, dtype: torch.dtype, why: str) -> None:
    x, norm, weight = (torch.zeros(*shape, dtype=dtype) for shape in ((rows, width), (width,), (4, width)))
    with pytest.raises(ValueError, match=why):
        normed_linear(x, norm, weight, 1e-5, variant="triton")


@pytest.mark.gpu
def test_every_candidate_gives_the_product() -> None:
    from stentor.kernels.linear_row.tunables import candidates  # late: it imports Triton

    of = operands(4096, 600, torch.bfloat16)
    for kind in (None, "silu"):
        expected = run(of, "reference", "residual", kind=kind)
        for config in candidates(4096, gated=kind is not None):
            with overridden("normed_row", config):
                assert_close(run(of, "triton", "residual", kind=kind).product, expected.product, 3e-2)
