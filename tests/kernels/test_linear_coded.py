"""A weight in codes multiplies as the weight that it stands for."""

from dataclasses import replace
from typing import Any

import gguf
import pytest
import torch

from stentor.kernels import CodeKind, empty_coded, linear_coded
from stentor.kernels.linear_coded import CodedMatrices
from stentor.kernels.linear_coded.blocks import BLOCK_KINDS, BlockKind, coded_blocks, empty_blocks
from stentor.kernels.linear_coded.tunables import tunables
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.coded import CODES, coded, coded_of_blocks
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal
from stentor.tests.kernels.test_linear_gguf import random_blocks

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
    code = weight.codes[expert, row, column if kind in ("fp8", "int8") else column // 2]
    number = float(code) if kind in ("fp8", "int8") else int(code) >> 4
    if kind in ("mxfp4", "nvfp4"):
        magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
        number = magnitudes[int(number) % 8] * (-1 if number >= 8 else 1)
    elif kind == "iq4nl":
        number = int(gguf.quants.IQ4_NL.kvalues[int(number)])
    elif kind in ("int4", "int8"):
        usual = 8 if kind == "int4" else 128
        number -= usual if weight.zeros is None else int(weight.zeros[expert, row, column // weight.group])
    factor = 1.0 if weight.factors is None else float(weight.factors[expert, row])
    found = float(weight.values(expert, torch.float32)[row, column])
    assert found == pytest.approx(number * (2.0 ** (int(scale) - 127) if kind == "mxfp4" else float(scale)) * factor)


@pytest.mark.parametrize("stored", BLOCK_KINDS)
def test_blocks_of_gguf_are_kept_exactly(stored: BlockKind) -> None:
    blocks = random_blocks(stored, 9, 512)
    expected = torch.from_numpy(gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[stored])).float()
    found = coded_blocks(blocks, stored)
    found.check()
    assert_same_bits(found.values(0, torch.float32), expected)
    room = empty_blocks(stored, 3, 9, 512)
    assert room.nbytes == 3 * found.nbytes
    room.put_(1, 0, found)
    assert_same_bits(room.values(1, torch.float32), expected)
    parts = [coded_blocks(rows, stored) for rows in (blocks[:4], blocks[4:])]
    assert_same_bits(CodedMatrices.concat(parts).values(0, torch.float32), expected)


@pytest.mark.parametrize("stored", BLOCK_KINDS)
def test_rows_of_no_whole_blocks_are_refused(stored: BlockKind) -> None:
    for rows in (torch.zeros(2, 33, dtype=torch.uint8), torch.zeros(2, 420), torch.zeros(420, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="are not rows of"):
            coded_blocks(rows, stored)


def expanded(weight: CodedMatrices, block: int) -> torch.Tensor:
    """The weight as the kernel multiplies by it: a row of ones times each."""
    inputs = weight.shape[2]
    with overridden("linear_coded", Config.of(num_warps=4, num_stages=2, BLOCK_T=16, BLOCK_N=16, BLOCK_K=block)):
        return linear_coded(torch.eye(inputs, device=DEVICE), weight, variant="triton").T.contiguous()


@pytest.mark.triton
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize(("kind", "group", "rows", "zeros"), CODES)
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 64), (16, 160)])
def test_the_kernel_multiplies_by_the_very_weight(
    kind: CodeKind, group: int, rows: int, zeros: bool, outputs: int, inputs: int, block: int
) -> None:
    weight = coded(kind, 1, outputs, inputs, group, rows, zeros, 1)
    assert torch.equal(expanded(weight, block), weight.values(0, torch.float32)), "but for signs of zeros"


@pytest.mark.proof(each="stored")
@pytest.mark.triton
@pytest.mark.parametrize("block", [64, 512])
@pytest.mark.parametrize("stored", BLOCK_KINDS)
def test_the_kernel_multiplies_by_the_very_blocks(stored: BlockKind, block: int) -> None:
    """The last tile of outputs is none, and blocks are longer and shorter than what shares a scale or a factor."""
    weight = coded_of_blocks(stored, 1, 21, 256, 1)
    assert torch.equal(expanded(weight, block), weight.values(0, torch.float32)), "but for signs of zeros"


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
        ({"factors": torch.ones(5, 31, 1)}, "factors"),
        ({"mins": torch.ones(5, 32, 1)}, "mins"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(good, **changes).check()
    with pytest.raises(ValueError, match="no whole blocks of 48"):
        empty_coded("fp8", 5, 64, 64, group=32, rows=48)


def test_every_candidate_has_the_sizes_of_its_operation() -> None:
    for tunable in tunables():
        assert tunable.candidates, tunable.key
        assert len({frozenset(config.sizes) for config in tunable.candidates}) == 1
