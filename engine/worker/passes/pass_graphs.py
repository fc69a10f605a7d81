"""The pass of a model over rows with drafts as CUDA graphs, for steps that the host waits for.

The host samples, since it proposes the next drafts from the tokens. So only the pass is a graph: from the tokens of
all rows to their logits, and to the hidden states that a draft head reads.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from stentor.protocols.ipc.steps import NewRow, RowStep

from ...layers.forward_batch import ForwardBatch, LayerCache, MixerInputs, Taps
from ...models.decoder import Decoder
from ..device.device import Device
from ..device.graphs import Body, GraphCapture, GraphSize, StepGraphs
from ..device.pinned import PinnedPool
from ..device.staging import Inputs, Numbers, Shape, Staging, staged_bytes
from ..rows.rows import RowTable
from ..rows.states import RowStates
from .device_step import DeviceStep, RowBuffers
from .prepare_inputs import pad_drafted

_MORE_UPDATES = 1 << 16
"""Changed entries of block tables for which a step has room, besides one a row: those of entering rows."""


class GraphsOf(Protocol):
    """:class:`PassGraphs` of given sizes on a given device."""

    def __call__(
        self,
        model: Decoder,
        caches: Sequence[LayerCache],
        rows: RowTable,
        *,
        states: RowStates | None = None,
        keeps_hidden: bool = False,
        taps: tuple[int, ...] = (),
    ) -> "PassGraphs": ...


def advance_all(graphs: Sequence["PassGraphs"], *, busy: bool) -> float | None:
    """:meth:`PassGraphs.advance` of the first that can; None if all are captured."""
    waits: list[float] = []
    for each in graphs:
        seconds = each.advance(busy=busy)
        if seconds is not None:
            waits.append(seconds)
            if not seconds:
                break
    return min(waits, default=None)


class Replayed(NamedTuple):
    """The results of a graph, in tensors that the next one overwrites."""

    logits: torch.Tensor
    """float32 [tokens, vocabulary]"""
    hidden: torch.Tensor | None
    """[tokens, hidden], if they are kept."""
    taps: torch.Tensor | None
    """[tokens, layers · hidden]: the stream before the tapped layers, if there are any."""


class PassGraphs:
    """Graphs of a pass over rows of up to ``query_len`` tokens, by the number of tokens of all rows.

    The last block of the caches is the null block, which padding writes; the scheduler does not know of it.
    """

    def __init__(
        self,
        model: Decoder,
        caches: Sequence[LayerCache],
        rows: RowTable,
        device: Device,
        capture: GraphCapture,
        max_model_len: int,
        *,
        states: RowStates | None = None,
        keeps_hidden: bool = False,
        taps: tuple[int, ...] = (),
    ) -> None:
        """
        Args:
            rows: the tokens and blocks of all rows.
            capture: the graphs that :meth:`advance` captures, at least one; the first is the largest.
            states: of the rows, if the model has recurrent states.
            keeps_hidden: return hidden states.
            taps: layers before which the stream is copied.
        """
        self._rows = rows
        self._caches = caches
        self._max_seq_len = max_model_len
        self.largest = capture.sizes[0]
        self.keeps_hidden = keeps_hidden
        self._taps = taps
        self._hidden: torch.Tensor | None = None
        self._tapped: torch.Tensor | None = None
        """Made in the first run of the largest size."""
        self._states = states
        self._mixed = MixerInputs(None, buffers=[])
        """The inputs of recurrent mixers in the last pass; likewise."""
        groups, slots, columns = rows.blocks.shape
        self._sent = [0] * slots
        """How many blocks of each row the device's tables have."""
        self._null_block = caches[0].k.shape[0] - 1
        most = self.largest.tokens
        place = device.torch_device
        self._buffers = RowBuffers.make(slots, most, columns, model.config.vocab_size, self._null_block, place, groups)
        self._step = DeviceStep(model, caches, self._buffers, None, max_model_len, states)
        self._pinned = PinnedPool(device)
        self._staging = Staging(device, staged_bytes(self._shape(most, groups * most + _MORE_UPDATES)))
        self._graphs = StepGraphs(device, capture, self.warm, self._bodies)

    @property
    def captured(self) -> list[GraphSize]:
        """The sizes captured so far, ascending by tokens."""
        return self._graphs.captured

    @property
    def buffer_bytes(self) -> int:
        """Device memory of tensors that outlive a pass."""
        kept = [each for each in (self._hidden, self._tapped, *(self._mixed.buffers or ())) if each is not None]
        total: int = self._buffers.total_bytes + self._staging.total_bytes + sum(each.nbytes for each in kept)
        return total

    def enter(self, new: Sequence[NewRow]) -> None:
        """Note rows that enter; the block tables of their slots are sent anew."""
        for row in new:
            self._sent[row.slot] = 0

    def run(self, rows: Sequence[RowStep]) -> Replayed | None:
        """Queue a pass over rows whose tokens and blocks are in the table; None if no graph fits."""
        if max(row.count for row in rows) > self.largest.query_len:
            return None
        tokens = sum(row.count for row in rows)
        graph = self._graphs.graph_for(tokens)
        if graph is None:
            return None
        at, to = self._updates(rows)
        shape = self._shape(graph.size.tokens, len(at))
        if not self._staging.fits(shape):
            return None
        inputs = self._send(rows, graph.size, at, to)
        for row in rows:
            self._sent[row.slot] = self._rows.block_count(row.slot)
        graph.forward.replay()
        if self._states is not None:
            every = self._states.batch(
                inputs.query_start, inputs.state_reads, inputs.state_writes, graph.size.query_len, self._mixed
            )
            self._states.recorded(ForwardBatch(inputs.tokens, inputs.positions, self._caches, states=every))
        return Replayed(
            self._buffers.logits.narrow(0, 0, tokens),
            None if self._hidden is None else self._hidden.narrow(0, 0, tokens),
            None if self._tapped is None else self._tapped.narrow(0, 0, tokens),
        )

    @torch.inference_mode()
    def advance(self, *, busy: bool) -> float | None:
        """Do a piece of work towards capturing a graph; returns seconds until the next, None if all are captured.

        Call it between steps: it overwrites their results.
        """
        return self._graphs.advance(busy=busy)

    @torch.inference_mode()
    def warm(self, size: GraphSize) -> None:
        """Queue a padding-only pass of this size, as its graph will run it."""
        self._send([], size, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))
        self._bodies(size)[0]()

    def _updates(self, rows: Sequence[RowStep]) -> tuple[Numbers, Numbers]:
        """The entries of the device's flat tables that these rows lack, and the blocks there."""
        groups, slots, columns = self._rows.blocks.shape
        at: list[Numbers] = [np.zeros(0, dtype=np.int64)]
        to: list[Numbers] = [np.zeros(0, dtype=np.int32)]
        for row in rows:
            first, end = self._sent[row.slot], self._rows.block_count(row.slot)
            for group in range(groups if end > first else 0):
                begin = (group * (slots + 1) + row.slot) * columns
                at.append(np.arange(begin + first, begin + end, dtype=np.int64))
                to.append(self._rows.blocks[group, row.slot, first:end])
        return np.concatenate(at), np.concatenate(to)

    def _send(self, rows: Sequence[RowStep], size: GraphSize, at: Numbers, to: Numbers) -> Inputs:
        """Queue the copy of a padded pass, and the changes to the tables; returns what the graph reads."""
        slots = self._rows.blocks.shape[1]
        sections = pad_drafted(rows, self._rows, size, null_slot=slots, null_block=self._null_block)
        if self._states is not None:
            places = np.full((2, size.rows), -1, dtype=np.int64)
            if rows:
                places[:, : len(rows)] = self._states.places(rows, sections["query_start"])
            sections |= {"state_reads": places[0], "state_writes": places[1]}
        shape = self._shape(size.tokens, len(at))
        inputs = self._staging.send(shape, {**sections, "update_at": at, "update_to": to}, self._pinned.step())
        if len(at):
            self._step.update_tables(inputs)
        return inputs

    def _shape(self, tokens: int, updates: int = 0) -> Shape:
        states = 0 if self._states is None else tokens
        groups = len(self._rows.blocks)
        return Shape(rows=tokens, tokens=tokens, draws=0, updates=updates, groups=groups, state_rows=states)

    def _bodies(self, size: GraphSize) -> tuple[Body, None]:
        shape = self._shape(size.tokens)
        inputs = self._staging.fixed_inputs(shape)

        def body() -> None:
            tapped = Taps(self._taps)
            self._mixed.found.clear()
            hidden = self._step.forward(
                inputs,
                shape,
                decode_rows=size.decodes,
                max_query_len=size.query_len,
                max_seq_len=self._max_seq_len,
                query_len=size.query_len,
                taps=tapped if self._taps else None,
                mixed=None if self._states is None else self._mixed,
            )
            if self.keeps_hidden:
                self._hidden = _kept(self._hidden, hidden)
            if self._taps:
                self._tapped = _kept(self._tapped, torch.cat(tapped.found, dim=1))
            self._step.logits(hidden, inputs, shape)

        return body, None


def _kept(buffer: torch.Tensor | None, values: torch.Tensor) -> torch.Tensor:
    """Copy ``values`` to the first rows of ``buffer``; returns it. Without a buffer, one of that size is made."""
    buffer = torch.empty_like(values) if buffer is None else buffer
    buffer.narrow(0, 0, len(values)).copy_(values)
    return buffer
