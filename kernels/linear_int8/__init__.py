"""Multiplication by a weight in int8."""

import torch
from torch import Tensor

from ..guards import triton_unsupported_reason
from ..linear_fp8 import multiply
from ..linear_fp8.selection import Selection, select
from ..quantize import Quantized
from ..quantize.operands import operands
from ..variants import Choice, Variant
from . import reference

__all__ = ["choose", "linear_int8", "selection_for"]


def selection_for(
    x: Quantized | Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    variant: Choice = "auto",
) -> Selection:
    """Returns the implementation that :func:`linear_int8` runs on these arguments, and why those before it were passed
    over."""
    given = operands("linear_int8", x, weight, weight_scale, bias, out_dtype, torch.int8)
    return select(given, variant, triton_unsupported_reason(given.x, variant))


def choose(x: Quantized | Tensor, weight: Tensor, weight_scale: Tensor, variant: Choice = "auto") -> Variant:
    """Returns ``triton`` or ``reference``. Raises ValueError if ``variant`` cannot run."""
    selected = selection_for(x, weight, weight_scale, out_dtype=torch.bfloat16, variant=variant)
    return "reference" if selected.implementation == "reference" else "triton"


def linear_int8(
    x: Quantized | Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    variant: Choice = "auto",
) -> Tensor:
    """Multiplies by an int8 weight; if ``x`` is quantised the sum is exact, in int32.

    Args:
        x: activations [T, K]: quantised to int8 by tensor or token, or plain float32, bfloat16 or float16 (the weight
            is then widened, exactly, to their dtype, and the sum is in float32). Rows of plain ones may be strided.
        weight: [N, K] int8, contiguous; may contain -128.
        weight_scale: float32 [1] or [N].
        bias: [N] floats, added in float32 before the one rounding.
        out_dtype: float32, bfloat16 or float16; that of ``x`` if it is not quantised.
        variant: ``triton`` forces Triton, ``reference`` plain torch.

    Returns:
        A new contiguous tensor [T, N].

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    return multiply("linear_int8", torch.int8, reference.linear_int8, x, weight, weight_scale, bias, out_dtype, variant)
