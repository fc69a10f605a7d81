"""out = softmax(mask(softcap(scale · q kᵀ))) v, with the keys and values of each sequence gathered from its blocks"""

import torch
from torch import Tensor

from .batch import AttentionBatch


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, window: int, softcap: float
) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _, kv_heads, dim, size = k_cache.shape
    group = q.shape[1] // kv_heads
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    for s, length in enumerate(lengths):
        begin, end = starts[s], starts[s + 1]
        count = end - begin
        if count == 0:
            continue
        first = max(0, length - count - window + 1) // size if window > 0 else 0
        blocks = batch.block_tables[s, : -(-length // size)].long()
        blocks[:first] = 0  # no query sees them
        if length < count or len(blocks) * size < length or bool(((blocks < 0) | (blocks >= k_cache.shape[0])).any()):
            raise IndexError(
                f"paged_attention: the lengths or the block table of sequence {s} lead outside the batch or the cache"
            )
        k = k_cache[blocks].permute(1, 2, 0, 3).reshape(kv_heads, 1, dim, -1)[..., :length].float()
        v = v_cache[blocks].permute(1, 0, 2, 3).reshape(kv_heads, 1, -1, dim)[:, :, :length].float()
        queries = q[begin:end].float().reshape(count, kv_heads, group, dim).permute(1, 2, 0, 3)
        scores = queries @ k * scale  # [kv_heads, group, count, length]
        if softcap > 0:
            scores = torch.tanh(scores / softcap) * softcap
        position = torch.arange(length - count, length, device=q.device).unsqueeze(1)
        key = torch.arange(length, device=q.device).unsqueeze(0)
        hidden = key > position
        if window > 0:
            hidden |= key <= position - window
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        out[begin:end] = (weights @ v).permute(2, 0, 1, 3).reshape(count, -1, dim).to(q.dtype)
    return out
