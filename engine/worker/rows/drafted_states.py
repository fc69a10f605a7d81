"""Corrects the recurrent states of rows with drafts after verification."""

import time
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from stentor import kernels
from stentor.protocols.ipc.steps import RowStep, StepResult

from ...layers.forward_batch import ForwardBatch, MixerInputs, StateBatch
from ...layers.linear.adapters import rows_among
from .rows import Int64


class _Row(msgspec.Struct, frozen=True):
    """A row with drafts in the current step."""

    sampled: int
    """Its index among the rows that sample, in the step's plan."""
    start: int
    """Its first token in the batch."""
    count: int
    """Its tokens: its own and the drafts."""
    before: int
    """The place of the state before them."""
    slot: int
    """The engine's slot for the state behind them."""


class DraftedStates:
    """Handles rows whose drafts may be refused.

    A row with drafts writes its state to a spare place, and the former state stays. If all drafts are accepted, the
    spare place holds the new state. If not, the mixers run again over their inputs of the accepted tokens, from the
    former state. Then the places of the slot and the spare are exchanged; nothing is copied.

    A mixer's inputs follow from the tokens, and only the mixer changes a state, so a refused draft costs no matrix
    product.
    """

    def __init__(self, num_states: int, spares: int, device: torch.device) -> None:
        """``spares``: most rows of a step; their places follow those of the ``num_states`` slots."""
        self._places = np.append(np.arange(num_states), -1)
        """Place by slot. The last entry is for slot -1, no state."""
        self._spares = np.arange(num_states, num_states + spares)
        self._device = device
        self._rows: list[_Row] = []
        self._sampled: dict[int, int] = {}
        """By slot of a row that samples in the current step: its index among these in the plan."""
        self._batch: ForwardBatch | None = None
        """The forward batch of the current step, if rows have drafts in it."""

    def place_of(self, slot: int) -> int:
        """The place of a slot's state on the device. Numbers below 0, places in host memory, are returned unchanged."""
        return int(self._places[slot]) if slot >= 0 else slot

    def enter(self, rows: Sequence[RowStep]) -> None:
        """Take the rows of the step's plan, whose result has their order. The pass may run them in another."""
        self._sampled = {row.slot: number for number, row in enumerate(row for row in rows if row.sample)}

    def begin(
        self, rows: Sequence[RowStep], starts: npt.NDArray[np.int32], reads: Int64, writes: Int64
    ) -> tuple[Int64, Int64]:
        """The (read, written) places of a step's slots.

        ``starts``: each row's first token in the batch.
        """
        self._rows = []
        before, after = self._places[reads], self._places[writes]
        for number, row in enumerate(rows):
            if row.num_drafts:
                after[number] = self._spares[len(self._rows)]
                sampled, start = self._sampled[row.slot], int(starts[number])
                self._rows.append(_Row(sampled, start, row.count, int(before[number]), int(writes[number])))
        return before, after

    def recorder(self) -> MixerInputs | None:
        """Records the mixers' inputs of the step's rows with drafts; None if there are none."""
        tokens = [token for row in self._rows for token in range(row.start, row.start + row.count)]
        return MixerInputs(torch.tensor(tokens, device=self._device)) if tokens else None

    def note(self, batch: ForwardBatch) -> None:
        """Take the forward batch of the step, whose ``states`` have recorded the mixers' inputs."""
        self._batch = batch

    @torch.inference_mode()
    def settle(self, result: StepResult, of_layer: Mapping[int, Sequence[torch.Tensor]]) -> StepResult:
        """Correct the states after the step; returns its result with this time added."""
        rows, self._rows = self._rows, []
        if not rows:
            return result
        began = time.perf_counter()
        assert result.counts is not None, "rows had drafts, and nobody says how many were right"
        lengths, reads, writes, again = [], list[int](), list[int](), list[int]()
        for place, row in enumerate(rows):
            gained = result.counts[row.sampled]
            if gained < row.count:
                lengths.append(gained)
                reads.append(row.before)
                writes.append(int(self._spares[place]))
                again += range(row.start, row.start + gained)
        if again:
            self._run_again(kernels.StateRows.of(lengths, reads, writes, self._device), again, of_layer)
        for place, row in enumerate(rows):
            self._places[row.slot], self._spares[place] = self._spares[place], self._places[row.slot]
        self._batch = None
        return msgspec.structs.replace(result, seconds=result.seconds + time.perf_counter() - began)

    def _run_again(
        self, rows: kernels.StateRows, tokens: list[int], of_layer: Mapping[int, Sequence[torch.Tensor]]
    ) -> None:
        batch = self._batch
        assert batch is not None
        assert batch.states is not None
        assert batch.states.inputs is not None
        assert isinstance(batch.tokens, torch.Tensor)
        chosen = torch.tensor(tokens, device=self._device)
        adapters = rows_among(batch.adapter_rows, chosen, len(batch.tokens))
        again = replace(batch, states=StateBatch(rows, of_layer), adapter_rows=adapters)
        at = batch.states.inputs.rows_of(chosen)
        for mix, parts in batch.states.inputs.found:
            mix(parts.index_select(0, at), again)
