"""Multiplication by a weight kept in its checkpoint's codes: four-bit floats, and integers in groups."""

from torch import Tensor

from ..guards import FLOATS, describe, triton_unsupported_reason
from ..variants import Choice, Variant, select_variant
from .weight import CodedMatrices, CodeKind, empty_coded

__all__ = ["CodeKind", "CodedMatrices", "choose", "empty_coded", "linear_coded"]


def choose(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`linear_coded` runs on ``x``. Raises ValueError if one is asked for that cannot
    run."""
    return select_variant(variant, triton=triton_unsupported_reason(x, variant))


def linear_coded(x: Tensor, weight: CodedMatrices, bias: Tensor | None = None, *, variant: Choice = "auto") -> Tensor:
    """Multiplies each row of ``x`` by the dequantised weight transposed and adds ``bias``; sums are in float32.

    Weights are dequantised in float32 and rounded to the dtype of ``x``. Inputs are not rounded.

    Args:
        x: [T, K] float32, bfloat16 or float16; rows may be strided.
        weight: of one matrix, [1, N, K].
        bias: [N] or None, the dtype of ``x``, contiguous.
        variant: forces an implementation.

    Returns:
        [T, N], a new contiguous tensor of the dtype of ``x``.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    count, outputs, inputs = weight.shape
    if count != 1 or x.dim() != 2 or x.shape[1] != inputs or x.dtype not in FLOATS or x.stride(1) != 1:
        raise ValueError(
            f"linear_coded: x {describe(x)} does not fit a weight of {weight.shape}; want one matrix and float "
            f"[T, {inputs}], its last dim contiguous"
        )
    if bias is not None and (bias.shape != (outputs,) or bias.dtype != x.dtype or not bias.is_contiguous()):
        raise ValueError(f"linear_coded: bias {describe(bias)} must be [{outputs}] of the dtype of x, contiguous")
    weight.check()
    if choose(x, variant) == "reference":
        return _reference(x, weight, bias)
    from .triton import run  # late: heavy

    return run(x, weight, bias)


def _reference(x: Tensor, weight: CodedMatrices, bias: Tensor | None) -> Tensor:
    """The plain torch reference: dequantise and multiply."""
    values = weight.values(0, x.dtype)
    made = x.float() @ values.float().T
    return (made if bias is None else made + bias.float()).to(x.dtype)
