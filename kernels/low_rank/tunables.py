"""The adapters that the tuner tries: ranks 16 and 64 on the products of Llama-3.1-8B, with half of 8 slots in use."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch

from ..tuning import Config, Tunable, by_reference
from . import triton
from .rows import RowGroups, group_rows
from .slots import SlotTable, add_in_slots_

_PRODUCTS: Final = ((4096, (4096, 1024, 1024)), (4096, (14336, 14336)), (14336, (4096,)))
"""Inputs, and outputs of each part."""
_SLOTS: Final = 8
_ROWS: Final = (64, 4096)
"""Few and many."""


def tunables() -> list[Tunable]:
    found = []
    for inputs, parts in _PRODUCTS:
        for rank in (16, 64):
            table = _table(inputs, parts, rank, torch.device("meta"))
            for rows in _ROWS:
                few, workload = triton.are_few(rows), partial(_workload, inputs, parts, rank, rows)
                for operation, candidates in ((triton.DOWN, _downs(rank, few=few)), (triton.UP, _ups(rank, few=few))):
                    found.append(
                        Tunable(
                            operation,
                            triton.key(operation, table, few=few),
                            candidates,
                            workload,
                            by_reference(workload),
                        )
                    )
    return found


def _downs(rank: int, *, few: bool) -> list[Config]:
    return [
        Config.of(num_warps=4, num_stages=stages, BLOCK_T=rows, BLOCK_R=min(rank, 32), BLOCK_K=width, SHARES=shares)
        for rows in ((16,) if few else (32, 64))
        for width in (64, 128, 256)
        for shares in ((1, 4, 8, 16) if few else (1, 2))
        for stages in (2, 4)
    ]


def _ups(rank: int, *, few: bool) -> list[Config]:
    return [
        Config.of(num_warps=warps, num_stages=2, BLOCK_T=rows, BLOCK_N=columns, BLOCK_R=min(rank, 32))
        for rows in ((16,) if few else (32, 64))
        for columns in (64, 128, 256)
        for warps in (4, 8)
    ]


def _table(inputs: int, parts: Sequence[int], rank: int, device: torch.device) -> SlotTable:
    return SlotTable(inputs, parts, _SLOTS, rank, torch.bfloat16, device)


def _workload(inputs: int, parts: Sequence[int], rank: int, rows: int, device: torch.device) -> Callable[[], object]:
    table = _table(inputs, parts, rank, device)
    for each in (table.down, table.up):
        each.normal_(std=0.01)
    table.scales.fill_(1.0)
    slots = (torch.arange(rows) % (_SLOTS // 2)).numpy()
    numbers = torch.tensor(group_rows(slots, _SLOTS).tolist(), dtype=torch.int32, device=device)
    groups = RowGroups.of(numbers, rows)
    x = torch.randn(rows, inputs, dtype=torch.bfloat16, device=device)
    y = torch.zeros(rows, table.outputs, dtype=torch.bfloat16, device=device)
    return partial(add_in_slots_, y, x, groups, table)
