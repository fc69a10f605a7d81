"""RMS norms."""

import ctypes

import torch
from torch import Tensor

from ..guards import native_unsupported_reason
from ..launching.repeated import LaunchCache, Start
from ..native import by_dtype, pointers, threads
from ..variants import Choice, Variant, select_variant
from . import reference
from .rows import check_residual, check_rows, dims_unsupported_reason, row_unsupported_reason, rows_of

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _P, _P, _I, _I, _I, _I, _I, ctypes.c_float, ctypes.c_int32, _I)
_NATIVE = by_dtype("stentor_rms_norm", *_ARGUMENTS)
_STARTS: LaunchCache[Start] = LaunchCache()


def choose(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that both norms run on ``x``. Raises ValueError if one is asked for by name and cannot
    run."""
    native = native_unsupported_reason(_NATIVE.get(x.dtype), x) or dims_unsupported_reason(x)
    return select_variant(variant, triton=row_unsupported_reason(x, variant), native=native)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False, variant: Choice = "auto") -> Tensor:
    """Norms each row over the last dim, in float32.

    Args:
        x: [..., H]; rows may be strided (a slice of a fused projection), the last dim is contiguous.
        weight: [H], the dtype of ``x``.
        eps: added to the mean of squares.
        plus_one: multiply by (1 + weight) in float32 and round once (Gemma); otherwise round to the dtype of ``x`` and
            then multiply by the weight (Llama).
        variant: forces an implementation.

    Returns:
        A new contiguous tensor of the shape and dtype of ``x``. A row does not depend on the others.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    return _run("rms_norm", x, None, weight, eps, plus_one, variant)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False, variant: Choice = "auto"
) -> Tensor:
    """Adds ``x`` to ``residual`` in place and returns the norm of the sum, as :func:`rms_norm`.

    Args:
        x: [..., H].
        residual: the shape and dtype of ``x``; changed.
        weight, eps, plus_one, variant: as for :func:`rms_norm`.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    return _run("add_rms_norm", x, residual, weight, eps, plus_one, variant)


def _run(
    operation: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    plus_one: bool,
    variant: Choice,
) -> Tensor:
    given = (x, weight) if residual is None else (x, weight, residual)
    key, start = _STARTS.find(given, eps, plus_one, variant)
    if start is not None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        start(x, residual, weight, out, None)
        return out
    check_rows(operation, x, weight)
    if residual is not None:
        check_residual(operation, x, residual)
    match choose(x, variant):
        case "triton":
            from .triton_rms import prepare_rms_norm  # late: heavy

            out = torch.empty_like(x, memory_format=torch.contiguous_format)
            start = prepare_rms_norm(x, residual, weight, eps, plus_one, out)
            _STARTS.keep(key, start)(x, residual, weight, out, None)
            return out
        case "native":
            return _run_native(x, residual, weight, eps, plus_one)
        case "reference" if residual is None:
            return reference.rms_norm(x, weight, eps, plus_one)
        case "reference":
            return reference.add_rms_norm(x, residual, weight, eps, plus_one)


def _run_native(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    number, inner, outer_stride, inner_stride = rows_of(x)
    _NATIVE[x.dtype](
        *pointers(x, weight, out, residual),
        *(number // max(inner, 1), inner, outer_stride, inner_stride, x.shape[-1]),
        eps,
        plus_one,
        threads(),
    )
    return out
