"""LoRA adapters stored with a model, one for each task that it was trained for."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import torch

from stentor.kernels.low_rank import LowRank, LowRankSum

from ...model_config.spec.model import TaskAdapters
from .adapters import AdaptedLinear, AdapterRows
from .layer_context import LayerContext
from .weights import WeightError, WeightMap

_PEFT: Final = re.compile(r"base_model\.model\.(.+)\.(lora_[AB])(?:\.([^.]+))?\.weight")
"""The stored product, the side, and the task if one file has all of them."""


def linear_of_tasks(
    weights: WeightMap, parts: Mapping[str, int], inputs: int, adapters: TaskAdapters, context: LayerContext
) -> AdaptedLinear:
    """The adapters of all tasks, in order, for one product, whose stored ``parts`` have these outputs.

    In files of their own, adapters change each part apart, and leave some as they are.
    """
    tasks, apart, outputs = len(adapters.names), bool(adapters.files), sum(parts.values())
    rank = adapters.rank * (len(parts) if apart else 1)
    down = context.empty(tasks, rank, inputs, dtype=context.stream)
    up = context.empty(tasks, outputs, rank, dtype=context.stream)
    if apart:
        if not context.filled:
            down.zero_()
            up.zero_()
        lows, first = down.split(adapters.rank, dim=1), 0
        for number, (name, size) in enumerate(parts.items()):
            weights.offer(f"{name}.lora_A", lows[number])
            weights.offer(f"{name}.lora_B", up[:, first : first + size].split(adapters.rank, dim=2)[number])
            first += size
    else:
        name = next(iter(parts))
        weights.add(f"{name}.lora_A", down)
        weights.add(f"{name}.lora_B", up)
    made = AdaptedLinear(inputs, outputs, dtype=context.stream, invariant=context.invariant)
    for task in range(tasks):
        made.put(task, LowRankSum([LowRank(down[task], up[task], adapters.scale)]))
    return made


def stacked(
    adapters: TaskAdapters, files: Callable[[str], Iterable[tuple[str, torch.Tensor]]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The matrices of all tasks by stored name, [tasks, ...], from the files of PEFT. Raises :class:`WeightError`."""
    found: dict[str, dict[int, torch.Tensor]] = {}
    numbers = {name: number for number, name in enumerate(adapters.names)}
    apart = len(adapters.files) == len(adapters.names)
    for place, file in enumerate(adapters.files):
        for stored, tensor in files(file):
            read = _PEFT.fullmatch(stored)
            if read is None:
                raise WeightError(f"{file} holds {stored[:120]}, expected low-rank matrices alone")
            task = place if apart and read[3] is None else numbers.get(read[3] or "")
            if task is None:
                raise WeightError(f"{file} holds {stored[:120]}, of none of the tasks {', '.join(adapters.names)}")
            found.setdefault(f"{read[1]}.{read[2]}", {})[task] = tensor
    for name, tensors in found.items():
        some = next(iter(tensors.values()))
        if any(tensor.shape != some.shape for tensor in tensors.values()):
            raise WeightError(f"{name} differs in shape among the tasks {', '.join(adapters.names)}")
        every = range(len(adapters.names))
        yield name, torch.stack([tensors.get(task, torch.zeros_like(some)) for task in every])


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
