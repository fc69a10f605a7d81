"""What packed weights refuse."""

import pytest
import torch
from torch import Tensor

from stentor.kernels import native
from stentor.kernels.linear_packed import (
    PackedKind,
    Scaling,
    empty_packed,
    linear_packed,
    pack_codes_,
    pack_gguf_,
    pack_plain_,
    scaling_of,
    unpack_rows,
)
from stentor.tests.kernels.packed_weights import codes_and_scales, packed_weight
from stentor.tests.kernels.test_linear_gguf import random_blocks

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")


@pytest.mark.parametrize(
    "x", [torch.ones(40), torch.ones(2, 39), torch.ones(1, 2, 40), torch.ones(2, 40).half(), torch.ones(2, 40).double()]
)
def test_rows_that_do_not_fit_are_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match=r"linear_packed: x .* does not fit a q4 weight \(20, 40\)"):
        linear_packed(x, packed_weight("q4", 20, 40))


def test_a_dtype_that_nothing_makes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"linear_packed: x .* to torch.float16 does not fit"):
        linear_packed(torch.ones(2, 40), packed_weight("q4", 20, 40), dtype=torch.float16)


@pytest.mark.parametrize("bias", [torch.ones(19), torch.ones(20).bfloat16(), torch.ones(40)[::2], torch.ones(1, 20)])
def test_a_bias_that_does_not_fit_is_refused(bias: Tensor) -> None:
    with pytest.raises(ValueError, match=r"linear_packed: bias .* must be contiguous float32 \[20\]"):
        linear_packed(torch.ones(2, 40), packed_weight("q4", 20, 40), bias)


@pytest.mark.parametrize(("outputs", "inputs"), [(0, 32), (16, 0), (-1, 32)])
def test_a_weight_of_nothing_is_refused(outputs: int, inputs: int) -> None:
    with pytest.raises(ValueError, match="cannot be packed"):
        empty_packed(outputs, inputs, "bf16")


@pytest.mark.parametrize("kind", ["f32", "bf16", "q4", "q4m", "q8m", "mxfp4"])
def test_scales_of_groups_are_refused_where_nothing_reads_them(kind: PackedKind) -> None:
    for scaling in (Scaling(torch.float32), Scaling(group=64), Scaling(zeros=True)):
        with pytest.raises(ValueError, match=f"a packed {kind} weight has scales of its own: q4z, q8, q8z take"):
            empty_packed(16, 32, kind, scaling=scaling)


@pytest.mark.parametrize(
    "scaling", [Scaling(torch.float64), Scaling(group=33), Scaling(group=-32), Scaling(zeros=True)]
)
def test_scales_that_no_weight_has_are_refused(scaling: Scaling) -> None:
    with pytest.raises(ValueError, match="a packed q8 weight has no scales as"):
        empty_packed(16, 32, "q8", scaling=scaling)


def test_whole_scales_are_of_their_kind_and_have_factors() -> None:
    for scaling in (Scaling(), Scaling(torch.uint8), Scaling(torch.float16)):
        with pytest.raises(ValueError, match="a packed q8h weight has scales in int8"):
            empty_packed(16, 32, "q8h", scaling=scaling)
    weight = empty_packed(16, 512, "q4m", scaling=Scaling(torch.uint8))
    codes, scales = codes_and_scales("q4m", 16, 512, 0, Scaling(torch.uint8))
    for spans in (None, torch.ones(16, 2, 1), torch.ones(16, 1, 2), torch.ones(16, 2, 2).half()):
        with pytest.raises(ValueError, match=r"spans .* do not fit a packed q4m weight"):
            pack_codes_(weight, 0, codes, scales, spans=spans)
    with pytest.raises(ValueError, match="Q4_1 blocks"):
        pack_gguf_(weight, 0, random_blocks("Q4_1", 16, 512), "Q4_1")


