"""Dense linear layers: y = x Wᵀ + b."""

from torch import Tensor

from ..guards import describe, need
from ..variants import Choice, Variant, settle
from . import reference


def choose(x: Tensor, weight: Tensor, *, invariant: bool = False, variant: Choice = "auto") -> Variant:
    """The variant that :func:`linear` runs on these arguments. Raises ValueError as it does."""
    return settle(variant, "not written")


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, invariant: bool = False, variant: Choice = "auto"
) -> Tensor:
    """Multiplies each row of ``x`` by ``weight`` transposed and adds ``bias``.

    Args:
        x: [T, K], any float dtype.
        weight: [N, K], the dtype of ``x``.
        bias: [N] or None, the dtype of ``x``.
        invariant: bitwise the same row whatever T, the row's place in the batch or the thread count;
            float32 only.
        variant: forces an implementation.

    Returns:
        [T, N], a new tensor.

    Raises:
        ValueError: shapes or dtypes that do not agree.
    """
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
        raise ValueError(f"linear: x {describe(x)} does not fit weight {describe(weight)}; want [T, K] and [N, K]")
    if bias is not None:
        need(bias.shape == weight.shape[:1], "linear", f"bias {describe(bias)} does not fit weight {describe(weight)}")
    if invariant:
        return reference.linear_invariant(x, weight, bias)
    return reference.linear(x, weight, bias)
