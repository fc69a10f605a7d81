"""GGUF weights: planes hold what the blocks held, and the kernels are the reference."""

import pytest
import torch
from torch import Tensor

from stentor.engine.loading.gguf.dequantize import dequantize as decode
from stentor.engine.loading.gguf.types import GGMLType
from stentor.kernels.linear_gguf import FORMATS, GGUFWeight, Kind, choose, dequantize, empty_weight, linear_gguf
from stentor.kernels.linear_packed import Stored
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

KINDS: tuple[Kind, ...] = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_0", "Q5_1", "Q5_K")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HALVES: dict[Stored, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q6_K": (208,),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q5_K": (0, 2),
    "IQ4_NL": (0,),
    "MXFP4": (),
}
"""Where in a block floats begin."""


def random_blocks(kind: Stored, rows: int, columns: int, seed: int = 0) -> Tensor:
    """Any bytes, but for floats of a sensible size."""
    generator = torch.Generator().manual_seed(seed)
    form = GGMLType[kind]
    shape = (rows, columns // form.elements, form.block_bytes)
    blocks = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    for start in HALVES[kind]:
        halves = (torch.randn(*shape[:2], 1, generator=generator) * 0.01).half()
        blocks[:, :, start : start + 2] = halves.view(torch.uint8)
    if kind == "MXFP4":
        blocks[:, :, 0] = torch.randint(116, 124, shape[:2], dtype=torch.uint8, generator=generator)
    return blocks.flatten(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (7, 3), (16, 8)])
def test_planes_hold_exactly_what_the_blocks_held(kind: Kind, rows: int, blocks: int) -> None:
    stored = random_blocks(kind, rows, blocks * FORMATS[kind].columns)
    weight = GGUFWeight.from_blocks(stored, kind)
    assert_same_bits(dequantize(weight, torch.float32), decode(stored, GGMLType[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_planes_take_no_more_room_than_they_say(kind: Kind) -> None:
    stored = random_blocks(kind, 8, 1024)
    weight = GGUFWeight.from_blocks(stored, kind)
    unpacked = 4 * 4 * 8 if kind in ("Q4_K", "Q5_K") else 0  # four blocks a row: 12 bytes of six-bit factors become 16
    if kind.startswith("Q5"):
        unpacked += 8 * 1024 // 8  # five bits become six
    assert weight.nbytes == stored.nbytes + unpacked
    made = empty_weight(8, 1024, kind, "cpu")
    assert {name: (getattr(made, name).shape, getattr(made, name).dtype) for name in made.present} == {
        name: (getattr(weight, name).shape, getattr(weight, name).dtype) for name in weight.present
    }


@pytest.mark.parametrize("kind", KINDS)
def test_projections_become_one_layer_row_after_row(kind: Kind) -> None:
    stored = random_blocks(kind, 9, 512)
    fused = GGUFWeight.concat([GGUFWeight.from_blocks(stored[a:b], kind) for a, b in ((0, 2), (2, 3), (3, 9))])
    assert_same_bits(dequantize(fused, torch.float32), decode(stored, GGMLType[kind]))


def test_what_does_not_fit_is_refused() -> None:
    blocks = random_blocks("Q4_0", 4, 256)
    with pytest.raises(ValueError, match="not rows of Q8_0's blocks of 34 bytes"):
        GGUFWeight.from_blocks(blocks, "Q8_0")
    with pytest.raises(ValueError, match="Q3_K cannot be multiplied"):
        GGUFWeight.from_blocks(blocks, "Q3_K")  # type: ignore[arg-type]
    weight = GGUFWeight.from_blocks(blocks, "Q4_0")
    with pytest.raises(ValueError, match="keep these projections apart"):
        GGUFWeight.concat([weight, GGUFWeight.from_blocks(random_blocks("Q6_K", 4, 256), "Q6_K")])
    with pytest.raises(ValueError, match="does not fit a weight"):
        linear_gguf(torch.ones(1, 128), weight)


@pytest.mark.skipif(DEVICE != "cpu", reason="of the CPU")
def test_the_cpu_takes_the_reference() -> None:
    assert choose(torch.ones(1, 256)) == "reference"


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "rows", "columns"), [(1, 16, 256), (9, 33, 512), (19, 40, 256), (600, 17, 256)])
def test_the_triton_layer_is_the_reference(
    dtype: torch.dtype, kind: Kind, tokens: int, rows: int, columns: int
) -> None:
    weight = GGUFWeight.from_blocks(random_blocks(kind, rows, columns), kind).to(DEVICE)
    x, bias = normal(tokens, columns, seed=1, dtype=dtype).to(DEVICE), normal(rows, seed=2, dtype=dtype).to(DEVICE)
    assert choose(x, "triton") == "triton"
    assert_close(
        linear_gguf(x, weight, bias, variant="triton"),
        linear_gguf(x, weight, bias, variant="reference"),
        TOLERANCE[dtype],
    )


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_an_offset_that_is_a_product_of_its_own_changes_nothing_else(dtype: torch.dtype, kind: Kind) -> None:
    from stentor.kernels.linear_w4.triton import SKINNY  # late: it imports Triton

    weight = GGUFWeight.from_blocks(random_blocks(kind, 33, 512), kind).to(DEVICE)
    x = normal(3, 512, seed=1, dtype=dtype).to(DEVICE)
    with overridden(SKINNY, Config.of(SLICES=4, ROWS=32, TOKENS=8, STEPS=1)):
        apart = linear_gguf(x, weight, variant="triton")
    assert_close(apart, linear_gguf(x, weight, variant="reference"), max(TOLERANCE[dtype], 3e-5))


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("tokens", [0, 2, 17, 600])
def test_columns_past_the_last_whole_block_count_too(dtype: torch.dtype, kind: Kind, tokens: int) -> None:
    weight = GGUFWeight.from_blocks(random_blocks(kind, 17, 160), kind).to(DEVICE)
    x = normal(tokens, 165, seed=1, dtype=dtype).to(DEVICE)[:, :160]  # rows are strided
    assert_close(
        linear_gguf(x, weight, variant="triton"), linear_gguf(x, weight, variant="reference"), TOLERANCE[dtype]
    )
