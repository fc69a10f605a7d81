"""Rotary position embedding, in place."""

import ctypes

import torch
from torch import Tensor

from ..guards import FLOATS, describe, native_obstacle
from ..native import NativeFunction, threads
from ..variants import Choice, Variant, settle
from . import reference

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I, _I)
_NATIVE = {
    torch.float32: NativeFunction("stentor_rotary_f32", *_ARGUMENTS, restype=_I),
    torch.bfloat16: NativeFunction("stentor_rotary_bf16", *_ARGUMENTS, restype=_I),
}


def choose(q: Tensor, variant: Choice = "auto") -> Variant:
    """The variant that :func:`rotary_` runs. Raises ValueError where ``native`` is asked for and cannot run."""
    return settle(variant, native=native_obstacle(_NATIVE.get(q.dtype), q))


def rotary_(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, variant: Choice = "auto") -> None:
    """Turns the first R dimensions of every head of ``q`` and ``k`` in place; the rest pass through.

    Dimension i pairs with i + R/2 (the half-split of Llama and NeoX). Computed in float32, rounded once.

    Args:
        q: [T, Hq, D]; may be a slice of a fused projection: heads and dims are contiguous, rows may be strided.
        k: [T, Hkv, D], the dtype of ``q``.
        cos, sin: [P, R/2] float32, contiguous; row p holds position p.
        positions: [T] int64, each in [0, P).
        variant: forces an implementation.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: a position outside the table.
    """
    tokens, q_heads, dim, q_stride = _check_heads(q, "q")
    k_tokens, k_heads, k_dim, k_stride = _check_heads(k, "k")
    if (k_tokens, k_dim) != (tokens, dim) or k.dtype != q.dtype:
        raise ValueError(f"rotary_: q {describe(q)} does not fit k {describe(k)}")
    _check_table(cos, sin, dim)
    if positions.shape != (tokens,) or positions.dtype != torch.int64 or not positions.is_contiguous():
        raise ValueError(f"rotary_: positions {describe(positions)} must be contiguous int64 [{tokens}]")
    if choose(q, variant) == "reference":
        reference.rotary_(q, k, cos, sin, positions)
        return
    function = _NATIVE[q.dtype].bind()
    assert function is not None
    bad = function(
        q.data_ptr(),
        k.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        positions.data_ptr(),
        tokens,
        q_heads,
        k_heads,
        dim,
        cos.shape[1],
        q_stride,
        k_stride,
        cos.shape[0],
        threads(),
    )
    if bad >= 0:
        raise IndexError(f"rotary_: position {int(positions[bad])} lies outside the table of {cos.shape[0]}")


def _check_heads(heads: Tensor, name: str) -> tuple[int, int, int, int]:
    if heads.dim() != 3 or heads.dtype not in FLOATS:
        raise ValueError(f"rotary_: {name} {describe(heads)} must be [T, heads, D] of a float dtype")
    tokens, count, dim = heads.shape
    row_stride, head_stride, dim_stride = heads.stride()
    if dim_stride != 1 or (head_stride != dim and count > 1):
        raise ValueError(f"rotary_: heads and dims of {name} must be contiguous, strides are {heads.stride()}")
    return tokens, count, dim, row_stride


def _check_table(cos: Tensor, sin: Tensor, dim: int) -> None:
    fits = cos.dim() == 2 and cos.shape == sin.shape and 2 * cos.shape[1] <= dim
    fits = fits and cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous() and sin.is_contiguous()
    if not fits:
        raise ValueError(
            f"rotary_: cos {describe(cos)} and sin {describe(sin)} must be contiguous float32 [P, R/2] with R <= {dim}"
        )
