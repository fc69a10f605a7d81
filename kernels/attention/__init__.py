"""Causal attention over a paged KV cache, prefill and decode alike."""

from torch import Tensor

from ..guards import FLOATS, describe, need
from ..kv_cache import check_caches
from ..variants import Choice, Variant, settle
from . import reference
from .batch import AttentionBatch

__all__ = ["AttentionBatch", "choose", "paged_attention"]


def choose(q: Tensor, variant: Choice = "auto") -> Variant:
    """The variant that :func:`paged_attention` runs. Raises ValueError where ``native`` is asked for and cannot run."""
    return settle(variant, "not written")


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
    _, kv_heads, dim, _ = check_caches(k_cache, v_cache, "paged_attention")
    if q.dim() != 3 or q.dtype not in FLOATS or q.dtype != k_cache.dtype or q.shape[2] != dim or q.shape[1] % kv_heads:
        raise ValueError(f"paged_attention: q {describe(q)} does not fit k_cache {describe(k_cache)}")
    need(q.stride()[1:] == (dim, 1), "paged_attention", f"heads and dims of q must be contiguous, strides {q.stride()}")
    need(
        q.shape[0] == batch.num_tokens,
        "paged_attention",
        f"q has {q.shape[0]} tokens, the batch has {batch.num_tokens}",
    )
    need(window >= 0 and softcap >= 0, "paged_attention", f"window {window} and softcap {softcap} must not be negative")
    return reference.paged_attention(q, k_cache, v_cache, batch, scale, window, softcap)
