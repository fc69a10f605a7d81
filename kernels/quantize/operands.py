"""The operands of a product with 8-bit weights, checked once for every implementation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..guards import FLOATS, describe
from .scheme import Quantized
from .weights import BLOCK, WeightGranularity

InputScales = Literal["none", "tensor", "token", "group"]

Product = Callable[[Tensor, Tensor | None, Tensor, Tensor, Tensor | None], Tensor]
"""Multiplies :attr:`Operands.tensors`: those that it was prepared for, or others of the same layout."""

GROUP = BLOCK
"""Values of a row that share an activation scale under ``group``."""


@dataclass(frozen=True)
class Operands:
    """out [T, N] = (x * x_scale) [T, K] @ (weight * weight_scale) [N, K].T + bias."""

    x: Tensor
    x_scale: Tensor | None
    input_scales: InputScales
    """``none``: ``x`` is not quantised, and the weight is widened to its dtype."""
    weight: Tensor
    weight_scale: Tensor
    weight_scales: WeightGranularity
    bias: Tensor | None
    out_dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """T, N and K."""
        return self.x.shape[0], self.weight.shape[0], self.weight.shape[1]

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
        return self.x, self.x_scale, self.weight, self.weight_scale, self.bias

    @property
    def scaled_by_step(self) -> bool:
        """Whether a scale changes along K, so that it cannot be applied after the sum."""
        return self.input_scales == "group" or self.weight_scales == "block"

    @property
    def x_scale_stride(self) -> int:
        """The distance from one token's scale to the next's; 0 if they share one."""
        if self.x_scale is None or self.input_scales == "tensor":
            return 0
        return self.x_scale.shape[1]

    @property
    def weight_scale_stride(self) -> int:
        """The distance from the scale of one row, or row of blocks, to the next; 0 if there is one."""
        if self.weight_scales == "block":
            return self.weight_scale.shape[1]
        return 0 if self.weight_scales == "tensor" else 1

    @property
    def kinds(self) -> str:
        """The part of the tuning key beside the shape: dtypes, and whether scales change along K."""
        names = (str(dtype).removeprefix("torch.") for dtype in (self.x.dtype, self.weight.dtype))
        return " ".join(names) + (" blocks" if self.scaled_by_step else "")


def operands(
    name: str,
    x: Quantized | Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    dtype: torch.dtype,
) -> Operands:
    """Returns the operands of the operation ``name``, whose weight has ``dtype``. Raises ValueError if they do not
    fit."""
    values = x.values if isinstance(x, Quantized) else x
    if weight.dim() != 2 or weight.dtype != dtype or not weight.is_contiguous() or 0 in weight.shape:
        raise ValueError(f"{name}: want a contiguous weight [N, K] of {dtype}, not {describe(weight)}")
    rows, width = weight.shape
    if values.dim() != 2 or values.shape[1] != width or values.device != weight.device:
        raise ValueError(f"{name}: x {describe(values)} does not fit weight {describe(weight)}; want [T, {width}]")
    if values.stride(1) != 1 and width > 1:
        raise ValueError(f"{name}: the last dim of x must be contiguous, its strides are {values.stride()}")
    if bias is not None and (bias.shape != (rows,) or bias.dtype not in FLOATS or not bias.is_contiguous()):
        raise ValueError(f"{name}: want bias [{rows}] of floats, not {describe(bias)}")
    input_scales: InputScales = "none"
    if isinstance(x, Quantized):
        if values.dtype != dtype:
            raise ValueError(f"{name}: x is quantised to {values.dtype}, the weight to {dtype}")
        input_scales = _input_scales(name, x)
    elif values.dtype not in FLOATS:
        raise ValueError(f"{name}: want x Quantized or a tensor of floats, not {describe(values)}")
    if out_dtype is None:
        if isinstance(x, Quantized):
            raise ValueError(f"{name}: out_dtype must be given where x is quantised")
        out_dtype = values.dtype
    if out_dtype not in FLOATS:
        raise ValueError(f"{name}: out_dtype must be float32, bfloat16 or float16, not {out_dtype}")
    return Operands(
        x=values,
        x_scale=x.scales if isinstance(x, Quantized) else None,
        input_scales=input_scales,
        weight=weight,
        weight_scale=weight_scale,
        weight_scales=_weight_scales(name, weight, weight_scale),
        bias=bias,
        out_dtype=out_dtype,
    )


def _input_scales(name: str, x: Quantized) -> InputScales:
    tokens, width = x.values.shape
    scales = x.scales
    groups = -(-width // GROUP)
    if scales.dtype == torch.float32 and scales.is_contiguous():
        if scales.shape == (1,):
            return "tensor"
        if scales.shape == (tokens, 1):
            return "token"
        if scales.shape == (tokens, groups) and x.values.dtype == torch.float8_e4m3fn:
            return "group"
    expected = f"float32 [1] or [{tokens}, 1]"
    if x.values.dtype == torch.float8_e4m3fn:
        expected += f" or, for groups of {GROUP}, [{tokens}, {groups}]"
    raise ValueError(f"{name}: want scales of x {expected}, contiguous, not {describe(scales)}")


def _weight_scales(name: str, weight: Tensor, scale: Tensor) -> WeightGranularity:
    rows, width = weight.shape
    blocks = (-(-rows // BLOCK), -(-width // BLOCK))
    if scale.dtype == torch.float32 and scale.is_contiguous() and scale.device == weight.device:
        if scale.shape == (rows,):
            return "channel"
        if scale.shape == (1,):
            return "tensor"
        if scale.shape == blocks and weight.dtype == torch.float8_e4m3fn:
            return "block"
    expected = f"float32 [1] or [{rows}]"
    if weight.dtype == torch.float8_e4m3fn:
        expected += f" or, for blocks of {BLOCK} x {BLOCK}, {list(blocks)}"
    raise ValueError(f"{name}: want weight_scale {expected} on {weight.device}, contiguous, not {describe(scale)}")
