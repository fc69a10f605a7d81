"""Quantises weights while loading, on any device, with bounded scratch memory."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ..guards import FLOATS, describe
from .reference import rounded, scale_of
from .scheme import FP8

WeightGranularity = Literal["channel", "tensor", "block"]

BLOCK = 128
"""Rows and columns that share a scale under granularity ``block`` (DeepSeek-V3, arXiv:2412.19437, section 3.3.2)."""

_SCRATCH = 1 << 23
"""About how many elements of float32 scratch are used; never less than one row of blocks."""


def quantize_weight_fp8(weight: Tensor, granularity: WeightGranularity) -> tuple[Tensor, Tensor]:
    """Quantises a weight to ``float8_e4m3fn``.

    Args:
        weight: [N, K] float32, bfloat16 or float16, on any device.
        granularity: ``channel``: one scale per row; ``tensor``: one in all; ``block``: one for each 128 x 128.

    Returns:
        The values [N, K] and their float32 scales [N], [1] or [ceil(N / 128), ceil(K / 128)], on the device of
        ``weight``: values * scales approximates ``weight``.

    Raises:
        ValueError: a weight that is no matrix of floats, or an unknown granularity.
    """
    _check(weight)
    if granularity == "channel":
        return _by_channel(weight, FP8)
    values = torch.empty_like(weight, dtype=FP8, memory_format=torch.contiguous_format)
    if granularity == "tensor":
        largest = weight.new_zeros(1, dtype=torch.float32)
        for part in _parts(weight):
            torch.maximum(largest, weight[part].abs().amax().float(), out=largest)
        scale = scale_of(largest, FP8)
        for part in _parts(weight):
            values[part] = rounded(weight[part].float() / scale, FP8)
        return values, scale
    if granularity != "block":
        raise ValueError(f"quantize_weight_fp8: granularity must be channel, tensor or block, not {granularity!r}")
    rows, width = weight.shape
    scales = weight.new_empty(-(-rows // BLOCK), -(-width // BLOCK), dtype=torch.float32)
    for part in _parts(weight):
        taken = weight[part].float()
        height = taken.shape[0]
        blocks = functional.pad(taken, (0, -width % BLOCK, 0, -height % BLOCK)).view(
            -(-height // BLOCK), BLOCK, scales.shape[1], BLOCK
        )
        of_part = scale_of(blocks.abs().amax((1, 3)), FP8)
        scales[part.start // BLOCK : part.start // BLOCK + of_part.shape[0]] = of_part
        scaled = (blocks / of_part[:, None, :, None]).view(-1, scales.shape[1] * BLOCK)
        values[part] = rounded(scaled[:height, :width], FP8)
    return values, scales


def quantize_weight_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises a weight [N, K] to int8, with one float32 scale per row [N]; otherwise as
    :func:`quantize_weight_fp8`."""
    _check(weight)
    return _by_channel(weight, torch.int8)


def _by_channel(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    values = torch.empty_like(weight, dtype=dtype, memory_format=torch.contiguous_format)
    scales = weight.new_empty(weight.shape[0], dtype=torch.float32)
    for part in _parts(weight):
        taken = weight[part].float()
        scales[part] = scale_of(taken.abs().amax(-1), dtype)
        values[part] = rounded(taken / scales[part].unsqueeze(-1), dtype)
    return values, scales


def _parts(weight: Tensor) -> Iterator[slice]:
    """Yields slices of rows, whole blocks each, that bound the scratch memory."""
    rows, width = weight.shape
    step = max(_SCRATCH // width // BLOCK, 1) * BLOCK
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _check(weight: Tensor) -> None:
    if weight.dim() != 2 or weight.dtype not in FLOATS or 0 in weight.shape:
        raise ValueError(f"quantize_weight: want a weight [N, K] of floats, not {describe(weight)}")
