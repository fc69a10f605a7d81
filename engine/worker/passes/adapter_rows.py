"""Which adapter each row of a worker has, for a pass over some of them."""

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import torch

from stentor.kernels.low_rank.rows import group_rows
from stentor.protocols.ipc.steps import RowStep, StepPlan

from ...layers.forward_batch import ForwardBatch
from ...layers.linear.adapters import NOBODY, AdapterRows, RowGroups
from ..adapters.store import AdapterStore
from ..device.pinned import StepMemory
from ..rows.extras import RowExtras, extra_of
from .prepare_inputs import StepNumbers


class AdapterRowsOf(RowExtras):
    """Tracks the adapters of rows."""

    def __init__(self, store: AdapterStore) -> None:
        super().__init__()
        self.store = store
        self._adapters: dict[int, int] = {}
        """Adapter slot by row slot, of rows with an adapter."""

    def enter(self, plan: StepPlan) -> None:
        self.store.put(plan.adapters)
        for new in plan.new:
            if new.adapter >= 0:
                self._adapters[new.slot] = new.adapter

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._adapters.pop(slot, None)

    def concerns(self, rows: Sequence[RowStep]) -> bool:
        return False  # a step that is one native call reads them from the table of rows

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        store, lengths = self.store, [row.count for row in rows]
        found = AdapterRows.of(self.slots([row.slot for row in rows]), lengths, store.device, store.tables)
        return msgspec.structs.replace(batch, adapter_rows=found)

    def any_of(self, rows: Sequence[RowStep]) -> bool:
        """Whether any of these rows has an adapter."""
        return any(row.slot in self._adapters for row in rows)

    def known(self, numbers: StepNumbers, memory: StepMemory) -> AdapterRows | None:
        """The adapters of a step's rows for the host, needed if one of them changes a product without a table; else
        None."""
        own = numbers.sections
        adapters = self.slots(own["row_slots"].tolist())
        if not self.store.has_loose(adapters):
            return None
        found = AdapterRows.of(adapters, np.diff(own["query_start"]).tolist(), torch.device("cpu"))
        return None if found is None else dataclasses.replace(found, rows=memory.bring(found.rows.numpy()))

    def alike(self, row: int, count: int, memory: StepMemory) -> AdapterRows | None:
        """The adapter of ``count`` tokens that all belong to one row; None if it has none."""
        if (slot := self._adapters.get(row, -1)) < 0:
            return None
        numbers = memory.bring(group_rows(np.full(count, slot), self.store.tables))
        return dataclasses.replace(NOBODY, groups=RowGroups.of(numbers, count))

    def slots(self, rows: Iterable[int]) -> list[int]:
        """The adapter slots of rows; -1 without one."""
        return [self._adapters.get(row, -1) for row in rows]


def store_of(extras: RowExtras | None) -> AdapterStore | None:
    """The adapter store of these extras; None if they have none."""
    rows = extra_of(extras, AdapterRowsOf)
    return None if rows is None else rows.store
