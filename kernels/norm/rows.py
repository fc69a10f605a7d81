"""How norms address their rows, and the argument checks of every norm."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..guards import FLOATS, describe, triton_unsupported_reason
from ..tuning import Config
from ..variants import Choice

MAX_WIDTH = 32768
"""The longest row that a Triton kernel holds at once."""


class Rows(NamedTuple):
    """Row i begins at (i // inner) * outer_stride + (i % inner) * inner_stride, in elements."""

    number: int
    inner: int
    outer_stride: int
    inner_stride: int


def rows_of(x: Tensor) -> Rows:
    """Returns the rows of ``x``, which has one to three dims, along its last."""
    shape, stride = x.shape, x.stride()
    if len(shape) == 3:
        return Rows(shape[0] * shape[1], shape[1], stride[0], stride[1])
    if len(shape) == 2:
        return Rows(shape[0], 1, stride[0], 0)
    return Rows(1, 1, 0, 0)


def dims_unsupported_reason(x: Tensor) -> str | None:
    return None if 1 <= x.dim() <= 3 else f"it takes one to three dims, not {x.dim()}"


def row_unsupported_reason(x: Tensor, choice: Choice) -> str | None:
    """Returns why no Triton kernel can norm the rows of ``x``; None if one can."""
    if (unsupported_reason := triton_unsupported_reason(x, choice) or dims_unsupported_reason(x)) is not None:
        return unsupported_reason
    return f"it takes rows of up to {MAX_WIDTH}, not {x.shape[-1]}" if x.shape[-1] > MAX_WIDTH else None


def block_of(width: int) -> int:
    """Returns the power of two that holds a row, at least 16."""
    return 1 << max(4, (width - 1).bit_length())


def default_config(block: int) -> Config:
    """Returns a config with one long row per program, or short rows of about a thousand values; 8 to 32 values per
    thread.

    It depends only on the length of a row, so that a row is summed in one order in every batch.
    """
    rows = max(1, 1024 // block)
    return Config.of(ROWS=rows, num_warps=32 if block > 16384 else min(16, max(4, rows * block // 512)))


def tuning_key(width: int, dtype: torch.dtype) -> str:
    return f"{width} {str(dtype).removeprefix('torch.')}"


def check_rows(operation: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Raises ValueError unless ``x`` is [..., H] with contiguous rows, ``weight`` and ``bias`` [H] of its dtype."""
    if x.dtype not in FLOATS or not x.dim() or weight.dim() != 1 or x.shape[-1] != weight.shape[0]:
        raise ValueError(f"{operation}: x {describe(x)} does not fit weight {describe(weight)}; want [..., H] and [H]")
    if x.dtype != weight.dtype or x.device != weight.device:
        raise ValueError(f"{operation}: x {describe(x)} does not fit weight {describe(weight)}; want one dtype, device")
    if bias is not None and (bias.shape, bias.dtype, bias.device) != (weight.shape, weight.dtype, weight.device):
        raise ValueError(f"{operation}: bias {describe(bias)} does not fit weight {describe(weight)}")
    parameters = weight.is_contiguous() and (bias is None or bias.is_contiguous())
    if (x.stride(-1) != 1 and x.shape[-1] > 1) or not parameters:
        raise ValueError(
            f"{operation}: the last dim of x, weight and bias must be contiguous, x has strides {x.stride()}"
        )


def check_residual(operation: str, x: Tensor, residual: Tensor) -> None:
    """Raises ValueError unless ``residual`` is contiguous and has the shape, dtype and device of ``x``."""
    if (x.shape, x.dtype, x.device) != (residual.shape, residual.dtype, residual.device):
        raise ValueError(f"{operation}: x {describe(x)} does not fit residual {describe(residual)}")
    if not residual.is_contiguous():
        raise ValueError(f"{operation}: residual must be contiguous, its strides are {residual.stride()}")
