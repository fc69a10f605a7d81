"""Layer norms."""

import torch
from torch import Tensor

from ..variants import Choice, Variant, settle
from . import reference
from .rows import check_residual, check_rows, row_obstacle


def choose_layer(x: Tensor, variant: Choice = "auto") -> Variant:
    """The variant that both layer norms run on ``x``. Raises ValueError where a named one cannot run."""
    return settle(variant, triton=row_obstacle(x, variant))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, variant: Choice = "auto") -> Tensor:
    """Norms each row over the last dim, in float32, rounded once.

    Args:
        x: [..., H]; rows may be strided, the last dim is contiguous.
        weight, bias: [H], the dtype of ``x``.
        eps: added to the variance.
        variant: forces an implementation.

    Returns:
        A new contiguous tensor of the shape and dtype of ``x``.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    check_rows("layer_norm", x, weight, bias)
    if choose_layer(x, variant) == "reference":
        return reference.layer_norm(x, weight, bias, eps)
    return _run_triton(x, None, weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, variant: Choice = "auto"
) -> Tensor:
    """Adds ``x`` to ``residual`` in place and returns the norm of the sum, as :func:`layer_norm`.

    Args:
        x: [..., H].
        residual: the shape and dtype of ``x``; mutated.
        weight, bias, eps, variant: as for :func:`layer_norm`.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    check_rows("add_layer_norm", x, weight, bias)
    check_residual("add_layer_norm", x, residual)
    if choose_layer(x, variant) == "reference":
        return reference.add_layer_norm(x, residual, weight, bias, eps)
    return _run_triton(x, residual, weight, bias, eps)


def _run_triton(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    from .triton_layer import layer_norm_rows  # late: heavy

    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    layer_norm_rows(x, residual, weight, bias, eps, out)
    return out
