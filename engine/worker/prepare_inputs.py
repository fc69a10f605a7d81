"""From a step's plan to the numbers that go to a device, decode rows first."""

from dataclasses import dataclass

import numpy as np

from stentor.protocols.ipc.steps import RowStep

from .rows import Int64, RowTable, lay_out
from .staging import Numbers, Shape


@dataclass(frozen=True)
class StepNumbers:
    """One step, its rows laid end to end."""

    sections: dict[str, Numbers]
    """Tokens, rows and draws, as :class:`.staging.Inputs` names them."""
    shape: Shape
    decode_rows: int
    """The first rows, each of one token."""
    max_query_len: int
    max_seq_len: int
    starts: dict[int, int]
    """Slot → index of its first token."""
    places: list[int]
    """Where each drawn token of the plan, in its order, stands among the draws."""


def number_step(rows: list[RowStep], table: RowTable) -> StepNumbers:
    """Lays out a step whose blocks have been appended to ``table`` already.

    Raises ValueError for a row that nobody has, or a position beyond what it has drawn.
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
        places=_places(order, draws),
    )


def pad_decodes(
    numbers: StepNumbers, size: int, *, null_slot: int, null_block: int, block_size: int, groups: int = 1
) -> StepNumbers:
    """A step of decode rows alone, filled up to ``size`` rows that belong to nobody; every row is drawn for."""
    count = numbers.shape.rows
    old = numbers.sections
    extra = size - count
    draw_slots = np.full(size, -1, dtype=np.int64)
    draw_slots[old["logits_indices"]] = old["draw_slots"]
    # each in a place of its own, as far as a block goes: the writes of many to one place would queue up
    nowhere = null_block * block_size + np.arange(extra, dtype=np.int64) % block_size
    kv_slots = [np.concatenate((own, nowhere)) for own in old["kv_slots"].reshape(groups, count)]
    none = np.zeros(extra, dtype=np.int64)
    return StepNumbers(
        sections={
            "tokens": np.concatenate((old["tokens"], none)),
            "positions": np.concatenate((old["positions"], none)),
            "kv_slots": np.concatenate(kv_slots),
            "row_slots": np.concatenate((old["row_slots"], none + null_slot)),
            "logits_indices": np.arange(size, dtype=np.int64),
            "draw_slots": draw_slots,
            "query_start": np.arange(size + 1, dtype=np.int32),
            "seq_lens": np.concatenate((old["seq_lens"], none.astype(np.int32))),
        },
        shape=Shape(rows=size, tokens=size, draws=size, groups=groups),
        decode_rows=size,
        max_query_len=1,
        max_seq_len=numbers.max_seq_len,
        starts=numbers.starts,
        places=[int(old["logits_indices"][place]) for place in numbers.places],
    )


def no_rows() -> StepNumbers:
    """A step of nobody, to be padded."""
    empty, none = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    sections: dict[str, Numbers] = dict.fromkeys(
        ("tokens", "positions", "kv_slots", "row_slots", "logits_indices", "draw_slots"), empty
    )
    sections |= {"query_start": np.zeros(1, dtype=np.int32), "seq_lens": none}
    return StepNumbers(sections, Shape(0, 0, 0), 0, 0, 0, {}, [])


def _check(slots: Int64, lengths: Int64, seq_lens: Int64, table: RowTable) -> None:
    known = table.known[slots]
    if not known.all():
        raise ValueError(f"slot {slots[known == 0][0]} holds no row; it must enter before it runs")
    # only the token that a row drew last is at hand on the device, and only for a row that takes it alone
    last = np.where(lengths == 1, known + table.num_sampled[slots], known)
    wrong = (seq_lens > known) & (seq_lens != last)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"slot {slots[row]} runs to position {seq_lens[row] - 1}; it entered with {known[row]} tokens "
            f"and has drawn {table.num_sampled[slots[row]]} since"
        )


def _places(order: list[int], draws: Int64) -> list[int]:
    """``order`` says which row of the plan stands where in the batch; ``draws`` which of the batch draw."""
    sampled_rows = [order[row] for row in draws.tolist()]
    return sorted(range(len(sampled_rows)), key=sampled_rows.__getitem__)
