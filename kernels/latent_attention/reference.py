"""out = softmax(mask(scale · q cᵀ)) c[:rank], of each head, over the latents c of its sequence. With sinks the softmax
has one more column, the head's sink, which has no value.

A query has a part that is projected into the space of latents, and a rotated part (DeepSeek-V2, arXiv:2405.04434). Its
product with a token's cache entry equals that of the whole query with the key computed from the entry.
"""

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..attention.reference import attend


def latent_attention(
    q: Tensor,
    cache: Tensor,
    batch: AttentionBatch,
    rank: int,
    scale: float,
    chosen: Tensor | None = None,
    pool: int = 1,
    sinks: Tensor | None = None,
) -> Tensor:
    out = q.new_empty((*q.shape[:2], rank))
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    for s, length in enumerate(lengths):
        begin, end = starts[s], starts[s + 1]
        count = end - begin
        if count == 0:
            continue
        if length == 0:
            out[begin:end] = 0
            continue
        if length < count:
            raise IndexError(f"latent_attention: sequence {s} has {length} latents and {count} queries")
        latents = latents_of(cache, batch.block_tables[s], length).float().unsqueeze(0)  # [1, length, dim]
        position = torch.arange(length - count, length, device=q.device).unsqueeze(1)
        hidden = torch.arange(length, device=q.device).unsqueeze(0) > position
        if chosen is not None:
            hidden |= _left_out(chosen[begin:end].long(), position, length, pool)
        out[begin:end] = attend(q[begin:end], latents, latents, hidden, scale, 0.0, sinks)[..., :rank]
    return out


def _left_out(chosen: Tensor, position: Tensor, length: int, pool: int) -> Tensor:
    """Returns which of ``length`` tokens those at ``position`` [tokens, 1] have not chosen. Raises IndexError if one
    has chosen a token that it does not see."""
    seen = position + 1
    count = torch.minimum(seen, chosen.shape[1] - (pool - 1) + seen % pool)
    real = torch.arange(chosen.shape[1], device=chosen.device) < count
    if bool((real & ((chosen < 0) | (chosen > position))).any()):
        raise IndexError("latent_attention: choices lead outside what a token sees")
    taken = torch.zeros(len(chosen), length + 1, dtype=torch.bool, device=chosen.device)
    return ~taken.scatter_(1, chosen.where(real, length), True)[:, :length]


def latents_of(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """Returns the latents of the first ``length`` tokens of the sequence with this block table, [length, dim].

    Raises IndexError if the table leads outside the cache.
    """
    blocks, size, dim = cache.shape
    used = table[: -(-length // size)].long()
    if len(used) * size < length or bool(((used < 0) | (used >= blocks)).any()):
        raise IndexError("latent_attention: a block table is shorter than its sequence or leads outside the cache")
    return cache[used].view(-1, dim)[:length]
