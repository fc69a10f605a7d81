"""One copy a step from host to device: everything that a step brings, packed into one pinned buffer.

A buffer is a run of sections, each of one dtype, in the order of :data:`SECTIONS` and aligned for vector
loads. Where they begin follows from their lengths (:class:`Shape`) alone, and what only some steps bring
(``update_at`` and all after it) comes last, so a captured graph finds the sections that it reads where
they were when it was captured.

Two pinned buffers take turns, because the copy from one may still wait behind a running step while the next
step is packed. On the device one buffer is enough: copies and kernels run in the order of the stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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


@dataclass(frozen=True)
class Shape:
    """How long the sections of a step are."""

    rows: int
    tokens: int
    draws: int
    """Rows whose token is drawn, padding included."""
    updates: int = 0
    """Entries of block tables that changed."""
    logprob_rows: int = 0
    """Draws whose log-probability is wanted."""
    targets: int = 0
    """Prompt tokens whose log-probability is wanted."""
    entering: int = 0
    """Rows whose sampling parameters are brought."""
    sampling_data: int = 0
    """Numbers in the lines of the sampler's large tables."""
    groups: int = 1
    """Of layers, with block tables of their own."""
    state_rows: int = 0
    """Rows with recurrent states: all or none."""
    adapter_slots: int = 0
    """Of tables of adapters; 0: no row has one."""


@dataclass(frozen=True)
class Inputs:
    """The sections of one step, on the device."""

    tokens: torch.Tensor
    """int64 [tokens]; -1 stands for the token that the row drew last."""
    positions: torch.Tensor
    """int64 [tokens]"""
    kv_slots: torch.Tensor
    """int64 [groups * tokens]: where each token's key and value go, by group of layers."""
    row_slots: torch.Tensor
    """int64 [rows]; the null row for padding."""
    logits_indices: torch.Tensor
    """int64 [draws]: index of the last token of each row that draws one."""
    draw_slots: torch.Tensor
    """int64 [draws]; -1 for padding."""
    state_reads: torch.Tensor
    """int64 [state_rows]: the slot with the row's recurrent state before the step; -1: it begins with none."""
    state_writes: torch.Tensor
    """int64 [state_rows]: the slot that gets its state after the step; -1 for padding."""
    adapter_tokens: torch.Tensor
    """int32: :class:`..layers.adapters.RowGroups` of the tokens, where rows have adapters."""
    adapter_draws: torch.Tensor
    """int32: those of the draws."""
    query_start: torch.Tensor
    """int32 [rows + 1]"""
    seq_lens: torch.Tensor
    """int32 [rows]; 0 for padding."""
    update_at: torch.Tensor
    """int64 [updates]: index into the flat block tables."""
    update_to: torch.Tensor
    """int32 [updates]: the blocks that go there."""
    logprob_rows: torch.Tensor
    """int64 [logprob_rows]: which of the draws."""
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
    """Where the sections lie, and the bytes in all."""
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
    """Bytes that a step of this shape takes in a buffer."""
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
        """``capacity`` is bytes of a step that graphs may read; a larger one travels in buffers of its own."""
        self._device = device
        self._buffer = torch.zeros(capacity, dtype=torch.uint8, device=device.torch_device)
        self._hosts = [device.pinned(capacity, torch.uint8) for _ in range(2)]
        self._sent: list[Mark | None] = [None] * len(self._hosts)
        self._turn = 0
        self._views: dict[Shape, Inputs] = {}

    @property
    def total_bytes(self) -> int:
        """On the device."""
        return self._buffer.nbytes

    def fits(self, shape: Shape) -> bool:
        """Whether a step of this shape lands where graphs read."""
        return staged_bytes(shape) <= len(self._buffer)

    def fixed_inputs(self, shape: Shape) -> Inputs:
        """The sections in the buffer that stays; the same tensors each time."""
        inputs = self._views.get(shape)
        if inputs is None:
            inputs = self._views[shape] = view_inputs(self._buffer, shape)
        return inputs

    def send(self, shape: Shape, sections: Mapping[str, Numbers], memory: StepMemory) -> Inputs:
        """Queues the copy of a step; returns its sections on the device. Waits, if need be, for the copy before last.

        ``memory`` gets what a step that does not fit must keep until it is done.
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
