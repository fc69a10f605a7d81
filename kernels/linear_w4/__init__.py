"""Linear layers with 4-bit weights (GPTQ, AWQ, compressed-tensors): y = x Wᵀ + b."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..guards import FLOATS, describe, triton_unsupported_reason
from ..variants import Choice, Variant, select_variant
from .planes import Planes
from .repack import from_awq, from_compressed_tensors, from_gptq
from .weight import W4Weight, dequantize, empty_weight

__all__ = [
    "Planes",
    "W4Weight",
    "choose",
    "dequantize",
    "empty_weight",
    "from_awq",
    "from_compressed_tensors",
    "from_gptq",
    "linear_w4",
]


def choose(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`linear_w4` runs on ``x``. Raises ValueError if one is asked for that cannot
    run."""
    return select_variant(variant, triton=triton_unsupported_reason(x, variant))


def linear_w4(x: Tensor, weight: W4Weight, bias: Tensor | None = None, *, variant: Choice = "auto") -> Tensor:
    """Multiplies each row of ``x`` by the dequantised weight transposed and adds ``bias``; sums are in float32.

    Up to 16 rows, codes are multiplied as integers and groups scaled in float32, and a row's result does not depend on
    the others. With more rows, weights are dequantised and rounded to the dtype of ``x``.

    Args:
        x: [T, K] float32, bfloat16 or float16; rows may be strided.
        weight: of [N, K].
        bias: [N] or None, the dtype of ``x``, contiguous.
        variant: forces an implementation.

    Returns:
        [T, N], a new contiguous tensor of the dtype of ``x``.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    check_linear("linear_w4", x, weight.shape, weight.codes, bias)
    if choose(x, variant) == "reference":
        return _reference(x, weight, bias)
    from .triton import linear_planes  # late: heavy

    ordered = x if weight.perm is None else x.index_select(1, weight.perm)
    return linear_planes(ordered, weight.planes, bias)


def check_linear(operation: str, x: Tensor, shape: tuple[int, int], codes: Tensor, bias: Tensor | None) -> None:
    """Raises ValueError unless ``x`` and ``bias`` fit a packed weight of ``shape`` (N, K)."""
    rows, columns = shape
    if x.dim() != 2 or x.shape[1] != columns or x.dtype not in FLOATS:
        raise ValueError(f"{operation}: x {describe(x)} does not fit a weight of {shape}; want float [T, {columns}]")
    if x.stride(1) != 1:
        raise ValueError(f"{operation}: the last dim of x must be contiguous, x has strides {x.stride()}")
    if x.device != codes.device:
        raise ValueError(f"{operation}: x is on {x.device}, the weight on {codes.device}")
    if bias is not None and (bias.shape != (rows,) or bias.dtype != x.dtype or not bias.is_contiguous()):
        raise ValueError(f"{operation}: bias {describe(bias)} must be [{rows}] of the dtype of x, contiguous")


def _reference(x: Tensor, weight: W4Weight, bias: Tensor | None) -> Tensor:
    """The plain torch reference: x · dequantize(W)ᵀ + b, in float32 and rounded once."""
    values = dequantize(weight, torch.float32)
    return linear(x.float(), values, None if bias is None else bias.float()).to(x.dtype)
