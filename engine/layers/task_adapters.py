"""Low-rank additions to layers (LoRA, arXiv:2106.09685), one set for each task that a model was trained for; rows of a
batch may have different ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..model_config.model_spec import TaskAdapters
from .layer_context import LayerContext
from .weights import WeightMap


@dataclass(frozen=True)
class TaskRows:
    """Rows of a batch that have the same task."""

    task: int
    rows: torch.Tensor | None
    """int64; None: all there are."""


def rows_by_task(tasks: Sequence[int], lengths: Sequence[int], device: torch.device) -> list[TaskRows]:
    """``tasks``: of each text, -1 for none; ``lengths``: how many rows each has, one text after another."""
    present = sorted(set(tasks))
    if present == [-1] or not present:
        return []
    if len(present) == 1:
        return [TaskRows(present[0], None)]
    of_row = torch.repeat_interleave(torch.tensor(tasks), torch.tensor(lengths))
    return [TaskRows(task, (of_row == task).nonzero()[:, 0].to(device)) for task in present if task >= 0]


class AdaptedLinear:
    """x Aᵀ Bᵀ, scaled: what a task adds to a product."""

    def __init__(
        self,
        weights: WeightMap,
        name: str,
        inputs: int,
        outputs: int,
        adapters: TaskAdapters,
        context: LayerContext,
    ) -> None:
        tasks, rank = len(adapters.names), adapters.rank
        self._down = context.empty(tasks, rank, inputs, dtype=context.stream)
        self._up = context.empty(tasks, outputs, rank, dtype=context.stream)
        self._scale = adapters.scale
        weights.add(f"{name}.lora_A", self._down)
        weights.add(f"{name}.lora_B", self._up)

    def add_(self, product: torch.Tensor, x: torch.Tensor, groups: Sequence[TaskRows]) -> torch.Tensor:
        """Adds to ``product`` [tokens, outputs], which comes of ``x`` [tokens, inputs], what each group's task says."""
        for group in groups:
            down, up = self._down[group.task], self._up[group.task]
            if group.rows is None:
                product.addmm_(x @ down.T, up.T, alpha=self._scale)
            else:
                product.index_add_(0, group.rows, (x[group.rows] @ down.T) @ up.T, alpha=self._scale)
        return product


class AdaptedTable:
    """A[ids] B, scaled: what a task adds to embeddings."""

    def __init__(
        self,
        weights: WeightMap,
        name: str,
        rows: int,
        columns: int,
        adapters: TaskAdapters,
        context: LayerContext,
    ) -> None:
        tasks, rank = len(adapters.names), adapters.rank
        self._ids = context.empty(tasks, rows, rank, dtype=context.stream)
        self._up = context.empty(tasks, rank, columns, dtype=context.stream)
        self._scale = adapters.scale
        weights.add(f"{name}.lora_A", self._ids)
        weights.add(f"{name}.lora_B", self._up)

    def add_(self, embedded: torch.Tensor, ids: torch.Tensor, groups: Sequence[TaskRows]) -> torch.Tensor:
        """As :meth:`AdaptedLinear.add_`; ``ids`` int64 [tokens]."""
        for group in groups:
            table, up = self._ids[group.task], self._up[group.task]
            if group.rows is None:
                embedded.addmm_(table[ids], up, alpha=self._scale)
            else:
                embedded.index_add_(0, group.rows, table[ids[group.rows]] @ up, alpha=self._scale)
        return embedded
