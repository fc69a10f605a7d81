"""Recurrent states of rows and prefixes, and the slots that each row reads and writes."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from stentor import kernels
from stentor.kernels.native.memory import empty_huge
from stentor.protocols.ipc.config import StateDType, WorkerConfig
from stentor.protocols.ipc.steps import RowStep, StepPlan, StepResult

from ...layers.forward_batch import ForwardBatch, MixerInputs, StateBatch
from ...model_config.spec.model import Backbone
from ...model_config.spec.recurrent import StateTensor
from ..caches import BlockCopier
from .drafted_states import DraftedStates
from .extras import RowExtras
from .rows import Int64

_DTYPES: Mapping[StateDType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class StateDTypes(msgspec.Struct, frozen=True):
    """Dtypes of recurrent states."""

    inputs: torch.dtype
    """Dtype of the last inputs of convolutions."""
    recurrent: torch.dtype
    """Dtype of the states of recurrences."""

    @classmethod
    def of(cls, config: WorkerConfig, dtype: torch.dtype) -> "StateDTypes":
        """The dtypes that ``config`` sets; ``dtype``, that of activations, is the default of inputs."""
        shared = _DTYPES.get(config.mamba_cache_dtype)
        own = _DTYPES.get(config.mamba_ssm_cache_dtype)
        return cls(shared or dtype, own or shared or torch.float32)

    def of_part(self, part: StateTensor) -> torch.dtype:
        return self.recurrent if part.recurrent else self.inputs

    def nbytes(self, spec: Backbone) -> int:
        """Bytes of a sequence's state in all layers."""
        return spec.state_bytes(self.inputs.itemsize, self.recurrent.itemsize)


class RowStates(RowExtras):
    """The states by slot. The engine allocates slots; each row reads one and writes one in a step."""

    def __init__(
        self,
        states: Mapping[int, Sequence[StateTensor]],
        num_states: int,
        rows: int,
        dtypes: StateDTypes,
        device: torch.device,
        *,
        drafts: bool = False,
        host: torch.Tensor | None = None,
    ) -> None:
        """Allocate ``num_states`` slots for every layer with a state; with ``drafts`` one more for each row.

        ``host``: memory of the host tier; see :func:`..caches.host_memory`.
        """
        super().__init__()
        self._device = device
        self._drafted = DraftedStates(num_states, rows, device) if drafts else None
        places = num_states + drafts * rows
        self._of_layer = {
            layer: [_zeros((places, *part.shape), dtypes.of_part(part), device) for part in parts]
            for layer, parts in states.items()
        }
        self._copier = BlockCopier([part for parts in self._of_layer.values() for part in parts], host)
        self._writes = np.full(rows + 1, -1, dtype=np.int64)
        """By row: the slot of its state. The last row is for padding and has none."""
        self._reads = self._writes.copy()
        """By row: the slot of its state before its last step."""

    def enter(self, plan: StepPlan) -> None:
        copies = plan.state_copies
        if copies and self._drafted is not None:
            copies = [(self._drafted.place_of(source), self._drafted.place_of(target)) for source, target in copies]
        if self._drafted is not None:
            self._drafted.enter(plan.rows)
        self._copier.copy_(copies)
        for new in plan.new:
            self._writes[new.slot] = new.state

    def release(self, slots: Sequence[int]) -> None:
        self._writes[list(slots)] = -1

    def move(self, rows: Sequence[RowStep]) -> None:
        """Apply the slots of the next step's rows. Raises ValueError for a row without a slot."""
        at = [row.slot for row in rows]
        reads = self._writes[at]
        named = np.fromiter((row.state for row in rows), np.int64, len(rows))
        writes = np.where(named < 0, reads, named)
        if writes.min() < 0:
            raise ValueError(f"slot {at[int(writes.argmin())]} runs and was given no place for its state")
        self._reads[at], self._writes[at] = reads, writes

    def slots(self, rows: Int64 | Sequence[int]) -> tuple[Int64, Int64]:
        """The slots that rows read and write in the step given to :meth:`move`; -1 for padding."""
        return self._reads[rows], self._writes[rows]

    def batch(
        self,
        cu_seqlens: torch.Tensor,
        reads: torch.Tensor,
        writes: torch.Tensor,
        longest: int,
        inputs: MixerInputs | None = None,
    ) -> StateBatch:
        """The states of a pass's rows, which read and write these slots, and have ``longest`` tokens at most.

        ``inputs`` records the mixers' inputs.
        """
        return StateBatch(kernels.StateRows(cu_seqlens, reads, writes, longest), self._of_layer, inputs)

    def concerns(self, rows: Sequence[RowStep]) -> bool:
        return False  # a pass that is a graph has them, and no program with states is one call

    def places(self, rows: Sequence[RowStep], starts: npt.NDArray[np.int32]) -> tuple[Int64, Int64]:
        """Apply the slots of the next step's rows; returns where their states are read and written.

        ``starts``: each row's first token in the batch. Raises ValueError for a row without a slot.
        """
        self.move(rows)
        before, after = self.slots([row.slot for row in rows])
        return (before, after) if self._drafted is None else self._drafted.begin(rows, starts, before, after)

    def recorded(self, batch: ForwardBatch) -> None:
        """Take the batch of a step that ran as a graph and recorded all inputs of mixers."""
        if self._drafted is not None:
            self._drafted.note(batch)

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        """Raises ValueError for a row without a slot to write."""
        starts = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum([row.count for row in rows], out=starts[1:])
        before, after = self.places(rows, starts)
        inputs = None if self._drafted is None else self._drafted.recorder()
        cu_seqlens, reads, writes = (torch.from_numpy(each).to(self._device) for each in (starts, before, after))
        states = self.batch(cu_seqlens, reads, writes, max(row.count for row in rows), inputs)
        batch = replace(batch, states=states)
        if self._drafted is not None:
            self._drafted.note(batch)
        return batch

    def ended(self, result: StepResult) -> StepResult:
        return result if self._drafted is None else self._drafted.settle(result, self._of_layer)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # fresh pages are zero and cost nothing until a slot is used
    return empty_huge(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
