"""Rows that ask for the experts of their positions."""

from collections.abc import Sequence

import torch
from msgspec.structs import replace

from stentor.protocols.ipc.steps import ExpertShape, RowExperts, RowStep, StepPlan

from ...layers.forward_batch import ForwardBatch
from ...model_config.spec.mlp import MoESpec
from ...model_config.spec.model import ModelSpec
from ..errors import SetupError
from .batch import Batch
from .extras import ExtraResults, RowExtras

_BYTE = 256
"""Experts that one byte can number."""


def expert_shape(spec: ModelSpec) -> ExpertShape:
    """The experts reported a position. Raises :class:`..errors.SetupError` for a model without experts to report."""
    mixtures = [each for layer in spec.layers for each in layer.networks if isinstance(each, MoESpec)]
    chosen = {mlp.router.top_k for mlp in mixtures}
    if len(chosen) != 1:
        why = "its layers choose different numbers of experts" if chosen else "the model has no experts that are known"
        raise SetupError(f"--enable-return-routed-experts: {why}; leave it out")
    most = max(mlp.choices + (mlp.media.experts if mlp.media else 0) for mlp in mixtures)
    width = 1 if most <= _BYTE else 2
    return ExpertShape(len(mixtures), chosen.pop(), width)


class RoutedRows(RowExtras):
    """Collects the experts of rows that ask for them."""

    def __init__(self, shape: ExpertShape) -> None:
        super().__init__()
        self._shape = shape
        self._first: dict[int, int] = {}
        """By slot, of rows that ask: the first position to report."""

    def enter(self, plan: StepPlan) -> None:
        for new in plan.new:
            if new.params.routed_experts is not None:
                self._first[new.slot] = new.params.routed_experts

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._first.pop(slot, None)

    def concerns(self, rows: Sequence[RowStep]) -> bool:
        return any(row.slot in self._first for row in rows)

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        return replace(batch, routed=[]) if any(row.slot in self._first for row in rows) else batch

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> ExtraResults:
        if not batch.forward.routed:
            return ExtraResults()
        every = torch.stack(batch.forward.routed, dim=1).cpu().numpy()  # [tokens, layers, top_k]
        gathered = []
        for row, start in zip(rows, batch.starts, strict=True):
            first = max(row.start, self._first.get(row.slot, row.start + row.count))
            count = row.start + row.count - first
            if count > 0:
                of_row = every[start + row.count - count : start + row.count]
                gathered.append(RowExperts(row.slot, first, count, of_row.astype(f"<u{self._shape.width}").tobytes()))
        return ExtraResults(routed=gathered)
