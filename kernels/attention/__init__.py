"""Causal attention over a paged KV cache, prefill and decode alike."""

import ctypes

import torch
from torch import Tensor

from ..guards import FLOATS, describe, native_obstacle
from ..kv_cache import check_caches
from ..native import NativeFunction, threads
from ..variants import Choice, Variant, settle
from . import reference
from .batch import AttentionBatch

__all__ = ["AttentionBatch", "choose", "paged_attention"]

_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS = (_P, _P, _P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I, _I, _F, _I, _F, _I)
_NATIVE = {
    torch.float32: NativeFunction("stentor_paged_attention_f32", *_ARGUMENTS, restype=_I),
    torch.bfloat16: NativeFunction("stentor_paged_attention_bf16", *_ARGUMENTS, restype=_I),
}


def choose(q: Tensor, variant: Choice = "auto") -> Variant:
    """The variant that :func:`paged_attention` runs. Raises ValueError where ``native`` is asked for and cannot run."""
    return settle(variant, native=native_obstacle(_NATIVE.get(q.dtype), q))


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    variant: Choice = "auto",
) -> Tensor:
    """Attends each new token to the keys of its sequence up to itself; they are in the cache already.

    Args:
        q: [T, Hq, D]; heads and dims contiguous, rows may be strided. Hq is a multiple of the cache's
            heads; query head h reads kv head ``h // (Hq / Hkv)``.
        k_cache, v_cache: the layer's caches (:func:`stentor.kernels.kv_cache_shape`), the dtype of ``q``.
        batch: the sequences; T tokens in all.
        scale: multiplies q·k.
        window: tokens that a query sees, itself included; 0 means all.
        softcap: c > 0 turns a score s into c·tanh(s/c) before the softmax.
        variant: forces an implementation.

    Returns:
        [T, Hq, D], a new contiguous tensor; sums are in float32. The native variant's row depends only on
        its own position, query and keys, bitwise: not on the batch, the chunking or the thread count.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: a block table that leads outside the cache or is shorter than its sequence.
    """
    blocks, kv_heads, dim, size = check_caches(k_cache, v_cache, "paged_attention")
    if q.dim() != 3 or q.dtype not in FLOATS or q.dtype != k_cache.dtype or q.shape[2] != dim or q.shape[1] % kv_heads:
        raise ValueError(f"paged_attention: q {describe(q)} does not fit k_cache {describe(k_cache)}")
    tokens, heads, _ = q.shape
    q_stride, head_stride, dim_stride = q.stride()
    if dim_stride != 1 or (head_stride != dim and heads > 1):
        raise ValueError(f"paged_attention: heads and dims of q must be contiguous, strides are {q.stride()}")
    if tokens != batch.num_tokens:
        raise ValueError(f"paged_attention: q has {tokens} tokens, the batch has {batch.num_tokens}")
    if window < 0 or softcap < 0:
        raise ValueError(f"paged_attention: window {window} and softcap {softcap} must not be negative")
    if choose(q, variant) == "reference":
        return reference.paged_attention(q, k_cache, v_cache, batch, scale, window, softcap)
    function = _NATIVE[q.dtype].bind()
    assert function is not None
    out = torch.empty((tokens, heads, dim), dtype=q.dtype)
    fault = function(
        q.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        out.data_ptr(),
        batch.query_start.data_ptr(),
        batch.seq_lens.data_ptr(),
        batch.block_tables.data_ptr(),
        batch.num_sequences,
        tokens,
        heads,
        kv_heads,
        dim,
        size,
        blocks,
        batch.block_tables.shape[1],
        q_stride,
        scale,
        window,
        softcap,
        threads(),
    )
    if fault >= 0:
        raise IndexError(
            f"paged_attention: the lengths or the block table of sequence {fault} lead outside the batch or the cache"
        )
    return out
