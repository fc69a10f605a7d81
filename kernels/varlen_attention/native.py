"""Keys and values are laid out as a cache of large blocks, and attended to as paged attention does it."""

import torch
from torch import Tensor

from ..attention import AttentionBatch, attend_native
from ..kv_cache import kv_cache_shape, write_kv_

BLOCK = 64
"""Keys that the products take at once."""


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_start: Tensor,
    k_start: Tensor,
    scale: float,
    left: int,
    right: int,
    softcap: float,
) -> Tensor:
    """See :func:`stentor.kernels.varlen_attention`. Raises MemoryError where there is no room to plan the batch."""
    starts = k_start.tolist()
    lengths = k_start.diff()
    blocks = (lengths + (BLOCK - 1)).div(BLOCK, rounding_mode="floor")
    first = blocks.cumsum(0, dtype=torch.int32) - blocks
    total, most = int(blocks.sum()), int(blocks.max()) if len(blocks) else 0
    k_shape, v_shape = kv_cache_shape(total, k.shape[1], k.shape[2], BLOCK)
    k_cache, v_cache = k.new_empty(k_shape), v.new_empty(v_shape)
    owner = torch.arange(len(lengths)).repeat_interleave(lengths.long())
    slots = torch.arange(starts[0], starts[-1]) + (first.long() * BLOCK - k_start[:-1].long())[owner]
    write_kv_(k[starts[0] : starts[-1]], v[starts[0] : starts[-1]], k_cache, v_cache, slots, variant="native")
    batch = AttentionBatch(
        query_start=q_start,
        seq_lens=lengths.contiguous(),
        block_tables=(first.unsqueeze(1) + torch.arange(most, dtype=torch.int32)).contiguous(),
        slots=torch.empty(len(q), dtype=torch.int64),  # nothing is written
        max_query_len=len(q),
        max_seq_len=int(lengths.max()) if len(lengths) else 0,
    )
    return attend_native(q, k_cache, v_cache, batch, scale, left + 1, softcap, after=right, fewer=True)
