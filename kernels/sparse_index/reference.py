"""out = the positions k with the largest Σ over heads h of w[h] · relu(q[h] · k), among those that each token sees.

The indexer of DeepSeek-V3.2's sparse attention: all heads share one cached key per token.
"""

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..latent_attention.reference import latents_of


def top_tokens(q: Tensor, weights: Tensor, cache: Tensor, batch: AttentionBatch, top_k: int) -> Tensor:
    out = torch.full((len(q), top_k), -1, dtype=torch.int32, device=q.device)
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    for s, length in enumerate(lengths):
        begin, end = starts[s], starts[s + 1]
        count = end - begin
        if count == 0 or length == 0:
            continue
        if length < count:
            raise IndexError(f"top_tokens: sequence {s} has {length} keys and {count} queries")
        keys = latents_of(cache, batch.block_tables[s], length).float()
        products = torch.relu(q[begin:end].float() @ keys.T)  # [count, heads, length]
        scores = (weights[begin:end].unsqueeze(2) * products).sum(1)
        position = torch.arange(length - count, length, device=q.device).unsqueeze(1)
        scores = scores.masked_fill(torch.arange(length, device=q.device).unsqueeze(0) > position, -torch.inf)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
        best = best.where(best <= position, length).sort(dim=1).values
        out[begin:end, : best.shape[1]] = best.where(best < length, -1).int()
    return out
