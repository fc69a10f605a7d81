"""Layer norms."""

import ctypes

import torch
from torch import Tensor

from ..guards import native_unsupported_reason
from ..native import by_dtype, pointers, threads
from ..variants import Choice, Variant, select_variant
from . import reference
from .rows import check_residual, check_rows, dims_unsupported_reason, row_unsupported_reason, rows_of

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _P, _P, _P, _I, _I, _I, _I, _I, ctypes.c_float, _I)
_NATIVE = by_dtype("stentor_layer_norm", *_ARGUMENTS)


def choose_layer(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that both layer norms run on ``x``. Raises ValueError if a named one cannot run."""
    native = native_unsupported_reason(_NATIVE.get(x.dtype), x) or dims_unsupported_reason(x)
    return select_variant(variant, triton=row_unsupported_reason(x, variant), native=native)


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
    return _run(x, None, weight, bias, eps, variant)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, variant: Choice = "auto"
) -> Tensor:
    """Adds ``x`` to ``residual`` in place and returns the norm of the sum, as :func:`layer_norm`.

    Args:
        x: [..., H].
        residual: the shape and dtype of ``x``; changed.
        weight, bias, eps, variant: as for :func:`layer_norm`.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    check_rows("add_layer_norm", x, weight, bias)
    check_residual("add_layer_norm", x, residual)
    return _run(x, residual, weight, bias, eps, variant)


def _run(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, variant: Choice
) -> Tensor:
    match choose_layer(x, variant):
        case "triton":
            from .triton_layer import layer_norm_rows  # late: heavy

            out = torch.empty_like(x, memory_format=torch.contiguous_format)
            layer_norm_rows(x, residual, weight, bias, eps, out)
            return out
        case "native":
            return _run_native(x, residual, weight, bias, eps)
        case "reference" if residual is None:
            return reference.layer_norm(x, weight, bias, eps)
        case "reference":
            return reference.add_layer_norm(x, residual, weight, bias, eps)


def _run_native(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    number, inner, outer_stride, inner_stride = rows_of(x)
    _NATIVE[x.dtype](
        *pointers(x, weight, bias, out, residual),
        *(number // max(inner, 1), inner, outer_stride, inner_stride, x.shape[-1]),
        eps,
        threads(),
    )
    return out
