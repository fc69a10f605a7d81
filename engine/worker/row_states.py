"""The recurrent states of a model's rows and prefixes, and which slot each row reads and writes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from stentor import kernels
from stentor.kernels.native.memory import empty_huge
from stentor.protocols.ipc.steps import RowStep, StepPlan

from ..layers.forward_batch import ForwardBatch, StateBatch
from ..model_config.recurrent_spec import StateTensor
from .batch import Batch
from .runner import Findings, MediaReader, no_media


class RowStates:
    """Slots are the engine's to hand out; a step reads one and writes one for each of its rows."""

    def __init__(
        self,
        states: Mapping[int, Sequence[StateTensor]],
        num_states: int,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Of each layer with a state its parts, ``num_states`` times; ``dtype`` is that of activations."""
        self._device = device
        self._of_layer = {
            layer: [_zeros((num_states, *part.shape), torch.float32 if part.wide else dtype, device) for part in parts]
            for layer, parts in states.items()
        }
        self._slot_of = np.full(rows, -1, dtype=np.int64)
        """By row: the slot with its state."""
        self.yield_device: Callable[[], None] | None = None
        self.media: MediaReader = no_media

    def enter(self, plan: StepPlan) -> None:
        for new in plan.new:
            self._slot_of[new.slot] = new.state

    def release(self, slots: Sequence[int]) -> None:
        self._slot_of[list(slots)] = -1

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        """Raises ValueError for a row that has nowhere to write its state."""
        at = [row.slot for row in rows]
        reads = self._slot_of[at]
        named = np.fromiter((row.state for row in rows), np.int64, len(rows))
        writes = np.where(named < 0, reads, named)
        if writes.min() < 0:
            raise ValueError(f"slot {at[int(writes.argmin())]} runs and was given no place for its state")
        self._slot_of[at] = writes
        starts = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum([row.count for row in rows], out=starts[1:])
        found = kernels.StateRows(
            torch.from_numpy(starts).to(self._device),
            torch.from_numpy(reads).to(self._device),
            torch.from_numpy(writes).to(self._device),
            max(row.count for row in rows),
        )
        return replace(batch, states=StateBatch(found, self._of_layer))

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> Findings:
        return Findings()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # fresh pages of the kernel are zero, and cost nothing until a slot is used
    return empty_huge(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
