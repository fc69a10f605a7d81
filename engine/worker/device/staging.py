"""One copy a step from host to device: all inputs of a step in one pinned buffer.

A buffer is a sequence of sections, each of one dtype, in the order of :data:`SECTIONS` and aligned for vector loads.
Their offsets follow from their lengths (:class:`Shape`) alone. Sections that only some steps have (``update_at`` and
all after it) come last, so a captured graph finds the sections that it reads at the same offsets.

Two pinned buffers alternate, because the copy from one may still wait behind a running step while the next step is
packed. One buffer on the device is enough, since copies and kernels run in stream order.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from stentor.kernels.low_rank.rows import grouped_size
from stentor.kernels.sampling.tables import PARAMS

from .device import Device, Mark
from .pinned import StepMemory

_ALIGNMENT = 256

Numbers = npt.NDArray[Any]
"""int64 or int32, as the section says."""


class Shape(msgspec.Struct, frozen=True):
    """Lengths of a step's sections."""

    rows: int
    tokens: int
    draws: int
    """Rows that sample, with padding."""
    updates: int = 0
    """Changed entries of block tables."""
    logprob_rows: int = 0
    """Draws whose log-probability is wanted."""
    targets: int = 0
    """Prompt tokens whose log-probability is wanted."""
    entering: int = 0
    """Rows with new sampling parameters."""
    sampling_data: int = 0
    """Numbers in lines of the sampler's large tables."""
    groups: int = 1
    """Cache groups with their own block tables."""
    state_rows: int = 0
    """Rows with recurrent states: all or none."""
    adapter_slots: int = 0
    """Slots of adapter tables; 0: no row has an adapter."""


class Inputs(msgspec.Struct, frozen=True):
    """The sections of one step on the device."""

    tokens: torch.Tensor
    """int64 [tokens]; -1 stands for the token that the row sampled last."""
    positions: torch.Tensor
    """int64 [tokens]"""
    kv_slots: torch.Tensor
    """int64 [groups * tokens]: the KV slot of each token, by group."""
    row_slots: torch.Tensor
    """int64 [rows]; the null row for padding."""
    logits_indices: torch.Tensor
    """int64 [draws]: index of the last token of each row that samples."""
    draw_slots: torch.Tensor
    """int64 [draws]; -1 for padding."""
    state_reads: torch.Tensor
    """int64 [state_rows]: the slot of the row's recurrent state before the step; -1: none."""
    state_writes: torch.Tensor
    """int64 [state_rows]: the slot for its state after the step; -1 for padding."""
    adapter_tokens: torch.Tensor
    """int32: :class:`...layers.linear.adapters.RowGroups` of the tokens, if rows have adapters."""
    adapter_draws: torch.Tensor
    """int32: those of the draws."""
    query_start: torch.Tensor
    """int32 [rows + 1]"""
    seq_lens: torch.Tensor
    """int32 [rows]; 0 for padding."""
    update_at: torch.Tensor
    """int64 [updates]: index into the flat block tables."""
    update_to: torch.Tensor
    """int32 [updates]: the block numbers for these indices."""
    logprob_rows: torch.Tensor
    """int64 [logprob_rows]: indices of draws."""
    targets: torch.Tensor
    """int64 [targets]: tokens that followed the positions of prompts."""
    sampling_slots: torch.Tensor
    """int64 [entering]"""
    sampling_params: torch.Tensor
    """int64 [entering * PARAMS]"""
    sampling_data: torch.Tensor
    """int32 [rule_data]"""


_STATES = ("state_reads", "state_writes")
_INT64 = ("tokens", "positions", "kv_slots", "row_slots", "logits_indices", "draw_slots", *_STATES)
_INT32 = ("adapter_tokens", "adapter_draws", "query_start", "seq_lens")
_TAIL64 = ("update_at", "logprob_rows", "targets", "sampling_slots", "sampling_params")
_TAIL32 = ("update_to", "sampling_data")
SECTIONS = (*_INT64, *_INT32, *_TAIL64, *_TAIL32)
_SIZES = {**dict.fromkeys((*_INT64, *_TAIL64), 8), **dict.fromkeys((*_INT32, *_TAIL32), 4)}
_NUMPY = {8: np.int64, 4: np.int32}
_TORCH = {8: torch.int64, 4: torch.int32}


