"""A weight in codes multiplies as the weight that it stands for."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from stentor.kernels import CodeKind, empty_coded, linear_coded
from stentor.kernels.linear_coded.tunables import tunables
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.coded import CODES, coded
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, normal

SMALL = Config.of(num_warps=4, num_stages=2, BLOCK_T=16, BLOCK_N=16, BLOCK_K=32)
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(("kind", "group", "rows", "zeros"), CODES)
@pytest.mark.parametrize(("tokens", "outputs", "inputs", "bias"), [(1, 48, 96, True), (19, 80, 64, False)])
def test_the_product_is_the_reference(
    dtype: torch.dtype,
    kind: CodeKind,
    group: int,
    rows: int,
    zeros: bool,
    tokens: int,
    outputs: int,
    inputs: int,
    bias: bool,
) -> None:
    x = normal(tokens, inputs + 3, seed=6).to(dtype).to(DEVICE)[:, 3:]
    weight = coded(kind, 1, outputs, inputs, group, rows, zeros, 1)
    added = normal(outputs, seed=2).to(dtype).to(DEVICE) if bias else None
    expected = linear_coded(x, weight, added, variant="reference")
    with overridden("linear_coded", SMALL):
        assert_close(linear_coded(x, weight, added, variant="triton"), expected, TOLERANCE[dtype])


@pytest.mark.parametrize(("kind", "group", "rows", "zeros"), CODES)
def test_values_are_codes_times_scales(kind: CodeKind, group: int, rows: int, zeros: bool) -> None:
    weight = coded(kind, 2, 32, 64, group, rows, zeros, 3)
    row, column, expert = 17, 37, 1
    scale = weight.scales[expert, row // weight.rows, column // weight.group]
    code = weight.codes[expert, row, column if kind == "fp8" else column // 2]
    number = float(code) if kind == "fp8" else int(code) >> 4
    if kind in ("mxfp4", "nvfp4"):
        magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
        number = magnitudes[int(number) % 8] * (-1 if number >= 8 else 1)
    elif kind == "int4":
        number -= 8 if weight.zeros is None else int(weight.zeros[expert, row, column // weight.group])
    factor = 1.0 if weight.factors is None else float(weight.factors[expert, row])
    found = float(weight.values(expert, torch.float32)[row, column])
    assert found == pytest.approx(number * (2.0 ** (int(scale) - 127) if kind == "mxfp4" else float(scale)) * factor)


def test_a_weight_that_does_not_fit_is_refused() -> None:
    weight = empty_coded("mxfp4", 1, 32, 64, group=32)
    with pytest.raises(ValueError, match="does not fit a weight"):
        linear_coded(torch.ones(2, 32), weight)
    with pytest.raises(ValueError, match="want one matrix"):
        linear_coded(torch.ones(2, 64), empty_coded("mxfp4", 2, 32, 64, group=32))
    with pytest.raises(ValueError, match="bias"):
        linear_coded(torch.ones(2, 64), weight, torch.ones(31))


def test_codes_that_do_not_fit_are_refused() -> None:
    good = empty_coded("mxfp4", 5, 32, 64, group=32)
    assert good.shape == (5, 32, 64)
    assert good.nbytes == 5 * 32 * (32 + 2)
    changes: dict[str, Any]
    for changes, message in (
        ({"scales": good.scales[:, :, :1]}, r"expected torch.uint8 and torch.uint8 \(5, 32, 2\)"),
        ({"scales": good.scales.float()}, "scales torch.float32"),
        ({"kind": "fp8"}, "expected torch.float8_e4m3fn"),
        ({"factors": torch.ones(5, 31)}, "factors"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(good, **changes).check()
    with pytest.raises(ValueError, match="no whole blocks of 48"):
        empty_coded("fp8", 5, 64, 64, group=32, rows=48)


def test_every_candidate_has_the_sizes_of_its_operation() -> None:
    for tunable in tunables():
        assert tunable.candidates, tunable.key
        assert len({frozenset(config.sizes) for config in tunable.candidates}) == 1
