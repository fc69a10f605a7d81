"""Root mean square norms."""

import ctypes

import torch
from torch import Tensor

from ..guards import FLOATS, describe, native_obstacle
from ..native import NativeFunction, threads
from ..variants import Choice, Variant, settle
from . import reference

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _P, _P, _I, _I, _I, _I, _I, ctypes.c_float, ctypes.c_int32, _I)
_NATIVE = {
    torch.float32: NativeFunction("stentor_rms_norm_f32", *_ARGUMENTS),
    torch.bfloat16: NativeFunction("stentor_rms_norm_bf16", *_ARGUMENTS),
}


def choose(x: Tensor, variant: Choice = "auto") -> Variant:
    """The variant that both norms run on ``x``. Raises ValueError where ``native`` is asked for and cannot run."""
    obstacle = native_obstacle(_NATIVE.get(x.dtype), x)
    if obstacle is None and not 1 <= x.dim() <= 3:
        obstacle = f"it takes one to three dims, not {x.dim()}"
    return settle(variant, native=obstacle)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False, variant: Choice = "auto") -> Tensor:
    """Norms each row over the last dim, in float32.

    Args:
        x: [..., H]; rows may be strided (a slice of a fused projection), the last dim is contiguous.
        weight: [H], the dtype of ``x``.
        eps: added to the mean of squares.
        plus_one: multiply by (1 + weight) in float32 and round once (Gemma); otherwise round to the
            dtype of ``x`` and then multiply by the weight (Llama).
        variant: forces an implementation.

    Returns:
        A new contiguous tensor of the shape and dtype of ``x``. A row depends on nothing but itself.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    _check(x, weight)
    if choose(x, variant) == "reference":
        return reference.rms_norm(x, weight, eps, plus_one)
    return _run(x, None, weight, eps, plus_one)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False, variant: Choice = "auto"
) -> Tensor:
    """Adds ``x`` to ``residual`` in place and returns the norm of the sum, as :func:`rms_norm`.

    Args:
        x: [..., H].
        residual: the shape and dtype of ``x``; mutated.
        weight, eps, plus_one, variant: as for :func:`rms_norm`.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    _check(x, weight)
    if x.shape != residual.shape or x.dtype != residual.dtype:
        raise ValueError(f"add_rms_norm: x {describe(x)} does not fit residual {describe(residual)}")
    if not residual.is_contiguous():
        raise ValueError(f"add_rms_norm: residual must be contiguous, its strides are {residual.stride()}")
    if choose(x, variant) == "reference":
        return reference.add_rms_norm(x, residual, weight, eps, plus_one)
    return _run(x, residual, weight, eps, plus_one)


def _run(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    function = _NATIVE[x.dtype].bind()
    assert function is not None
    shape, stride = x.shape, x.stride()
    width = shape[-1]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if len(shape) == 3:
        outer, inner, outer_stride, inner_stride = shape[0], shape[1], stride[0], stride[1]
    elif len(shape) == 2:
        outer, inner, outer_stride, inner_stride = shape[0], 1, stride[0], 0
    else:
        outer, inner, outer_stride, inner_stride = 1, 1, 0, 0
    function(
        x.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        None if residual is None else residual.data_ptr(),
        outer,
        inner,
        outer_stride,
        inner_stride,
        width,
        eps,
        plus_one,
        threads(),
    )
    return out


def _check(x: Tensor, weight: Tensor) -> None:
    if weight.dim() != 1 or x.shape[-1] != weight.shape[0] or x.dtype != weight.dtype or x.dtype not in FLOATS:
        raise ValueError(f"rms_norm: x {describe(x)} does not fit weight {describe(weight)}; want [..., H] and [H]")
    if (x.stride(-1) != 1 and x.shape[-1] > 1) or not weight.is_contiguous():
        raise ValueError(f"rms_norm: the last dim of x and weight must be contiguous, x has strides {x.stride()}")