Places = dict[str, tuple[int, int]]
"""(begin, end) in bytes of each section."""


@lru_cache(maxsize=256)
def _layout(shape: Shape) -> tuple[Places, int]:
    """The offsets of the sections, and the total bytes."""
    counts = {
        **dict.fromkeys(("tokens", "positions"), shape.tokens),
        "kv_slots": shape.groups * shape.tokens,
        **dict.fromkeys(("row_slots", "seq_lens"), shape.rows),
        **dict.fromkeys(("logits_indices", "draw_slots"), shape.draws),
        **dict.fromkeys(_STATES, shape.state_rows),
        "adapter_tokens": grouped_size(shape.tokens, shape.adapter_slots) if shape.adapter_slots else 0,
        "adapter_draws": grouped_size(shape.draws, shape.adapter_slots) if shape.adapter_slots else 0,
        **dict.fromkeys(("update_at", "update_to"), shape.updates),
        "query_start": shape.rows + 1,
        "logprob_rows": shape.logprob_rows,
        "targets": shape.targets,
        "sampling_slots": shape.entering,
        "sampling_params": shape.entering * PARAMS,
        "sampling_data": shape.sampling_data,
    }
    places: Places = {}
    at = 0
    for name in SECTIONS:
        end = at + counts[name] * _SIZES[name]
        places[name] = (at, end)
        at = -(-end // _ALIGNMENT) * _ALIGNMENT
    return places, at


def staged_bytes(shape: Shape) -> int:
    """Bytes of a step of this shape in a buffer."""
    return _layout(shape)[1]


def view_inputs(buffer: torch.Tensor, shape: Shape) -> Inputs:
    """The sections of a uint8 buffer that holds a step of ``shape``."""
    places, _ = _layout(shape)
    return Inputs(
        **{
            name: buffer.narrow(0, begin, end - begin).view(_TORCH[_SIZES[name]])
            for name, (begin, end) in places.items()
        }
    )


class Staging:
    """Packs a step and sends it to the device."""

    def __init__(self, device: Device, capacity: int) -> None:
        """``capacity``: bytes of a step that graphs can read; a larger one uses buffers of its own."""
        self._device = device
        self._buffer = torch.zeros(capacity, dtype=torch.uint8, device=device.torch_device)
        self._hosts = [device.pinned(capacity, torch.uint8) for _ in range(2)]
        self._sent: list[Mark | None] = [None] * len(self._hosts)
        self._turn = 0
        self._views: dict[Shape, Inputs] = {}

    @property
    def total_bytes(self) -> int:
        """Bytes on the device."""
        return self._buffer.nbytes

    def fits(self, shape: Shape) -> bool:
        """Whether a step of this shape fits into the buffer that graphs read."""
        return staged_bytes(shape) <= len(self._buffer)

    def fixed_inputs(self, shape: Shape) -> Inputs:
        """The sections in the persistent buffer; the same tensors each time."""
        inputs = self._views.get(shape)
        if inputs is None:
            inputs = self._views[shape] = view_inputs(self._buffer, shape)
        return inputs

    def send(self, shape: Shape, sections: Mapping[str, Numbers], memory: StepMemory) -> Inputs:
        """Queue the copy of a step; returns its sections on the device. May wait for the copy before last.

        ``memory`` keeps the buffers of a step that does not fit.
        """
        places, size = _layout(shape)
        if not self.fits(shape):
            host = memory.pinned(size, torch.uint8)
            target = torch.empty(size, dtype=torch.uint8, device=self._device.torch_device)
            memory.keep(target)
            self._pack(target, host, places, size, sections)
            return view_inputs(target, shape)
        turn, self._turn = self._turn, (self._turn + 1) % len(self._hosts)
        if (sent := self._sent[turn]) is not None:
            sent.wait()
        self._pack(self._buffer, self._hosts[turn], places, size, sections)
        self._sent[turn] = self._device.mark()
        return self._views.get(shape) or view_inputs(self._buffer, shape)

    def _pack(
        self, target: torch.Tensor, host: torch.Tensor, places: Places, size: int, sections: Mapping[str, Numbers]
    ) -> None:
        packed = host.numpy()
        for name, (begin, end) in places.items():
            if end > begin:
                packed[begin:end].view(_NUMPY[_SIZES[name]])[:] = sections[name]
        self._device.upload(target[:size], host[:size])
