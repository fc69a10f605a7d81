"""Passes of a head that drafts, and the hidden states that rows have left for it."""

import copy
from collections.abc import Sequence

import torch

from stentor.protocols.ipc.steps import RowStep

from ...layers.forward_batch import LayerCache
from ...models.draft_head import DraftHead
from ..batch import build_batch
from ..model_pass import Passed
from ..rows import RowTable


class HeadPass:
    """At a position the head gets the model's hidden state there and the token behind it, and guesses the one after.

    See :class:`.draft_model.DraftPass`. A row's hidden states wait here until they are computed.
    """

    def __init__(self, head: DraftHead, caches: Sequence[LayerCache], rows: RowTable, device: torch.device) -> None:
        self._head = head
        self._caches = caches
        self._device = device
        self._rows = copy.copy(rows)
        self._rows.tokens = rows.tokens[:, 1:]
        self._waiting: dict[int, tuple[int, torch.Tensor]] = {}
        """By slot: the position of the first, and features [positions, …]. Those behind the row's end are of drafts
        that were refused."""
        self._left: dict[int, torch.Tensor] = {}
        """By slot: what the layer left [hidden] at the last position of a row that drafts, as it is fed back."""

    def observed(self, rows: Sequence[RowStep], passed: Passed) -> None:
        """The model has computed these rows."""
        if passed.states is None:
            return
        starts, hidden = passed.states
        features = self._head.features(hidden, passed.taps)
        for row, at in zip(rows, starts, strict=True):
            new = features[at : at + row.count].clone()
            first, known = self._waiting.get(row.slot, (row.start, new[:0]))
            self._waiting[row.slot] = first, torch.cat((known[: row.start - first], new))

    def remove(self, slot: int) -> None:
        self._waiting.pop(slot, None)
        self._left.pop(slot, None)

    def run(self, rows: Sequence[RowStep]) -> Passed:
        """Over positions whose hidden states wait."""
        parts = []
        for row in rows:
            first, features = self._waiting[row.slot]
            end = row.start + row.count - first
            parts.append(features[row.start - first : end])
            self._waiting[row.slot] = first + end, features[end:]
        return self._passed(rows, self._head.combined(torch.cat(parts)))

    def go_on(self, rows: Sequence[RowStep]) -> Passed:
        """Of each row the token behind the last of the pass before, by what the layer left there."""
        return self._passed(rows, torch.stack([self._left[row.slot] for row in rows]))

    def _passed(self, rows: Sequence[RowStep], hidden: torch.Tensor) -> Passed:
        batch = build_batch(rows, self._rows, self._caches, self._device)
        left = self._head.forward(batch.forward, hidden)
        if not len(batch.last):
            return Passed()
        last = left[batch.last]
        fed_back = self._head.fed_back(last)
        for row, each in zip((row for row in rows if row.sample), fed_back, strict=True):
            self._left[row.slot] = each
        return Passed(self._head.logits(last))
