"""Rotary position embedding, in place."""

import ctypes

import torch
from torch import Tensor

from ..guards import FLOATS, describe, native_obstacle, need
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
    return settle(variant, native_obstacle(_NATIVE.get(q.dtype), q))


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
    tokens, _, dim = _check_heads(q, "q")
    need(
        _check_heads(k, "k")[0] == tokens and k.shape[2] == dim and k.dtype == q.dtype,
        "rotary_",
        f"q {describe(q)} does not fit k {describe(k)}",
    )
    need(
        cos.dim() == 2
        and cos.shape == sin.shape
        and cos.dtype == sin.dtype == torch.float32
        and cos.is_contiguous()
        and sin.is_contiguous()
        and 2 * cos.shape[1] <= dim,
        "rotary_",
        f"cos {describe(cos)} and sin {describe(sin)} must be contiguous float32 [P, R/2] with R <= {dim}",
    )
    need(
        positions.shape == (tokens,) and positions.dtype == torch.int64 and positions.is_contiguous(),
        "rotary_",
        f"positions {describe(positions)} must be contiguous int64 [{tokens}]",
    )
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
        q.shape[1],
        k.shape[1],
        dim,
        cos.shape[1],
        q.stride(0),
        k.stride(0),
        cos.shape[0],
        threads(),
    )
    if bad >= 0:
        raise IndexError(f"rotary_: position {int(positions[bad])} lies outside the table of {cos.shape[0]}")


def _check_heads(heads: Tensor, name: str) -> tuple[int, int, int]:
    if heads.dim() != 3 or heads.dtype not in FLOATS:
        raise ValueError(f"rotary_: {name} {describe(heads)} must be [T, heads, D] of a float dtype")
    tokens, count, dim = heads.shape
    if heads.stride()[1:] != (dim, 1):
        raise ValueError(f"rotary_: heads and dims of {name} must be contiguous, strides are {heads.stride()}")
    return tokens, count, dim
