"""The numbers of a step for a device, decode rows first."""

from collections.abc import Sequence

import msgspec
import numpy as np

from stentor.protocols.ipc.steps import RowStep

from ..device.graphs import GraphSize
from ..device.staging import Numbers, Shape
from ..rows.rows import Int64, RowTable, lay_out


class StepNumbers(msgspec.Struct, frozen=True):
    """One step, with its rows concatenated."""

    sections: dict[str, Numbers]
    """Tokens, rows and draws, named as in :class:`..device.staging.Inputs`."""
    shape: Shape
    decode_rows: int
    """The leading rows, of one token each."""
    max_query_len: int
    max_seq_len: int
    starts: dict[int, int]
    """Slot → index of its first token."""
    draw_rows: Int64
    """Indices of the rows that sample, ascending, without padding."""
    places: list[int]
    """The draw of each sampled token, in the plan's order."""


def number_step(rows: list[RowStep], table: RowTable) -> StepNumbers:
    """Lay out a step whose blocks are in ``table`` already.

    Raises ValueError for an unknown row, or a position beyond its tokens.
    """
    count = len(rows)
    order = list(range(count))
    decodes = sum(row.count == 1 for row in rows)
    if any(row.count != 1 for row in rows[:decodes]):
        order.sort(key=lambda place: rows[place].count != 1)
        rows = [rows[place] for place in order]
    layout = lay_out(rows)
    slots, seq_lens, query_start, positions = layout.slots, layout.seq_lens, layout.query_start, layout.positions
    sample = np.fromiter((row.sample for row in rows), np.bool_, count)
    _check(slots, layout.lengths, seq_lens, table)
    tokens = table.tokens[layout.token_slots, positions]
    tokens[positions >= table.known[layout.token_slots]] = -1
    draws = np.flatnonzero(sample)
    return StepNumbers(
        sections={
            "tokens": tokens,
            "positions": positions,
            "kv_slots": table.kv_slots(layout).reshape(-1),
            "row_slots": slots,
            "logits_indices": query_start[1:][draws].astype(np.int64) - 1,
            "draw_slots": slots[draws],
            "query_start": query_start,
            "seq_lens": seq_lens.astype(np.int32),
        },
        shape=Shape(rows=count, tokens=len(tokens), draws=len(draws), groups=len(table.blocks)),
        decode_rows=decodes,
        max_query_len=int(layout.lengths.max()),
        max_seq_len=int(seq_lens.max()),
        starts=dict(zip(slots.tolist(), query_start.tolist(), strict=False)),
        draw_rows=draws,
        places=_places(order, draws),
    )


def pad_step(
    numbers: StepNumbers, size: GraphSize, *, null_slot: int, null_block: int, block_size: int, groups: int = 1
) -> StepNumbers:
    """Pad a step to ``size``: with decode rows, prompts without tokens, and a last row with the unused prompt tokens.

    All rows but the last sample.
    """
    old = numbers.sections
    decodes, real = numbers.decode_rows, numbers.shape.tokens

    def filled(values: Numbers, length: int, nothing: int | Numbers) -> Numbers:
        """Values with decode rows first, and prompts where the graph has them."""
        found = np.empty(length, dtype=values.dtype)
        found[:] = nothing
        found[:decodes] = values[:decodes]
        found[size.decodes : size.decodes + len(values) - decodes] = values[decodes:]
        return found

    # padding writes to different positions of the null block: writes to a single one would serialise
    nowhere = null_block * block_size + np.arange(size.tokens, dtype=np.int64) % block_size
    kv_slots = [filled(own, size.tokens, nowhere) for own in old["kv_slots"].reshape(groups, real)]
    query_start = np.arange(size.rows + 1, dtype=np.int32)
    if size.prompt_tokens:
        ends = old["query_start"][decodes + 1 :] + np.int32(size.decodes - decodes)
        query_start[size.decodes + 1 :] = size.decodes + real - decodes  # empty prompts end where all do
        query_start[size.decodes + 1 : size.decodes + 1 + len(ends)] = ends
        query_start[-1] = size.tokens
    draws = np.where(numbers.draw_rows < decodes, numbers.draw_rows, numbers.draw_rows + size.decodes - decodes)
    draw_slots = np.full(size.draws, -1, dtype=np.int64)
    draw_slots[draws] = old["draw_slots"]
    return StepNumbers(
        sections={
            "tokens": filled(old["tokens"], size.tokens, 0),
            "positions": filled(old["positions"], size.tokens, 0),
            "kv_slots": np.concatenate(kv_slots),
            "row_slots": filled(old["row_slots"], size.rows, null_slot),
            "logits_indices": np.maximum(query_start[1 : size.draws + 1].astype(np.int64) - 1, 0),
            "draw_slots": draw_slots,
            "query_start": query_start,
            "seq_lens": filled(old["seq_lens"], size.rows, 0),
        },
        shape=Shape(rows=size.rows, tokens=size.tokens, draws=size.draws, groups=groups),
        decode_rows=size.decodes,
        max_query_len=max(1, size.prompt_tokens),
        max_seq_len=numbers.max_seq_len,
        starts=numbers.starts,
        draw_rows=draws,
        places=[int(draws[place]) for place in numbers.places],
    )


