"""LoRA adapters stored with a model, one for each task that it was trained for."""

import torch

from stentor.kernels.low_rank import LowRank, LowRankSum

from ...model_config.spec.model import TaskAdapters
from .adapters import AdaptedLinear, AdapterRows
from .layer_context import LayerContext
from .weights import WeightMap


def linear_of_tasks(
    weights: WeightMap, name: str, inputs: int, outputs: int, adapters: TaskAdapters, context: LayerContext
) -> AdaptedLinear:
    """The adapters of all tasks for one product, in order."""
    tasks, rank = len(adapters.names), adapters.rank
    down = context.empty(tasks, rank, inputs, dtype=context.stream)
    up = context.empty(tasks, outputs, rank, dtype=context.stream)
    weights.add(f"{name}.lora_A", down)
    weights.add(f"{name}.lora_B", up)
    made = AdaptedLinear(inputs, outputs, dtype=context.stream, invariant=context.invariant)
    for task in range(tasks):
        made.put(task, LowRankSum([LowRank(down[task], up[task], adapters.scale)]))
    return made


class AdaptedTable:
    """A[ids] B, scaled: a task's addition to embeddings."""

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

    def add_(self, embedded: torch.Tensor, ids: torch.Tensor, rows: AdapterRows) -> torch.Tensor:
        """Add the rows' adapters to ``embedded`` [tokens, size], the embeddings of ``ids`` int64 [tokens]."""
        for adapter, own in rows:
            embedded.index_add_(0, own, self._ids[adapter][ids[own]] @ self._up[adapter], alpha=self._scale)
        return embedded
