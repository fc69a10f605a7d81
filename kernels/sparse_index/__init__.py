"""Chooses the tokens, or the entries of several tokens, that each token attends to, with an index of keys beside the
cache: DeepSeek sparse attention (DSA)."""

import ctypes

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..guards import FLOATS, check_float32, describe, native_unsupported_reason, triton_unsupported_reason
from ..kv_cache.layout import BLOCK_MULTIPLE
from ..launching.launch import cdiv
from ..native import by_dtype, pointers, threads
from ..variants import Choice, Variant, select_variant
from . import reference

__all__ = ["choose", "tokens_of_pools", "top_tokens"]

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I, _I, _I, _I)
_NATIVE = by_dtype("stentor_top_tokens", *_ARGUMENTS, restype=_I)


def choose(q: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`top_tokens` runs. Raises ValueError if one is asked for that cannot run."""
    return select_variant(
        variant,
        triton=triton_unsupported_reason(q, variant),
        native=native_unsupported_reason(_NATIVE.get(q.dtype), q),
    )


def top_tokens(
    q: Tensor,
    weights: Tensor,
    cache: Tensor,
    batch: AttentionBatch,
    *,
    top_k: int,
    ratio: int = 1,
    block: int = 0,
    variant: Choice = "auto",
) -> Tensor:
    """Chooses for each new token ``top_k`` of the tokens of its sequence up to its own; or of its entries, each of
    ``ratio`` tokens, that are complete with it.

    They are those with the largest sum over heads of weight · relu(q · k), of equal ones the first. Their keys are in
    the cache already.

    Args:
        q: [T, H, dim], contiguous.
        weights: [T, H] float32, contiguous.
        cache: a key of each token (:func:`stentor.kernels.latent_cache_shape`), of the dtype of ``q``, contiguous.
        batch: the sequences; T tokens in all.
        top_k: how many are chosen; all if a token sees fewer.
        ratio: tokens of an entry, which has a key in the block of its last token.
        block: tokens of a block, which has a place for every ``ratio`` of them, rounded up; 0: the places times
            ``ratio``.
        variant: forces an implementation.

    Returns:
        [T, top_k] int32, a new contiguous tensor: positions of tokens or entries, ascending, followed by -1. Scores are
        in float32. In the native variant a row depends only on its own position, query, weights and keys.

    Raises:
        ValueError: shapes, dtypes, strides or numbers that do not fit.
        IndexError: on the CPU, a block table that leads outside the cache or is shorter than its sequence.
        MemoryError: on the CPU, no room to plan the batch.
    """
    fits = cache.dim() == 3 and cache.is_contiguous() and cache.dtype == q.dtype
    if ratio < 1 or block < 0:
        raise ValueError(f"top_tokens: {ratio} tokens of an entry and {block} of a block must be positive")
    block = block or cache.shape[1] * ratio
    fits = fits and block % BLOCK_MULTIPLE == 0 and cache.shape[1] == cdiv(block, ratio)
    if q.dim() != 3 or q.dtype not in FLOATS or not q.is_contiguous() or not fits or q.shape[2] != cache.shape[2]:
        raise ValueError(f"top_tokens: q {describe(q)} does not fit cache {describe(cache)}")
    check_float32("top_tokens", "weights", weights, q.shape[:2])
    if len(q) != batch.num_tokens:
        raise ValueError(f"top_tokens: q has {len(q)} tokens, the batch has {batch.num_tokens}")
    if top_k < 1:
        raise ValueError(f"top_tokens: top_k is {top_k}, expected at least 1")
    chosen = choose(q, variant)
    if chosen == "reference":
        return reference.top_tokens(q, weights, cache, batch, top_k, ratio, block)
    if chosen == "triton":
        from .triton import top_tokens as run  # late: Triton takes long to import

        return run(q, weights, cache, batch, top_k, ratio, block)
    tokens, heads, dim = q.shape
    blocks, places, _ = cache.shape
    out = torch.empty((tokens, top_k), dtype=torch.int32)
    fault = _NATIVE[q.dtype](
        *pointers(q, weights, cache, out),
        *batch.addresses,
        *(tokens, heads, dim, block, blocks, batch.block_tables.shape[1], top_k, ratio, places),
        threads(),
    )
    batch.check_fault(fault, "top_tokens")
    return out


def tokens_of_pools(chosen: Tensor, positions: Tensor, pool: int) -> Tensor:
    """Returns the tokens of chosen entries of ``pool`` tokens each, and behind them those of an incomplete entry.

    Args:
        chosen: [T, top_k] int32, as of :func:`top_tokens`: the entries that each token chooses, all if there are fewer.
        positions: [T] int64, of the tokens that choose.

    Returns:
        [T, top_k * pool + pool - 1] int32, a new contiguous tensor: positions, ascending, followed by -1. They are as
        many as :func:`stentor.kernels.latent_attention` takes of this width.
    """
    within = torch.arange(pool, device=chosen.device)
    of_entries = (chosen[:, :, None].long() * pool + within).flatten(1)
    of_entries = torch.nn.functional.pad(of_entries, (0, pool - 1), value=-1)
    complete = (positions + 1) // pool
    behind = complete.clamp(max=chosen.shape[1]) * pool
    number = torch.arange(of_entries.shape[1], device=chosen.device) - behind[:, None]  # below 0 within entries
    last = complete[:, None] * pool + number
    last = torch.where(last <= positions[:, None], last, -1)
    return torch.where(number < 0, of_entries, last).int()
