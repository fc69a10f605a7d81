"""Varlen attention on the CPU: lays out keys and values as a cache of large blocks and runs paged attention on it."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..attention import AttentionBatch, attend_native
from ..attention.arguments import AttentionArgs
from ..kv_cache import kv_cache_shape, write_kv_
from ..native.processor import attends_in_pairs
from .arguments import VarlenArgs

BLOCK = 64
"""Keys that the products take at once."""
_PAIRED_DIMS = 32
"""Products of pairs need head dims in multiples of this; others are padded with zeros."""


@dataclass(frozen=True)
class KeyLayout:
    """The layout of sequences' keys in a cache of blocks; the same for every layer."""

    begin: int
    end: int
    """Keys [begin, end) belong to sequences."""
    lengths: Tensor
    """int32 [S]"""
    blocks: int
    tables: Tensor
    """int32 [S, most blocks of one sequence]"""
    slots: Tensor
    """int64 [end - begin]"""
    longest: int


def lay_out_keys(k_start: Tensor) -> KeyLayout | None:
    """Returns the layout for :func:`stentor.kernels.varlen_attention`, which takes the same ``k_start`` int32 [S + 1].

    None if ``k_start`` is not on the CPU: no layout is needed then.
    """
    if k_start.device.type != "cpu":
        return None
    starts = k_start.tolist()
    lengths = k_start.diff()
    blocks = (lengths + (BLOCK - 1)).div(BLOCK, rounding_mode="floor")
    first = blocks.cumsum(0, dtype=torch.int32) - blocks
    some = len(lengths) > 0
    most = int(blocks.max()) if some else 0
    owner = torch.arange(len(lengths)).repeat_interleave(lengths.long())
    slots = torch.arange(starts[0], starts[-1]) + (first.long() * BLOCK - k_start[:-1].long())[owner]
    tables = (first.unsqueeze(1) + torch.arange(most, dtype=torch.int32)).contiguous()
    longest = int(lengths.max()) if some else 0
    return KeyLayout(starts[0], starts[-1], lengths.contiguous(), int(blocks.sum()), tables, slots, longest)


def varlen_attention(args: VarlenArgs, layout: KeyLayout) -> Tensor:
    """Computes :func:`stentor.kernels.varlen_attention`. Raises MemoryError if there is no room to plan the batch."""
    q, k, v = args.q, args.k, args.v
    dim = q.shape[2]
    if dim % _PAIRED_DIMS and q.dtype == torch.bfloat16 and attends_in_pairs():
        q, k, v = (pad(each, (0, -dim % _PAIRED_DIMS)) for each in (q, k, v))
    k_shape, v_shape = kv_cache_shape(layout.blocks, k.shape[1], k.shape[2], BLOCK)
    k_cache, v_cache = k.new_empty(k_shape), v.new_empty(v_shape)
    own = slice(layout.begin, layout.end)
    write_kv_(k[own], v[own], k_cache, v_cache, layout.slots, variant="native")
    batch = AttentionBatch(
        query_start=args.q_start,
        seq_lens=layout.lengths,
        block_tables=layout.tables,
        slots=torch.empty(len(q), dtype=torch.int64),  # nothing is written
        max_query_len=len(q),
        max_seq_len=layout.longest,
    )
    paged = AttentionArgs.of(
        q,
        k_cache,
        v_cache,
        batch,
        scale=args.scale,
        window=args.left + 1,
        softcap=args.softcap,
        sinks=args.sinks,
    )
    out = attend_native(paged, batch, after=args.right, fewer=True)
    return out[..., :dim].contiguous()
