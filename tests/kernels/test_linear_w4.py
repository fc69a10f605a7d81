"""4-bit weights: every checkpoint format against a slow definition of it, and the kernels against the reference."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stentor.kernels.linear_w4 import (
    W4Weight,
    choose,
    dequantize,
    from_awq,
    from_compressed_tensors,
    from_gptq,
    linear_w4,
)
from stentor.kernels.linear_w4.planes import pack_codes, unpack_codes
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
AWQ_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)
"""Bits from which the eight columns of an AWQ word are read, column by column."""


def integers(*shape: int, seed: int, below: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, shape)


def floats(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.01, 0.02, shape).astype(np.float16)


def words(values: np.ndarray, shifts: tuple[int, ...] = tuple(range(0, 32, 4))) -> Tensor:
    """Eight values along the last axis to an int32, slowly."""
    rows, columns = values.shape
    packed = np.zeros((rows, columns // 8), dtype=np.uint32)
    for row in range(rows):
        for column in range(columns):
            packed[row, column // 8] |= np.uint32(int(values[row, column]) << shifts[column % 8])
    return torch.from_numpy(packed.view(np.int32))


def expected(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> Tensor:
    """Value by value; codes [N, K], zeros and scales [groups, N], groups [K]."""
    values = np.zeros(codes.shape, dtype=np.float32)
    for n in range(codes.shape[0]):
        for k in range(codes.shape[1]):
            g = groups[k]
            values[n, k] = np.float32(int(codes[n, k]) - int(zeros[g, n])) * np.float32(scales[g, n])
    return torch.from_numpy(values)


def random_weight(
    rows: int, columns: int, group: int, *, zeros: bool = False, act_order: bool = False, seed: int = 0
) -> W4Weight:
    groups = columns // group if group else 1
    g_idx = np.arange(columns) // (group or columns)
    return W4Weight.from_codes(
        torch.from_numpy(integers(rows, columns, seed=seed)).to(torch.uint8),
        torch.from_numpy(floats(rows, groups, seed=seed + 1)),
        group=group,
        zeros=torch.from_numpy(integers(rows, groups, seed=seed + 2, below=17)).to(torch.uint8) if zeros else None,
        g_idx=torch.from_numpy(np.random.default_rng(seed + 3).permutation(g_idx)) if act_order else None,
    ).to(DEVICE)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_gptq_is_read_as_it_was_written(version: int, act_order: bool, group: int) -> None:
    n, k = 16, 256
    size = k if group == -1 else group
    codes, scales = integers(n, k, seed=1), floats(k // size, n, seed=2)
    zeros = integers(k // size, n, seed=3) + (1 if version == 1 else 0)
    g_idx = np.arange(k) // size
    if act_order:
        g_idx = np.random.default_rng(4).permutation(g_idx)
    weight = from_gptq(
        words(codes).T.contiguous(),
        words(zeros - (1 if version == 1 else 0)),
        torch.from_numpy(scales),
        group=group,
        g_idx=torch.from_numpy(g_idx).to(torch.int32),
        version=version,
    )
    assert (weight.perm is not None) == (act_order and group != -1)
    assert_same_bits(dequantize(weight, torch.float32), expected(codes, zeros, scales, g_idx))


def test_a_symmetric_gptq_weight_has_no_zeros() -> None:
    codes, scales = integers(8, 64, seed=1), floats(2, 8, seed=2)
    weight = from_gptq(
        words(codes).T.contiguous(), words(np.full((2, 8), 7)), torch.from_numpy(scales), group=32, version=1
    )
    assert weight.zeros is None
    assert_same_bits(
        dequantize(weight, torch.float32), expected(codes, np.full((2, 8), 8), scales, np.arange(64) // 32)
    )


@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_awq_is_read_as_it_was_written(group: int) -> None:
    n, k = 24, 128
    size = k if group == -1 else group
    codes, scales, zeros = integers(n, k, seed=1), floats(k // size, n, seed=2), integers(k // size, n, seed=3)
    weight = from_awq(words(codes.T, AWQ_SHIFTS), words(zeros, AWQ_SHIFTS), torch.from_numpy(scales), group=group)
    assert_same_bits(dequantize(weight, torch.float32), expected(codes, zeros, scales, np.arange(k) // size))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group", [32, 128, -1])
def test_compressed_tensors_are_read_as_they_were_written(symmetric: bool, act_order: bool, group: int) -> None:
    n, k = 13, 256
    size = k if group == -1 else group
    codes, scales = integers(n, k, seed=1), floats(k // size, n, seed=2)
    zeros = np.full((k // size, n), 8) if symmetric else integers(k // size, n, seed=3)
    padded = np.zeros((k // size, 16), dtype=np.int64)
    padded[:, :n] = zeros
    g_idx = np.arange(k) // size
    if act_order:
        g_idx = np.random.default_rng(4).permutation(g_idx)
    weight = from_compressed_tensors(
        words(codes),
        torch.from_numpy(scales.T.copy()),
        shape=(n, k),
        group=group,
        weight_zero_point=None if symmetric else words(padded).T.contiguous(),
        weight_g_idx=torch.from_numpy(g_idx if act_order else np.full(k, -1)),
    )
    assert (weight.perm is not None) == (act_order and group != -1)
    assert_same_bits(dequantize(weight, torch.float32), expected(codes, zeros, scales, g_idx))


def test_a_word_holds_the_codes_that_its_layout_says() -> None:
    codes = torch.from_numpy(integers(3, 300, seed=1)).to(torch.uint8)
    packed = pack_codes(codes)
    assert packed.shape == (3, 3, 32)
    word = int(packed[1, 2, 5]) & 0xFFFF
    assert [(word >> shift) & 15 for shift in (0, 4, 8, 12)] == codes[2, [133, 165, 197, 229]].tolist()
    assert torch.equal(unpack_codes(packed, 300), codes)


def test_projections_become_one_layer_row_after_row() -> None:
    parts = [random_weight(n, 128, 32, zeros=n == 8, seed=n) for n in (5, 8, 16)]
    fused = W4Weight.concat(parts)
    assert fused.shape == (29, 128)
    assert_same_bits(dequantize(fused, torch.float32), torch.cat([dequantize(part, torch.float32) for part in parts]))


def test_projections_that_cannot_be_one_layer_are_refused() -> None:
    with pytest.raises(ValueError, match="different act-orders"):
        W4Weight.concat([random_weight(8, 128, 32, act_order=True, seed=seed) for seed in (1, 2)])
    with pytest.raises(ValueError, match="different act-orders"):
        W4Weight.concat([random_weight(8, 128, 32, act_order=True), random_weight(8, 128, 32)])
    with pytest.raises(ValueError, match="in groups of 32"):
        W4Weight.concat([random_weight(8, 128, 64), random_weight(8, 128, 32)])
    same = [random_weight(8, 128, 32, act_order=True, seed=1) for _ in range(2)]
    assert_same_bits(dequantize(W4Weight.concat(same), torch.float32)[8:], dequantize(same[0], torch.float32))


def test_what_does_not_fit_is_refused() -> None:
    weight = random_weight(8, 128, 32)
    x = normal(2, 128, seed=1).to(DEVICE)
    with pytest.raises(ValueError, match="does not fit a weight"):
        linear_w4(x[:, :64], weight)
    with pytest.raises(ValueError, match="must be contiguous"):
        linear_w4(x.T.contiguous().T, weight)
    with pytest.raises(ValueError, match="bias"):
        linear_w4(x, weight, x[0, :7])
    codes, scales = torch.zeros(8, 96, dtype=torch.uint8), torch.ones(8, 3)
    with pytest.raises(ValueError, match="groups of 32, 64 or 128"):
        W4Weight.from_codes(codes, scales, group=48)
    with pytest.raises(ValueError, match="not whole groups"):
        W4Weight.from_codes(codes, scales, group=64)
    with pytest.raises(ValueError, match="scales are"):
        W4Weight.from_codes(codes, scales[:, :2], group=32)
    with pytest.raises(ValueError, match="g_idx does not put"):
        W4Weight.from_codes(codes, scales, group=32, g_idx=torch.zeros(96, dtype=torch.int32))
    with pytest.raises(ValueError, match="version"):
        from_gptq(torch.zeros(8, 8), torch.zeros(1, 1), torch.ones(1, 8), group=-1, version=3)


@pytest.mark.skipif(DEVICE != "cpu", reason="of the CPU")
def test_the_cpu_takes_the_reference() -> None:
    assert choose(torch.ones(1, 128)) == "reference"


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(
    ("group", "zeros", "act_order"),
    [(32, True, False), (64, False, True), (64, True, False), (128, False, False), (128, True, True), (0, True, False)],
)
@pytest.mark.parametrize(("tokens", "rows", "columns"), [(1, 16, 128), (9, 33, 640), (19, 40, 256), (70, 9, 128)])
def test_the_triton_layer_is_the_reference(
    dtype: torch.dtype, group: int, zeros: bool, act_order: bool, tokens: int, rows: int, columns: int
) -> None:
    weight = random_weight(rows, columns, group, zeros=zeros, act_order=act_order)
    x, bias = normal(tokens, columns, seed=1, dtype=dtype).to(DEVICE), normal(rows, seed=2, dtype=dtype).to(DEVICE)
    assert choose(x, "triton") == "triton"
    assert_close(
        linear_w4(x, weight, bias, variant="triton"),
        linear_w4(x, weight, bias, variant="reference"),
        TOLERANCE[dtype],
    )


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(("group", "columns"), [(32, 160), (64, 192), (0, 136)])
@pytest.mark.parametrize("tokens", [0, 2, 17, 600])
def test_columns_past_the_last_whole_block_count_too(dtype: torch.dtype, group: int, columns: int, tokens: int) -> None:
    weight = random_weight(17, columns, group, zeros=True)
    x = normal(tokens, columns + 5, seed=1, dtype=dtype).to(DEVICE)[:, :columns]  # rows are strided
    assert_close(linear_w4(x, weight, variant="triton"), linear_w4(x, weight, variant="reference"), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(("group", "columns"), [(32, 160), (64, 192), (128, 640), (0, 136)])
def test_an_offset_that_is_a_product_of_its_own_changes_nothing_else(
    dtype: torch.dtype, group: int, columns: int
) -> None:
    from stentor.kernels.linear_w4.triton import SKINNY  # late: it imports Triton

    weight = random_weight(33, columns, group)
    x = normal(3, columns, seed=1, dtype=dtype).to(DEVICE)
    subtracted = linear_w4(x, weight, variant="triton")
    with overridden(SKINNY, Config.of(SLICES=4, ROWS=32, TOKENS=8, STEPS=1)):
        apart = linear_w4(x, weight, variant="triton")
    assert_close(
        apart, linear_w4(x, weight, variant="reference"), max(TOLERANCE[dtype], 3e-5)
    )  # sums are of code + 128
    assert not torch.equal(apart, subtracted) or dtype != torch.float32


@pytest.mark.triton
def test_a_few_rows_are_each_what_they_are_alone() -> None:
    weight = random_weight(24, 256, 128, zeros=True)
    x = normal(16, 256, seed=1, dtype=torch.float16).to(DEVICE)
    together = linear_w4(x, weight, variant="triton")
    for row in (0, 7, 15):
        assert_same_bits(linear_w4(x[row : row + 1], weight, variant="triton"), together[row : row + 1])


@pytest.mark.triton
def test_parts_of_the_columns_add_up() -> None:
    from stentor.kernels.linear_w4.triton import GENERAL
    from stentor.kernels.tuning import Config, overridden

    weight = random_weight(24, 640, 128)
    x, bias = normal(20, 640, seed=1).to(DEVICE), normal(24, seed=2).to(DEVICE)
    want = linear_w4(x, weight, bias, variant="reference")
    for parts in (1, 2, 3):
        with overridden(GENERAL, Config.of(ROWS=16, TOKENS=16, PARTS=parts)):
            assert_close(linear_w4(x, weight, bias, variant="triton"), want)


@pytest.mark.triton
@pytest.mark.parametrize(("columns", "parts"), [(128, 4), (768, 4)])
def test_no_part_is_without_columns(columns: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read scales past the last group; and one part alone has the bias added with it."""
    from stentor.kernels.launching.launch import launch as started
    from stentor.kernels.linear_w4 import triton
    from stentor.kernels.tuning import Config, overridden

    grids: list[Sequence[int]] = []

    def launch(kernel: Any, grid: Sequence[int], *args: Any, **constants: Any) -> None:
        grids.append(grid)
        started(kernel, grid, *args, **constants)

    monkeypatch.setattr(triton, "launch", launch)
    weight = random_weight(24, columns, 128)
    x, bias = normal(20, columns, seed=1).to(DEVICE), normal(24, seed=2).to(DEVICE)
    with overridden(triton.GENERAL, Config.of(ROWS=16, TOKENS=16, PARTS=parts)):
        assert_close(linear_w4(x, weight, bias, variant="triton"), linear_w4(x, weight, bias, variant="reference"))
    launched = grids[0][2]
    assert (launched - 1) * -(-columns // 128 // launched) < columns // 128


@pytest.mark.triton
def test_a_big_weight_is_made_into_floats_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    from stentor.kernels.linear_w4 import triton

    monkeypatch.setattr(triton, "SCRATCH_BYTES", 0)  # 128 rows at a time
    weight = random_weight(300, 128, 64, zeros=True)
    x, bias = normal(5, 128, seed=1).to(DEVICE), normal(300, seed=2).to(DEVICE)
    assert_close(triton.dense(x, weight.planes, bias), linear_w4(x, weight, bias, variant="reference"))


@pytest.mark.triton
def test_pieces_of_a_big_weight_are_aligned_for_torchs_product(monkeypatch: pytest.MonkeyPatch) -> None:
    from stentor.kernels.linear_w4 import triton

    pieces: list[tuple[int, int]] = []
    monkeypatch.setattr(triton, "SCRATCH_BYTES", 180 * 128 * 4)
    monkeypatch.setattr(triton, "floats", lambda planes, out, first, last: pieces.append((first, last)))
    triton.dense(normal(1, 128, seed=1).to(DEVICE), random_weight(300, 128, 64).planes, None)
    assert pieces == [(0, 128), (128, 256), (256, 300)]


@pytest.mark.triton
def test_a_tuned_size_that_would_leave_rows_out_is_refused() -> None:
    from stentor.kernels.linear_w4.triton import SKINNY

    codes = torch.zeros(16, 128, dtype=torch.uint8, device=DEVICE)
    weight = W4Weight.from_codes(codes, torch.ones(16, 1, device=DEVICE), group=128)
    x = torch.ones(9, 128, dtype=torch.float16, device=DEVICE)
    small = Config.of(SLICES=4, ROWS=16, TOKENS=8, num_warps=4, num_stages=2)
    with overridden(SKINNY, small), pytest.raises(ValueError, match="TOKENS must hold all 9 rows"):
        linear_w4(x, weight, variant="triton")