def test_zeros_that_do_not_fit_are_refused() -> None:
    scaling = Scaling(torch.float16, 64, zeros=True)
    weight = empty_packed(16, 128, "q4z", scaling=scaling)
    codes, scales = codes_and_scales("q4z", 16, 128, 0, scaling)
    for zeros in (None, torch.zeros(16, 1), torch.zeros(15, 2), torch.zeros(2, 16)):
        with pytest.raises(ValueError, match=r"zeros .* do not fit a packed q4z weight"):
            pack_codes_(weight, 0, codes, scales, zeros=zeros)
    with pytest.raises(ValueError, match=r"zeros .* do not fit a packed q8 weight"):
        pack_codes_(empty_packed(16, 128, "q8"), 0, codes, torch.ones(16, 4, 1), zeros=torch.zeros(16, 4))


def test_plain_rows_that_do_not_fit_are_refused() -> None:
    weight = empty_packed(20, 40, "bf16")
    for rows in (torch.ones(20, 39), torch.ones(40), torch.ones(20, 1, 40)):
        with pytest.raises(ValueError, match="do not fit a packed bf16 weight"):
            pack_plain_(weight, 0, rows)
    with pytest.raises(ValueError, match="do not fit a packed q4 weight"):
        pack_plain_(empty_packed(20, 40, "q4"), 0, torch.ones(20, 40))
    for first, count in ((-1, 4), (17, 4), (0, 21)):
        with pytest.raises(ValueError, match="lie outside a packed weight"):
            pack_plain_(weight, first, torch.ones(count, 40))


def test_blocks_that_do_not_fit_are_refused() -> None:
    weight, blocks = empty_packed(16, 256, "q4"), random_blocks("Q4_0", 16, 256)
    for wrong in (blocks[:, :-18], blocks.int(), blocks[0], blocks.view(16, 8, 18)):
        with pytest.raises(ValueError, match=r"Q4_0 blocks .* do not fit a packed q4 weight"):
            pack_gguf_(weight, 0, wrong, "Q4_0")
    with pytest.raises(ValueError, match="Q4_1 blocks"):
        pack_gguf_(weight, 0, random_blocks("Q4_1", 16, 256), "Q4_1")
    with pytest.raises(ValueError, match="lie outside"):
        pack_gguf_(weight, 1, blocks, "Q4_0")
    with pytest.raises(ValueError, match="Q6_K blocks"):  # 288 columns are not whole blocks of 256
        pack_gguf_(
            empty_packed(4, 288, "q8h", scaling=scaling_of("Q6_K")), 0, torch.zeros(4, 236, dtype=torch.uint8), "Q6_K"
        )
    with pytest.raises(ValueError, match="Q4_K blocks"):  # although 162 bytes are 9/8 of a block, as 288 columns are
        pack_gguf_(
            empty_packed(4, 288, "q4m", scaling=scaling_of("Q4_K")), 0, torch.zeros(4, 162, dtype=torch.uint8), "Q4_K"
        )


def test_codes_that_do_not_fit_are_refused() -> None:
    weight = empty_packed(16, 40, "q4m")
    codes, scales = codes_and_scales("q4m", 16, 40, seed=0)
    for wrong_codes, wrong_scales in (
        (codes.int(), scales),
        (codes[:, :39], scales),
        (codes[0], scales),
        (codes, scales.half()),
        (codes, scales[:, :1]),
        (codes, scales[:, :, :1]),
        (codes[:8], scales),
    ):
        with pytest.raises(ValueError, match="do not fit a packed q4m weight"):
            pack_codes_(weight, 0, wrong_codes, wrong_scales)
    with pytest.raises(ValueError, match="do not fit a packed bf16 weight"):
        pack_codes_(empty_packed(16, 40, "bf16"), 0, codes, scales)
    with pytest.raises(ValueError, match="lie outside"):
        pack_codes_(weight, 9, codes[:8], scales[:8])


def test_rows_outside_a_weight_are_not_unpacked() -> None:
    weight = packed_weight("q8", 20, 32)
    for row in (-1, 20):
        with pytest.raises(IndexError, match="unpack_rows"):
            unpack_rows(weight, torch.tensor([3, row]))
    for rows in (torch.tensor([1], dtype=torch.int32), torch.tensor(1), torch.tensor([1.0])):
        with pytest.raises(ValueError, match=r"must be int64 \[n\]"):
            unpack_rows(weight, rows)


# ---- memory