def pad_drafted(
    rows: Sequence[RowStep], table: RowTable, size: GraphSize, *, null_slot: int, null_block: int
) -> dict[str, Numbers]:
    """The sections of a pass over rows of up to ``size.query_len`` tokens, which ``table`` has, padded to ``size``.

    The tokens of padding are rows of one token each, and rows without tokens follow.
    """
    count, size_of_block = len(rows), table.block_size
    # writes of padding to a single position of the null block would serialise
    nowhere = null_block * size_of_block + np.arange(size.tokens, dtype=np.int64) % size_of_block
    tokens, positions = np.zeros(size.tokens, dtype=np.int64), np.zeros(size.tokens, dtype=np.int64)
    kv_slots = np.tile(nowhere, (len(table.blocks), 1))
    row_slots = np.full(size.rows, null_slot, dtype=np.int64)
    query_start, seq_lens = np.zeros(size.rows + 1, dtype=np.int32), np.zeros(size.rows, dtype=np.int32)
    real = 0
    if rows:
        layout = lay_out(rows)
        real = len(layout.positions)
        tokens[:real] = table.tokens[layout.token_slots, layout.positions]
        positions[:real] = layout.positions
        kv_slots[:, :real] = table.kv_slots(layout)
        row_slots[:count] = layout.slots
        query_start[: count + 1] = layout.query_start
        seq_lens[:count] = layout.seq_lens
    query_start[count + 1 :] = np.minimum(np.arange(1, size.rows - count + 1) + real, size.tokens)
    return {
        "tokens": tokens,
        "positions": positions,
        "kv_slots": kv_slots.reshape(-1),
        "row_slots": row_slots,
        "query_start": query_start,
        "seq_lens": seq_lens,
    }


def no_rows() -> StepNumbers:
    """An empty step, to be padded."""
    empty, none = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    sections: dict[str, Numbers] = dict.fromkeys(
        ("tokens", "positions", "kv_slots", "row_slots", "logits_indices", "draw_slots"), empty
    )
    sections |= {"query_start": np.zeros(1, dtype=np.int32), "seq_lens": none}
    return StepNumbers(sections, Shape(0, 0, 0), 0, 0, 0, {}, empty, [])


def _check(slots: Int64, lengths: Int64, seq_lens: Int64, table: RowTable) -> None:
    known = table.known[slots]
    if not known.all():
        raise ValueError(f"slot {slots[known == 0][0]} holds no row; it must enter before it runs")
    # the device has only a row's last token, and only for a row of one token
    last = np.where(lengths == 1, known + table.num_sampled[slots], known)
    wrong = (seq_lens > known) & (seq_lens != last)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"slot {slots[row]} runs to position {seq_lens[row] - 1}; it entered with {known[row]} tokens "
            f"and has drawn {table.num_sampled[slots[row]]} since"
        )


def _places(order: list[int], draws: Int64) -> list[int]:
    """``order``: the plan's row at each place of the batch. ``draws``: places that sample."""
    sampled_rows = [order[row] for row in draws.tolist()]
    return sorted(range(len(sampled_rows)), key=sampled_rows.__getitem__)
