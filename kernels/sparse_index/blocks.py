"""Chooses the blocks of tokens that each group of heads attends to, with an index of keys beside the cache, and attends
to them (MiniMax-M3)."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..attention import AttentionBatch, paged_attention
from ..guards import FLOATS, describe, triton_unsupported_reason
from ..kv_cache.layout import BLOCK_MULTIPLE
from ..launching.launch import cdiv
from ..variants import Choice, Variant, select_variant

SCORES_BYTES: Final = 64 << 20
"""The most memory for scores at once; if there are more tokens, they are processed in turns."""


@dataclass(frozen=True)
class BlockChoice:
    """How blocks are chosen for a token: the ``top_k`` blocks of ``size`` tokens with the largest q · k of any of their
    tokens up to its own. The last ``local`` blocks, which include its own, are always chosen."""

    size: int
    top_k: int
    local: int = 1
    """From 1 to ``top_k``."""

    @property
    def most(self) -> int:
        """Tokens up to which all are seen."""
        return self.size * self.top_k


@dataclass(frozen=True)
class VisibleTokens:
    """The sequence of each of T tokens, and how many tokens of it each sees before the choice."""

    rows: Tensor
    """[T] int64"""
    counts: Tensor
    """[T] int64; 0 for padding."""


def choose_blocks_variant(q: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`top_blocks` runs. Raises ValueError if one is asked for that cannot run."""
    return select_variant(variant, triton=triton_unsupported_reason(q, variant))


def seen_by(batch: AttentionBatch) -> VisibleTokens:
    """Returns what each token of a batch sees before blocks are chosen. Nothing waits for the device."""
    tokens = torch.arange(batch.num_tokens, dtype=torch.int32, device=batch.query_start.device)
    ends = batch.query_start[1:]
    rows = torch.searchsorted(ends, tokens, right=True).clamp(max=batch.num_sequences - 1)
    counts = batch.seq_lens.index_select(0, rows) - (ends.index_select(0, rows) - 1 - tokens)
    return VisibleTokens(rows, counts.clamp(min=0).long())


