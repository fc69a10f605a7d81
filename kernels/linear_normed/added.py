"""A product of few rows that is added to the residual stream, with the sums of squares for the norm behind it."""

from collections.abc import Callable

from torch import Tensor

from ..guards import describe
from ..launching.repeated import LaunchCache
from ..linear import few_rows_unsupported_reason, linear
from ..variants import Choice, Variant, select_variant, wanted

_CHOICES: LaunchCache[Variant] = LaunchCache()
_PREPARED: LaunchCache[Callable[..., Tensor]] = LaunchCache()


def choose_added(x: Tensor, weight: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`add_linear_` runs.

    The Triton variant takes 2 to 64 rows. It runs unasked if this GPU's tuning table has block sizes for the product
    alone, as for :func:`stentor.kernels.linear`: the sum adds little to it.

    Raises:
        ValueError: a variant is asked for that cannot run.
    """
    key, chosen = _CHOICES.find((x, weight), variant)
    if chosen is not None:
        return chosen
    reason = "it takes two rows or more" if x.shape[0] < 2 else few_rows_unsupported_reason(x, weight, variant)
    return _CHOICES.keep(key, select_variant(variant, triton=reason))


def add_linear_(
    x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None = None, *, variant: Choice = "auto"
) -> Tensor:
    """Adds x Wᵀ + b, rounded as by :func:`stentor.kernels.linear`, to ``residual`` in place.

    Args:
        x: [T, K], contiguous.
        weight: [N, K], contiguous, the dtype of ``x``.
        residual: [T, N], contiguous, the dtype of ``x``; changed.
        bias: [N] or None, contiguous, the dtype of ``x``.
        variant: forces an implementation.

    Returns:
        Squares for :func:`stentor.kernels.normed_linear`: float32 [parts, T], where each row's squares after the sum,
        added up over some of its columns, are a part. How many parts there are depends on shapes and block sizes.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    given = (x, weight, residual) if bias is None else (x, weight, residual, bias)
    key, prepared = _PREPARED.find(given, bias is None, variant)
    if prepared is not None:
        return prepared(x, weight, bias, residual)
    if x.dim() != 2 or weight.dim() != 2 or residual.shape != (x.shape[0], weight.shape[0]):
        raise ValueError(
            f"add_linear_: x {describe(x)}, weight {describe(weight)} and residual {describe(residual)} do not fit; "
            "want [T, K], [N, K] and [T, N]"
        )
    if any(each.dtype != x.dtype or not each.is_contiguous() for each in given):
        raise ValueError(f"add_linear_: all must be contiguous and of the dtype of x {describe(x)}")
    if weight.shape[1] != x.shape[1] or (bias is not None and bias.shape != weight.shape[:1]):
        raise ValueError(f"add_linear_: weight {describe(weight)} fits neither x {describe(x)} nor the bias")
    if choose_added(x, weight, variant) == "triton":
        from ..linear.triton_skinny import prepare_skinny  # late: heavy

        prepared = prepare_skinny(x, weight, bias, streamed=True)
        return _PREPARED.keep(key, prepared)(x, weight, bias, residual)
    residual.add_(linear(x, weight, bias, variant="reference" if wanted(variant) == "reference" else "auto"))
    return residual.float().square().sum(1)[None]
