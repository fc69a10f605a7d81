"""Makes the tensors of a forward pass from a step's plan."""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from stentor.kernels import MAX_DECODE_QUERY_LEN, AttentionBatch
from stentor.protocols.ipc.steps import RowStep

from ...layers.forward_batch import ForwardBatch, LayerCache
from ...layers.varlen_batch import VarlenBatch
from .rows import Layout, RowTable, lay_out


class Batch(msgspec.Struct, frozen=True):
    """One forward pass over the rows of a step, concatenated."""

    forward: ForwardBatch
    starts: list[int]
    """Index of each row's first token."""
    last: torch.Tensor
    """int64: indices of the last token of each row that samples, and of its drafts."""


def build_batch(
    rows: Sequence[RowStep], table: RowTable, caches: Sequence[LayerCache] | None, device: torch.device
) -> Batch:
    """Lay out a step whose blocks are in ``table`` already.

    The leading rows of few tokens are decode rows of its attention; see :func:`few_tokens`.

    ``caches``: None if rows are whole texts; empty for a model of recurrent layers only.
    """
    layout = lay_out(rows)
    tokens = torch.from_numpy(table.tokens[layout.token_slots, layout.positions]).to(device)
    longest = int(layout.lengths.max())
    if caches is not None:
        forward = ForwardBatch(
            tokens,
            torch.from_numpy(layout.positions).to(device),
            caches,
            _paged(layout, longest, table, device),
            drawn=[table.drawn(row) for row in rows],
            prompt_lens=[table.prompt_len(row) for row in rows],
        )
    else:
        forward = ForwardBatch.whole(tokens, VarlenBatch(torch.from_numpy(layout.query_start), longest))
    last = last_tokens(rows, layout.query_start[1:].tolist())
    return Batch(
        forward=forward,
        starts=layout.query_start[:-1].tolist(),
        last=torch.tensor(last, dtype=torch.int64, device=device),
    )


def last_tokens(rows: Sequence[RowStep], ends: Sequence[int]) -> list[int]:
    """Indices of the last token of each row that samples, and of its drafts; ``ends`` are those of all rows."""
    return [
        at for row, end in zip(rows, ends, strict=True) if row.sample for at in range(end - 1 - row.num_drafts, end)
    ]


def few_tokens(row: RowStep) -> bool:
    """Whether a row may be a decode row: one that samples, with its drafts, or the short rest of a prompt."""
    return row.count <= MAX_DECODE_QUERY_LEN


def _paged(layout: Layout, longest: int, table: RowTable, device: torch.device) -> list[AttentionBatch]:
    """The attention inputs of each cache group."""
    starts = torch.from_numpy(layout.query_start).to(device)
    seq_lens = torch.from_numpy(layout.seq_lens.astype(np.int32)).to(device)
    most = int(layout.seq_lens.max())
    columns = -(-most // table.block_size)
    many = layout.lengths > MAX_DECODE_QUERY_LEN
    decode_rows = int(many.argmax()) if many.any() else len(many)
    decodes = layout.lengths[:decode_rows]
    # A kernel is compiled for each number of tokens, hence 1, 2, 4 or 8 of them at most.
    query_len = 1 << (int(decodes.max(initial=1)) - 1).bit_length()
    return [
        AttentionBatch(
            query_start=starts,
            seq_lens=seq_lens,
            block_tables=torch.from_numpy(tables[layout.slots, :columns]).to(device),
            slots=torch.from_numpy(of_group).to(device),
            max_query_len=longest,
            max_seq_len=most,
            decode_rows=decode_rows,
            decode_query_len=query_len,
            ragged_tokens=int(decodes.sum()) if query_len > 1 else None,
        )
        for tables, of_group in zip(table.blocks, table.kv_slots(layout), strict=True)
    ]