def top_blocks(
    q: Tensor,
    cache: Tensor,
    batch: AttentionBatch,
    seen: VisibleTokens,
    choice: BlockChoice,
    *,
    variant: Choice = "auto",
) -> Tensor:
    """Chooses blocks of tokens for each new token and head of the index. Keys are in the cache already.

    Args:
        q: [T, H, dim], contiguous.
        cache: a key of each token (:func:`stentor.kernels.latent_cache_shape`), of the dtype of ``q``, contiguous; the
            cache's blocks divide those of ``choice``.
        batch: the sequences; T tokens in all.
        seen: :func:`seen_by` of the batch.
        choice: what is chosen.
        variant: forces an implementation.

    Returns:
        [T, H, top_k] int64: numbers of blocks, ascending, and behind them numbers past the last block where a token
        sees fewer. Scores are in float32.

    Raises:
        ValueError: shapes, dtypes, strides or numbers that do not fit.
    """
    fits = cache.dim() == 3 and cache.is_contiguous() and cache.dtype == q.dtype
    if q.dim() != 3 or q.dtype not in FLOATS or not q.is_contiguous() or not fits or q.shape[2] != cache.shape[2]:
        raise ValueError(f"top_blocks: q {describe(q)} does not fit cache {describe(cache)}")
    if len(q) != batch.num_tokens:
        raise ValueError(f"top_blocks: q has {len(q)} tokens, the batch has {batch.num_tokens}")
    if cache.shape[1] % BLOCK_MULTIPLE or choice.size % cache.shape[1]:
        raise ValueError(f"top_blocks: blocks of {choice.size} tokens do not divide into those of {describe(cache)}")
    if not 1 <= choice.local <= choice.top_k:
        raise ValueError(f"top_blocks: {choice.local} blocks are always among the {choice.top_k} chosen")
    if choose_blocks_variant(q, variant) == "triton":
        from .triton_blocks import score_blocks  # late: Triton takes long to import
    else:
        from .block_reference import score_blocks
    blocks = cdiv(batch.max_seq_len, choice.size)
    step = max(1, SCORES_BYTES // (4 * q.shape[1] * blocks))
    found = [
        _best(
            score_blocks(q, cache, batch, seen, choice.size, blocks, slice(first, min(first + step, len(q)))),
            seen.counts[first : first + step],
            choice,
        )
        for first in range(0, len(q), step)
    ]
    return torch.cat(found) if len(found) > 1 else found[0]


def _best(scores: Tensor, counts: Tensor, choice: BlockChoice) -> Tensor:
    """The choice by scores [tokens, heads, blocks], which are -inf where nothing is seen; mutates them."""
    blocks = scores.shape[2]
    last = (counts - 1).div(choice.size, rounding_mode="floor")
    local = last[:, None, None] - torch.arange(choice.local, device=scores.device)
    scores.scatter_(2, local.clamp(min=0).expand(-1, scores.shape[1], -1), torch.inf)
    best = scores.topk(min(choice.top_k, blocks), dim=2)
    chosen = best.indices.masked_fill(best.values == -torch.inf, blocks).sort(dim=2).values
    return torch.nn.functional.pad(chosen, (0, choice.top_k - chosen.shape[2]), value=blocks)


def block_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    seen: VisibleTokens,
    chosen: Tensor,
    choice: BlockChoice,
    *,
    scale: float,
    invariant: bool = False,
    variant: Choice = "auto",
) -> Tensor:
    """:func:`stentor.kernels.paged_attention` to the ``chosen`` blocks, those of a kv head being those of an index
    head.

    A kv head of a token becomes a sequence of one query, whose block table has the chosen blocks alone: all but the
    last, which is the token's own, are seen whole.

    Args:
        q: [T, Hq, D], contiguous.
        k_cache, v_cache, batch, scale, invariant, variant: as there; the caches have no scales.
        seen, chosen, choice: of :func:`top_blocks`, for as many heads as the caches have.

    Returns:
        [T, Hq, D], a new contiguous tensor.

    Raises:
        ValueError: shapes, dtypes, strides or numbers that do not fit.
    """
    tokens, heads, dim = q.shape
    _, kv_heads, _, size = k_cache.shape
    if chosen.shape != (tokens, kv_heads, choice.top_k) or choice.size % size:
        raise ValueError(f"block_attention: chosen {describe(chosen)} does not fit k_cache {describe(k_cache)}")
    per_choice = choice.size // size
    inside = torch.arange(per_choice, device=q.device)
    wanted = (chosen.unsqueeze(3) * per_choice + inside).flatten(1)
    tables = batch.block_tables.index_select(0, seen.rows)
    found = tables.gather(1, wanted.clamp(max=tables.shape[1] - 1)).view(tokens, kv_heads, -1)
    # the caches' heads lie one after another within a block, and so count as blocks of one head
    of_head = torch.arange(kv_heads, dtype=found.dtype, device=q.device)[:, None]
    count = (seen.counts - 1).div(choice.size, rounding_mode="floor").clamp(max=choice.top_k - 1)
    lengths = (count * choice.size + (seen.counts - 1) % choice.size + 1).where(seen.counts > 0, 0)
    rows = tokens * kv_heads
    by_head = AttentionBatch(
        query_start=torch.arange(rows + 1, dtype=torch.int32, device=q.device),
        seq_lens=lengths.int().repeat_interleave(kv_heads),
        block_tables=(found * kv_heads + of_head).view(rows, -1),
        slots=batch.slots.repeat_interleave(kv_heads),
        max_query_len=1,
        max_seq_len=min(batch.max_seq_len, choice.most),
        decode_rows=rows,
    )
    out = paged_attention(
        q.view(rows, heads // kv_heads, dim),
        k_cache.flatten(0, 1).unsqueeze(1),
        v_cache.flatten(0, 1).unsqueeze(1),
        by_head,
        scale=scale,
        invariant=invariant,
        variant=variant,
    )
    return out.view(tokens, heads, dim)
