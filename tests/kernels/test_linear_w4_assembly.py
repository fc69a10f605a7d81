"""The assembly that unpacks codes on a GPU, executed instruction by instruction, against the layout's definition."""

import numpy as np
import pytest
import torch

from stentor.kernels.linear_w4.planes import pack_codes, pack_pairs, unpack_codes, unpack_pairs
from stentor.tests.kernels.ptx import execute, halves, operands, pairs

COLUMN_GROUPS = 4


def assembly(bits: int, dtype: torch.dtype) -> str:
    from stentor.kernels.linear_w4 import triton_codes  # late: it imports Triton

    name = f"UNPACK_{bits}_{'BF16' if dtype == torch.bfloat16 else 'FP16'}"
    text: str = getattr(triton_codes, name).value
    return text


def every_word() -> torch.Tensor:
    """int16 [blocks, rows, 32] of all there are."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(4, 512, 32)


def by_group(values: torch.Tensor) -> list[torch.Tensor]:
    """[N, K] → those of each column group, in the order of the words [blocks, N, 32]."""
    return [values.view(512, 4, COLUMN_GROUPS, 32)[:, :, group].transpose(0, 1) for group in range(COLUMN_GROUPS)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("zeros", [(8, 8, 8, 8), (0, 0, 0, 0), (0, 5, 11, 16), (16, 15, 1, 7)], ids=str)
def test_four_bits_become_what_the_layout_says_less_the_zero(dtype: torch.dtype, zeros: tuple[int, ...]) -> None:
    words, base = every_word(), 128 if dtype == torch.bfloat16 else 1024
    codes = unpack_codes(words, 512)
    assert torch.equal(pack_codes(codes), words)
    offsets = [pairs(torch.full(words.shape, -base - zero, dtype=torch.float32).to(dtype)) for zero in zeros]
    text = assembly(4, dtype)
    assert operands(text) == set(range(9))
    made = execute(text, COLUMN_GROUPS, [pairs(words), *offsets])
    for result, wanted, zero in zip(made, by_group(codes), zeros, strict=True):
        assert torch.equal(halves(result, dtype).float(), wanted.float() - zero)


def test_masked_codes_are_the_layouts_plus_128() -> None:
    from stentor.kernels.linear_w4 import triton_codes  # late: it imports Triton

    text, words = triton_codes.MASK_4_BF16.value, every_word()
    assert operands(text) == set(range(5))
    made = execute(text, COLUMN_GROUPS, [pairs(words)])
    for result, wanted in zip(made, by_group(unpack_codes(words, 512)), strict=True):
        assert torch.equal(halves(result, torch.bfloat16).float(), wanted.float() + 128)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_six_bits_become_what_the_layout_says_less_32(dtype: torch.dtype) -> None:
    words = every_word()
    high = torch.from_numpy(np.random.default_rng(1).integers(0, 256, words.shape, dtype=np.uint8))
    codes = unpack_codes(words, 512) | (unpack_pairs(high, 512) << 4)
    assert torch.equal(pack_pairs(codes >> 4), high)
    text = assembly(6, dtype)
    assert operands(text) == set(range(6))
    made = execute(text, COLUMN_GROUPS, [pairs(words), pairs(high.to(torch.int16))])
    for result, wanted in zip(made, by_group(codes), strict=True):
        assert torch.equal(halves(result, dtype).float(), wanted.float() - 32)


def test_the_table_of_lop3_is_that_of_and_then_or() -> None:
    """0xf0, 0xcc and 0xaa are the three operands: (a & b) | c."""
    a, b, c = (np.random.default_rng(i).integers(0, 1 << 32, 64, dtype=np.uint32) for i in range(3))
    (made,) = execute("{ lop3.b32 $0, $1, $2, $3, 0xea; }", 1, [a, b, c])
    assert (0xF0 & 0xCC) | 0xAA == 0xEA
    assert np.array_equal(made, (a & b) | c)
