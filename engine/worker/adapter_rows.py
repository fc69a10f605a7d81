"""Rows whose requests name an adapter."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from stentor.protocols.ipc.steps import RowStep, StepPlan, StepResult

from ..layers.adapters import AdapterRows
from ..layers.forward_batch import ForwardBatch
from .adapter_store import AdapterStore
from .batch import Batch
from .routed_rows import JoinedExtras
from .runner import Findings, MediaReader, RowExtras, no_media


class AdapterRowsOf:
    """See :class:`.runner.RowExtras`."""

    def __init__(self, store: AdapterStore) -> None:
        self.store = store
        self._adapters: dict[int, int] = {}
        """By slot of a row that has one: the slot of its adapter."""
        self.yield_device: Callable[[], None] | None = None
        self.media: MediaReader = no_media

    def enter(self, plan: StepPlan) -> None:
        self.store.put(plan.adapters)
        for new in plan.new:
            if new.adapter >= 0:
                self._adapters[new.slot] = new.adapter

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._adapters.pop(slot, None)

    def concerns(self, rows: Sequence[RowStep]) -> bool:
        return False  # a step that is one call takes them from the table of rows

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        adapters = [self._adapters.get(row.slot, -1) for row in rows]
        return replace(batch, adapter_rows=AdapterRows.of(adapters, [row.count for row in rows], self.store.device))

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> Findings:
        return Findings()

    def ended(self, result: StepResult) -> StepResult:
        return result


def store_of(extras: RowExtras | None) -> AdapterStore | None:
    """Where the adapters of the rows are, if they may have any."""
    parts = extras.parts if isinstance(extras, JoinedExtras) else [extras]
    return next((part.store for part in parts if isinstance(part, AdapterRowsOf)), None)
