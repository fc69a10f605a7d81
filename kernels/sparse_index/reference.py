"""out = the positions k with the largest Σ over heads h of w[h] · relu(q[h] · k), among those that each token sees.

The indexer of DeepSeek-V3.2's sparse attention: all heads share one cached key per token. In DeepSeek-V4 a key belongs
to an entry, which is made of some tokens.
"""

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..latent_attention.reference import latents_of
from ..launching.launch import cdiv


def top_tokens(
    q: Tensor, weights: Tensor, cache: Tensor, batch: AttentionBatch, top_k: int, ratio: int, block: int
) -> Tensor:
    out = torch.full((len(q), top_k), -1, dtype=torch.int32, device=q.device)
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    for s, length in enumerate(lengths):
        begin, end = starts[s], starts[s + 1]
        count = end - begin
        if count == 0 or length == 0:
            continue
        if length < count:
            raise IndexError(f"top_tokens: sequence {s} has {length} keys and {count} queries")
        entry = torch.arange(length // ratio, device=q.device)
        last = (entry + 1) * ratio - 1  # its last token
        places = last // block * cache.shape[1] + last % block // ratio
        keys = latents_of(cache, batch.block_tables[s], cdiv(length, block) * cache.shape[1])[places].float()
        products = torch.relu(q[begin:end].float() @ keys.T)  # [count, heads, entries]
        scores = (weights[begin:end].unsqueeze(2) * products).sum(1)
        visible = torch.arange(length - count + 1, length + 1, device=q.device).unsqueeze(1) // ratio
        scores = scores.masked_fill(entry >= visible, -torch.inf)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
        best = best.where(best < visible, length).sort(dim=1).values
        out[begin:end, : best.shape[1]] = best.where(best < length, -1).int()
    return out
