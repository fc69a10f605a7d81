"""The paged KV cache: its layout, and writing to it."""

import ctypes

import torch
from torch import Tensor

from ..guards import FLOATS, check_contiguous_heads, describe, native_unsupported_reason, triton_unsupported_reason
from ..native import NativeFunction, by_dtype, pointers, threads
from ..variants import Choice, Variant, select_variant
from . import reference
from .layout import (
    FP8,
    INT8,
    check_caches,
    check_scales,
    kv_cache_shape,
    kv_scale_shape,
    make_kv_cache,
    native_cache_unsupported_reason,
    read_scaled,
    triton_cache_unsupported_reason,
)

__all__ = [
    "check_caches",
    "check_scales",
    "check_write",
    "choose",
    "kv_cache_shape",
    "kv_scale_shape",
    "make_kv_cache",
    "native_cache_unsupported_reason",
    "read_scaled",
    "triton_cache_unsupported_reason",
    "write_kv_",
]

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I)
_NATIVE_16 = NativeFunction("stentor_write_kv_16", *_ARGUMENTS, restype=_I)
_NATIVE = {
    torch.float32: NativeFunction("stentor_write_kv_32", *_ARGUMENTS, restype=_I),
    torch.bfloat16: _NATIVE_16,
    torch.float16: _NATIVE_16,
}
_NATIVE_CODED = {
    code: by_dtype(f"stentor_write_kv_{name}", _P, _P, *_ARGUMENTS, restype=_I)
    for code, name in ((INT8, "int8"), (FP8, "float8"))
}


def choose(k: Tensor, k_cache: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`write_kv_` runs. Raises ValueError if one is asked for that cannot run."""
    functions = _NATIVE_CODED.get(k_cache.dtype, _NATIVE)
    native = native_unsupported_reason(functions.get(k.dtype), k) or native_cache_unsupported_reason(k_cache, k.dtype)
    triton = triton_unsupported_reason(k, variant) or triton_cache_unsupported_reason(k_cache)
    return select_variant(variant, triton=triton, native=native)


def write_kv_(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    variant: Choice = "auto",
) -> None:
    """Writes the keys and values of T tokens to their slots; changes both caches, and the scales of int8 ones.

    Args:
        k, v: [T, Hkv, D] of the caches' dtype, or of any float dtype if the caches are float8_e4m3fn or int8; heads and
            dims contiguous, rows may be strided.
        k_cache, v_cache: as :func:`make_kv_cache` makes them, in either layout.
        slots: [T] int64, distinct, each below blocks * block_size; a token whose slot is negative is not written.
        k_scale, v_scale: with float8 caches [Hkv] float32, which are read: clamp(row / scale, ±448) is stored. With
            int8 caches float32 of :func:`kv_scale_shape`, which are set to max|row| / 127 of each token and head:
            round(row / scale) is stored.
        variant: forces an implementation.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: a slot outside the cache; nothing has been written then. The native variant also raises it for
            negative slots. The Triton variant does not check: its slots must fit.
    """
    heads, dim, size, blocks = check_write(k, v, k_cache, v_cache, slots, k_scale, v_scale, "write_kv_")
    chosen = choose(k, k_cache, variant)
    if chosen == "triton":
        from . import triton  # late: heavy

        triton.write_kv_(k, v, k_cache, v_cache, slots, k_scale, v_scale)
        return
    if chosen == "reference":
        reference.write_kv_(k, v, k_cache, v_cache, slots, k_scale, v_scale)
        return
    scales = () if k_scale is None else (k_scale, v_scale)
    bad = _NATIVE_CODED.get(k_cache.dtype, _NATIVE)[k.dtype](
        *pointers(k, v, k_cache, v_cache, *scales, slots),
        *(slots.shape[0], heads, dim, size, blocks, k.stride(0), v.stride(0)),
        threads(),
    )
    if bad >= 0:
        raise IndexError(f"write_kv_: slot {int(slots[bad])} lies outside the {blocks * size} slots of the cache")


def check_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    operation: str,
) -> tuple[int, int, int, int]:
    """Returns (kv heads, head dim, block size, blocks). Raises ValueError as :func:`write_kv_` says."""
    blocks, heads, dim, size = check_caches(k_cache, v_cache, operation)
    check_scales(k_cache, k_scale, v_scale, operation)
    if slots.dim() != 1 or slots.dtype != torch.int64 or not slots.is_contiguous():
        raise ValueError(f"{operation}: slots {describe(slots)} must be contiguous int64 [T]")
    tokens = slots.shape[0]
    expected = k.dtype if k_cache.dtype in (FP8, INT8) else k_cache.dtype
    for name, rows in (("k", k), ("v", v)):
        if rows.shape != (tokens, heads, dim) or rows.dtype != expected or rows.dtype not in FLOATS:
            raise ValueError(f"{operation}: {name} {describe(rows)} does not fit {tokens} slots of {describe(k_cache)}")
        check_contiguous_heads(operation, name, rows)
    return heads, dim, size, blocks
