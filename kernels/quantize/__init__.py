"""Quantisation of activations at run time and of weights while loading."""

from torch import Tensor

from ..guards import FLOATS, describe, triton_unsupported_reason
from ..launching.repeated import LaunchCache, Start
from ..variants import Choice, Variant, select_variant
from . import reference
from .fused import check_fused, empty_quantized
from .scheme import ActivationScheme, Quantized
from .weights import quantize_weight_fp8, quantize_weight_int8

__all__ = [
    "ActivationScheme",
    "Quantized",
    "choose",
    "quantize",
    "quantize_weight_fp8",
    "quantize_weight_int8",
]

_STARTS: LaunchCache[Start] = LaunchCache()


def choose(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that runs on ``x``. Raises ValueError if one is asked for by name and cannot run."""
    return select_variant(variant, triton=triton_unsupported_reason(x, variant))


def quantize(
    x: Tensor, scheme: ActivationScheme, scale: Tensor | None = None, *, variant: Choice = "auto"
) -> Quantized:
    """Quantises activations symmetrically.

    The scale of a row or group is its greatest magnitude over the greatest value of ``scheme.dtype`` (448 or 127), at
    least 1e-12. A value is ``x`` times the scale's reciprocal in float32, clamped to that greatest value and rounded
    half to even. A NaN makes its row's or group's scale NaN.

    Args:
        x: [T, K] float32, bfloat16 or float16; rows may be strided, the last dim is contiguous.
        scheme: the dtype, and which values share a scale. The last group of a row may be short.
        scale: float32 [1], required for granularity ``tensor`` and None for the others.
        variant: forces an implementation.

    Returns:
        New contiguous values [T, K] and float32 scales: [T, 1] for ``token``, [T, ceil(K / group)] for ``group``, and
        ``scale`` itself for ``tensor``.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit, or a scale missing or unwanted.
    """
    given = (x,) if scale is None else (x, scale)
    key, start = _STARTS.find(given, scheme, variant)
    if start is not None:
        out = empty_quantized(x.shape[0], x.shape[1], scheme, scale, x)
        start(x, *out)
        return out
    check_fused("quantize", x, scheme, scale)
    if x.dtype not in FLOATS:
        raise ValueError(f"quantize: want x [T, K] of floats, not {describe(x)}")
    if x.stride(1) != 1 and x.shape[1] > 1:
        raise ValueError(f"quantize: the last dim of x must be contiguous, its strides are {x.stride()}")
    if choose(x, variant) == "reference":
        return reference.quantize(x, scheme, scale)
    from .triton import prepare_quantize  # late: importing Triton takes half a second

    out = empty_quantized(x.shape[0], x.shape[1], scheme, scale, x)
    _STARTS.keep(key, prepare_quantize(x, out, scheme))(x, *out)
    return out
