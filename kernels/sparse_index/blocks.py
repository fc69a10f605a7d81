"""Chooses the blocks of tokens that each group of heads attends to, with an index of keys beside the cache, and attends
to them (MiniMax-M3, Step 5)."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..attention import AttentionBatch, paged_attention
from ..guards import FLOATS, describe, triton_unsupported_reason
from ..kv_cache.layout import BLOCK_MULTIPLE
from ..launching.launch import cdiv
from ..variants import Choice, Variant, select_variant
from . import top_tokens

SCORES_BYTES: Final = 64 << 20
"""The most memory for scores at once; if there are more tokens, they are processed in turns."""
_COPIED_BYTES: Final = 64 << 20
"""Of keys and values that are copied at once."""


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


def top_regions(
    q: Tensor,
    weights: Tensor,
    cache: Tensor,
    batch: AttentionBatch,
    seen: VisibleTokens,
    choice: BlockChoice,
    *,
    groups: int,
    block: int,
    variant: Choice = "auto",
) -> Tensor:
    """Chooses regions of tokens for each new token and group of heads: its own, and of those before it the ones with
    the largest sum over the group's heads of weight · relu(q · k).

    Args:
        q: [T, groups · H, dim], contiguous.
        weights: [T, groups · H] float32, contiguous.
        cache: a key of each region that is complete, of ``choice.size`` tokens, as :func:`stentor.kernels.top_tokens`
            takes those of entries in blocks of ``block`` tokens.
        batch, seen, variant: as of :func:`top_blocks`.
        choice: what is chosen; one region is local.

    Returns:
        [T, groups, top_k] int64: as of :func:`top_blocks`.

    Raises:
        ValueError: shapes, dtypes, strides or numbers that do not fit.
    """
    tokens, heads, dim = q.shape
    if choice.local != 1 or choice.top_k < 2 or heads % groups:
        raise ValueError(f"top_regions: {choice} with {heads} heads in {groups} groups is not known")
    own = (seen.counts - 1).clamp(min=0).div(choice.size, rounding_mode="floor")
    tables = batch.block_tables.index_select(0, seen.rows)
    # a group of a token becomes a sequence that ends where the token's own region begins
    before = _queries_alone((own * choice.size).clamp(min=1), tables.repeat_interleave(groups, 0), batch, groups)
    best = top_tokens(
        q.view(tokens * groups, -1, dim),
        weights.view(tokens * groups, -1),
        cache,
        before,
        top_k=choice.top_k - 1,
        ratio=choice.size,
        block=block,
        variant=variant,
    )
    found = best.view(tokens, groups, -1).long()
    found = found.masked_fill(found < 0, cdiv(batch.max_seq_len, choice.size))
    return torch.cat([found, own[:, None, None].expand(-1, groups, 1)], dim=2).sort(dim=2).values


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
    last, which is the token's own, are seen whole. Blocks that are parts of the cache's are copied, for some tokens at
    a time.

    Args:
        q: [T, Hq, D], contiguous.
        k_cache, v_cache, batch, scale, invariant, variant: as there; the caches have no scales.
        seen, chosen, choice: of :func:`top_blocks` or :func:`top_regions`, for as many heads as the caches have.

    Returns:
        [T, Hq, D], a new contiguous tensor.

    Raises:
        ValueError: shapes, dtypes, strides or numbers that do not fit.
    """
    tokens, heads, dim = q.shape
    _, kv_heads, _, size = k_cache.shape
    if chosen.shape != (tokens, kv_heads, choice.top_k) or (choice.size % size and size % choice.size):
        raise ValueError(f"block_attention: chosen {describe(chosen)} does not fit k_cache {describe(k_cache)}")
    tables = batch.block_tables.index_select(0, seen.rows)
    count = (seen.counts - 1).div(choice.size, rounding_mode="floor").clamp(max=choice.top_k - 1)
    lengths = (count * choice.size + (seen.counts - 1) % choice.size + 1).where(seen.counts > 0, 0)
    # the caches' heads lie one after another within a block, and so count as blocks of one head
    of_head = torch.arange(kv_heads, dtype=tables.dtype, device=q.device)[:, None]

    def placed(wanted: Tensor) -> Tensor:
        """The places of numbers of the cache's blocks within their sequences, [tokens, kv heads, n] → the same."""
        at = wanted.flatten(1).clamp(max=tables.shape[1] - 1)
        return tables.gather(1, at).view(wanted.shape) * kv_heads + of_head

    def attend(rows: slice, k: Tensor, v: Tensor, blocks: Tensor) -> Tensor:
        longest = min(batch.max_seq_len, choice.most)
        alone = _queries_alone(lengths[rows], blocks, batch, kv_heads, longest)
        grouped = q[rows].reshape(-1, heads // kv_heads, dim)
        return paged_attention(grouped, k, v, alone, scale=scale, invariant=invariant, variant=variant)

    keys, values = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
    if choice.size % size == 0:
        inside = torch.arange(choice.size // size, device=q.device)
        blocks = placed((chosen.unsqueeze(3) * len(inside) + inside).flatten(2))
        every = slice(0, tokens)
        return attend(every, keys.unsqueeze(1), values.unsqueeze(1), blocks.flatten(0, 1)).view(tokens, heads, dim)
    parts, joined = size // choice.size, BLOCK_MULTIPLE // choice.size
    most = cdiv(min(choice.top_k, cdiv(batch.max_seq_len, choice.size)), joined) * joined
    chosen = torch.nn.functional.pad(chosen, (0, max(0, most - choice.top_k)))[:, :, :most]
    places, within = placed(chosen.div(parts, rounding_mode="floor")).long(), chosen % parts
    out = torch.empty_like(q)
    step = max(1, _COPIED_BYTES // (2 * kv_heads * most * choice.size * dim * q.element_size()))
    for first in range(0, tokens, step):
        rows = slice(first, min(first + step, tokens))
        at = places[rows].flatten(), within[rows].flatten()
        k = keys.unflatten(2, (parts, choice.size))[at[0], :, at[1]].view(-1, joined, dim, choice.size)
        v = values.unflatten(1, (parts, choice.size))[at].view(-1, 1, BLOCK_MULTIPLE, dim)
        k = k.transpose(1, 2).reshape(-1, 1, dim, BLOCK_MULTIPLE)
        number = torch.arange(len(v), dtype=torch.int32, device=q.device)
        out[rows] = attend(rows, k, v, number.view(-1, most // joined)).view(-1, heads, dim)
    return out


def _queries_alone(
    lengths: Tensor, tables: Tensor, batch: AttentionBatch, each: int, longest: int | None = None
) -> AttentionBatch:
    """A batch of sequences of one query, ``each`` of them for a token: ``lengths`` [tokens], ``tables``
    [tokens · each, blocks]."""
    rows = len(tables)
    return AttentionBatch(
        query_start=torch.arange(rows + 1, dtype=torch.int32, device=tables.device),
        seq_lens=lengths.int().repeat_interleave(each),
        block_tables=tables.contiguous(),
        slots=batch.slots.new_zeros(rows),
        max_query_len=1,
        max_seq_len=batch.max_seq_len if longest is None else longest,
        decode_rows=rows,
    )
