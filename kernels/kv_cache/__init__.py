"""The paged KV cache: its layout, and writing to it.

Keys are stored transposed, ``[blocks, kv_heads, head_dim, block_size]``, so that scores vectorise over
keys; values are stored ``[blocks, kv_heads, block_size, head_dim]``, so that outputs vectorise over
dimensions. A slot is ``block * block_size + offset``.
"""

import ctypes

import torch
from torch import Tensor

from ..guards import FLOATS, describe, native_obstacle
from ..native import NativeFunction, threads
from ..variants import Choice, Variant, settle
from . import reference

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I)
_NATIVE_16 = NativeFunction("stentor_write_kv_16", *_ARGUMENTS, restype=_I)
_NATIVE = {
    torch.float32: NativeFunction("stentor_write_kv_32", *_ARGUMENTS, restype=_I),
    torch.bfloat16: _NATIVE_16,
    torch.float16: _NATIVE_16,
}

BLOCK_MULTIPLE = 16
"""A block holds a multiple of this many tokens: the keys that one vector of scores spans."""


def kv_cache_shape(
    num_blocks: int, num_kv_heads: int, head_dim: int, block_size: int
) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """Shapes of the key and the value cache of one layer.

    Raises:
        ValueError: ``block_size`` is not a positive multiple of 16.
    """
    if block_size <= 0 or block_size % BLOCK_MULTIPLE:
        raise ValueError(
            f"kv_cache_shape: block_size must be a positive multiple of {BLOCK_MULTIPLE}, not {block_size}"
        )
    return (num_blocks, num_kv_heads, head_dim, block_size), (num_blocks, num_kv_heads, block_size, head_dim)


def check_caches(k_cache: Tensor, v_cache: Tensor, operation: str) -> tuple[int, int, int, int]:
    """Returns (blocks, kv heads, head dim, block size). Raises ValueError where the pair is not laid out as above."""
    if k_cache.dim() == 4 and k_cache.dtype == v_cache.dtype and k_cache.is_contiguous() and v_cache.is_contiguous():
        blocks, heads, dim, size = k_cache.shape
        if v_cache.shape == (blocks, heads, size, dim) and size % BLOCK_MULTIPLE == 0:
            return blocks, heads, dim, size
    raise ValueError(
        f"{operation}: caches {describe(k_cache)} and {describe(v_cache)} must be contiguous, of one dtype, "
        "[blocks, heads, dim, size] and [blocks, heads, size, dim] with size a multiple of 16"
    )


def choose(k: Tensor, variant: Choice = "auto") -> Variant:
    """The variant that :func:`write_kv_` runs. Raises ValueError where ``native`` is asked for and cannot run."""
    return settle(variant, native=native_obstacle(_NATIVE.get(k.dtype), k))


def write_kv_(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *, variant: Choice = "auto"
) -> None:
    """Writes the keys and values of T tokens to their slots; mutates both caches.

    Args:
        k, v: [T, Hkv, D] of the caches' dtype; heads and dims contiguous, rows may be strided.
        k_cache, v_cache: as :func:`kv_cache_shape` gives them, contiguous.
        slots: [T] int64, distinct, each in [0, blocks * block_size).
        variant: forces an implementation.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: a slot outside the cache; nothing has been written then.
    """
    blocks, heads, dim, size = check_caches(k_cache, v_cache, "write_kv_")
    if slots.dim() != 1 or slots.dtype != torch.int64 or not slots.is_contiguous():
        raise ValueError(f"write_kv_: slots {describe(slots)} must be contiguous int64 [T]")
    tokens = slots.shape[0]
    for name, rows in (("k", k), ("v", v)):
        if rows.shape != (tokens, heads, dim) or rows.dtype != k_cache.dtype or rows.dtype not in FLOATS:
            raise ValueError(f"write_kv_: {name} {describe(rows)} does not fit {tokens} slots of {describe(k_cache)}")
        _, head_stride, dim_stride = rows.stride()
        if dim_stride != 1 or (head_stride != dim and heads > 1):
            raise ValueError(f"write_kv_: heads and dims of {name} must be contiguous, strides are {rows.stride()}")
    if choose(k, variant) == "reference":
        reference.write_kv_(k, v, k_cache, v_cache, slots)
        return
    function = _NATIVE[k.dtype].bind()
    assert function is not None
    bad = function(
        k.data_ptr(),
        v.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        slots.data_ptr(),
        tokens,
        heads,
        dim,
        size,
        blocks,
        k.stride(0),
        v.stride(0),
        threads(),
    )
    if bad >= 0:
        raise IndexError(f"write_kv_: slot {int(slots[bad])} lies outside the {blocks * size} slots of the cache")
