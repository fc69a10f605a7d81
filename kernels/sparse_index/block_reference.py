"""score[h, b] = max over the tokens k of block b, up to the query's own, of q[h] · k."""

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..latent_attention.reference import latents_of
from ..launching.launch import cdiv

_PRODUCTS_BYTES = 64 << 20


def score_blocks(
    q: Tensor, cache: Tensor, batch: AttentionBatch, seen: object, size: int, blocks: int, tokens: slice
) -> Tensor:
    """Returns float32 [tokens, heads, blocks]; -inf where a token sees none of a block."""
    out = torch.full((tokens.stop - tokens.start, q.shape[1], blocks), -torch.inf, device=q.device)
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    for s, length in enumerate(lengths):
        begin, end = max(starts[s], tokens.start), min(starts[s + 1], tokens.stop)
        if begin >= end or length == 0:
            continue
        if length < starts[s + 1] - starts[s]:
            raise IndexError(f"top_blocks: sequence {s} has {length} keys, fewer than queries")
        padded = cdiv(length, size) * size
        keys = latents_of(cache, batch.block_tables[s], length).float()
        keys = torch.nn.functional.pad(keys, (0, 0, 0, padded - length))
        step = max(1, _PRODUCTS_BYTES // (4 * q.shape[1] * padded))
        for first in range(begin, end, step):
            some = slice(first, min(first + step, end))
            products = q[some].float() @ keys.T  # [count, heads, padded]
            own = torch.arange(some.start, some.stop, device=q.device) + length - starts[s + 1]
            unseen = torch.arange(padded, device=q.device) > own[:, None, None]
            best = products.masked_fill_(unseen, -torch.inf).unflatten(2, (-1, size)).amax(3)
            out[some.start - tokens.start : some.stop - tokens.start, :, : best.shape[2]] = best
    return out
