"""RMS norms whose result is quantised in the same kernel."""

from torch import Tensor

from ..launching.repeated import LaunchCache, Start
from ..quantize import quantize
from ..quantize.fused import check_fused, empty_quantized, fused_unsupported_reason, unfused
from ..quantize.scheme import ActivationScheme, Quantized
from ..variants import Choice, Variant, select_variant
from .rms import add_rms_norm, rms_norm
from .rows import check_residual, check_rows, row_unsupported_reason

_STARTS: LaunchCache[Start] = LaunchCache()


def choose_quantized(x: Tensor, scheme: ActivationScheme, variant: Choice = "auto") -> Variant:
    """Returns the variant that both norms run on ``x``. Raises ValueError if a named one cannot run."""
    return select_variant(
        variant, triton=row_unsupported_reason(x, variant) or fused_unsupported_reason(x, scheme, variant)
    )


def rms_norm_quantized(
    x: Tensor,
    weight: Tensor,
    eps: float,
    scheme: ActivationScheme,
    scale: Tensor | None = None,
    *,
    plus_one: bool = False,
    variant: Choice = "auto",
) -> Quantized:
    """Norms each row as :func:`rms_norm` and quantises it.

    Args:
        x: [T, H]; rows may be strided, the last dim is contiguous.
        weight, eps, plus_one: as for :func:`rms_norm`.
        scheme: dtype and granularity of the result.
        scale: float32 [1] for granularity ``tensor``; the others compute their own.
        variant: forces an implementation. Cases without a fused kernel are normed first and then quantised.

    Returns:
        New values [T, H] and their scales. The variants' values are within one step of each other.

    Raises:
        ValueError: shapes, dtypes, strides or a scale that do not fit.
    """
    return _run("rms_norm_quantized", x, None, weight, eps, plus_one, scheme, scale, variant)


def add_rms_norm_quantized(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    scheme: ActivationScheme,
    scale: Tensor | None = None,
    *,
    plus_one: bool = False,
    variant: Choice = "auto",
) -> Quantized:
    """Adds ``x`` to ``residual`` in place and returns the norm of the sum, as :func:`rms_norm_quantized`.

    Args:
        x: [T, H].
        residual: the shape and dtype of ``x``; changed.
        weight, eps, scheme, scale, plus_one, variant: as for :func:`rms_norm_quantized`.

    Raises:
        ValueError: shapes, dtypes, strides or a scale that do not fit.
    """
    return _run("add_rms_norm_quantized", x, residual, weight, eps, plus_one, scheme, scale, variant)


def _run(
    operation: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    plus_one: bool,
    scheme: ActivationScheme,
    scale: Tensor | None,
    variant: Choice,
) -> Quantized:
    given = (x, weight, *[each for each in (residual, scale) if each is not None])
    numbers = (residual is None, scale is None, eps, plus_one, scheme, variant)
    key, start = _STARTS.find(given, *numbers)
    if start is not None:
        out = empty_quantized(x.shape[0], x.shape[1], scheme, scale, x)
        start(x, residual, weight, *out)
        return out
    check_fused(operation, x, scheme, scale)
    check_rows(operation, x, weight)
    if residual is not None:
        check_residual(operation, x, residual)
    if choose_quantized(x, scheme, variant) == "reference":
        own = unfused(variant)
        if residual is None:
            normed = rms_norm(x, weight, eps, plus_one=plus_one, variant=own)
        else:
            normed = add_rms_norm(x, residual, weight, eps, plus_one=plus_one, variant=own)
        return quantize(normed, scheme, scale, variant=own)
    from .triton_rms import prepare_rms_norm  # late: heavy

    out = empty_quantized(x.shape[0], x.shape[1], scheme, scale, x)
    start = prepare_rms_norm(x, residual, weight, eps, plus_one, out.values, scheme, out.scales)
    _STARTS.keep(key, start)(x, residual, weight, *out)
    return out
