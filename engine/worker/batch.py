"""From a step's plan to the tensors that a model reads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stentor.kernels import AttentionBatch
from stentor.protocols.ipc.steps import RowStep

from ..layers.forward_batch import ForwardBatch, LayerCache
from .rows import RowTable


@dataclass(frozen=True)
class Batch:
    """One forward pass over the rows of a step, laid end to end."""

    forward: ForwardBatch
    starts: list[int]
    """Index of each row's first token."""
    last: torch.Tensor
    """int64 [sampled rows]: index of the last token of each row that draws one."""


def build_batch(rows: Sequence[RowStep], table: RowTable, caches: Sequence[LayerCache], device: torch.device) -> Batch:
    """Lays out a step whose blocks have been appended to ``table`` already."""
    count = len(rows)
    slots = np.fromiter((row.slot for row in rows), np.int64, count)
    begin = np.fromiter((row.start for row in rows), np.int64, count)
    lengths = np.fromiter((row.count for row in rows), np.int64, count)
    query_start = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start[1:])
    total = int(query_start[-1])
    owner = np.repeat(np.arange(count), lengths)  # [tokens] row of each token
    positions = np.arange(total, dtype=np.int64) - query_start[:-1][owner] + begin[owner]
    token_slots = slots[owner]
    tokens = table.tokens[token_slots, positions]
    blocks = table.blocks[:, token_slots, positions // table.block_size].astype(np.int64)
    kv_slots = np.ascontiguousarray(blocks * table.block_size + positions % table.block_size)  # [groups, tokens]
    ends = begin + lengths
    longest = int(ends.max())
    columns = -(-longest // table.block_size)
    sampled = np.fromiter((i for i, row in enumerate(rows) if row.sample), np.int64)
    starts, seq_lens = torch.from_numpy(query_start).to(device), torch.from_numpy(ends.astype(np.int32)).to(device)
    return Batch(
        forward=ForwardBatch(
            tokens=torch.from_numpy(tokens).to(device),
            positions=torch.from_numpy(positions).to(device),
            caches=caches,
            paged=[
                AttentionBatch(
                    query_start=starts,
                    seq_lens=seq_lens,
                    block_tables=torch.from_numpy(tables[slots, :columns]).to(device),
                    slots=torch.from_numpy(of_group).to(device),
                    max_query_len=int(lengths.max()),
                    max_seq_len=longest,
                )
                for tables, of_group in zip(table.blocks, kv_slots, strict=True)
            ],
        ),
        starts=query_start[:-1].tolist(),
        last=torch.from_numpy(query_start[1:][sampled].astype(np.int64) - 1).to(device),
    )
