"""Linear layers with the weights of GGUF files: y = x Wᵀ + b, with W in ggml's types."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..guards import triton_unsupported_reason
from ..linear_w4 import check_linear
from ..variants import Choice, Variant, select_variant
from .weight import FORMATS, GGUFWeight, Kind, dequantize, empty_weight

__all__ = ["FORMATS", "GGUFWeight", "Kind", "choose", "dequantize", "empty_weight", "linear_gguf"]


def choose(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`linear_gguf` runs on ``x``. Raises ValueError if one is asked for that cannot
    run."""
    return select_variant(variant, triton=triton_unsupported_reason(x, variant))


def linear_gguf(x: Tensor, weight: GGUFWeight, bias: Tensor | None = None, *, variant: Choice = "auto") -> Tensor:
    """Multiplies each row of ``x`` by the dequantised weight transposed and adds ``bias``; sums are in float32.

    Up to 16 rows, codes are multiplied as integers and groups scaled in float32, and a row's result does not depend on
    the others. With more rows, weights are dequantised and rounded to the dtype of ``x``. ``x`` keeps its dtype: it is
    not quantised to eight bits, as llama.cpp does.

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
    check_linear("linear_gguf", x, weight.shape, weight.codes, bias)
    if choose(x, variant) == "reference":
        return _reference(x, weight, bias)
    from ..linear_w4.triton import linear_planes  # late: heavy

    return linear_planes(x, weight.planes, bias)


def _reference(x: Tensor, weight: GGUFWeight, bias: Tensor | None) -> Tensor:
    """The plain torch reference: x · dequantize(W)ᵀ + b, in float32 and rounded once."""
    values = dequantize(weight, torch.float32)
    return linear(x.float(), values, None if bias is None else bias.float()).to(x.dtype)
