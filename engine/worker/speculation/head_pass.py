"""Passes of a draft head, and the hidden states that rows have left for it."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from stentor.protocols.ipc.steps import RowStep

from ...layers.forward_batch import LayerCache
from ...models.draft_head import DraftHead
from ..passes.model_pass import PassResult
from ..rows.batch import build_batch
from ..rows.rows import RowTable


class HeadPass:
    """Runs a draft head: from the model's hidden state at a position and the token behind it, it predicts the one
    after.

    See :class:`.draft_model.DraftPass`. Hidden states of rows are kept until they are computed.
    """

    def __init__(self, head: DraftHead, caches: Sequence[LayerCache], rows: RowTable, device: torch.device) -> None:
        self._head = head
        self._caches = caches
        self._device = device
        self._rows = copy.copy(rows)
        self._rows.tokens = rows.tokens[:, 1:]
        self._waiting: dict[int, tuple[int, torch.Tensor]] = {}
        """By slot: the first position, and features [positions, …]. Those behind the row's end are of refused
        drafts."""
        self._left: dict[int, torch.Tensor] = {}
        """By slot: the layer's output [hidden] at the last position of a row that drafts, which is fed back."""

    def observed(self, rows: Sequence[RowStep], passed: PassResult) -> None:
        """Keep the model's hidden states of these rows."""
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

    def run(self, rows: Sequence[RowStep]) -> PassResult:
        """Run positions whose hidden states are kept."""
        parts = []
        for row in rows:
            first, features = self._waiting[row.slot]
            end = row.start + row.count - first
            parts.append(features[row.start - first : end])
            self._waiting[row.slot] = first + end, features[end:]
        return self._passed(rows, self._head.combined(torch.cat(parts)))

    def go_on(self, rows: Sequence[RowStep]) -> PassResult:
        """Run the token behind each row's last one, with the layer's output there."""
        return self._passed(rows, torch.stack([self._left[row.slot] for row in rows]))

    def _passed(self, rows: Sequence[RowStep], hidden: torch.Tensor) -> PassResult:
        batch = build_batch(rows, self._rows, self._caches, self._device)
        left = self._head.forward(batch.forward, hidden)
        if not len(batch.last):
            return PassResult()
        last = left[batch.last]
        fed_back = self._head.fed_back(last)
        for row, each in zip((row for row in rows if row.sample), fed_back, strict=True):
            self._left[row.slot] = each
        return PassResult(self._head.logits(last))


class AssistantPass:
    """Runs a head that attends to the model's keys: all drafts of a row from its last position with keys.

    See :class:`HeadPass`. It keeps the hidden states of a row's last step alone, and computes nothing for rows that do
    not draft.
    """

    def __init__(self, head: DraftHead, caches: Sequence[LayerCache], rows: RowTable, device: torch.device) -> None:
        """``caches``: the model's."""
        self._head = head
        self._caches = caches
        self._rows = rows
        self._device = device
        self._last: dict[int, tuple[int, torch.Tensor]] = {}
        """By slot: the position of the last step's last token but for drafts, and hidden states from it on."""
        self._drafting: dict[int, tuple[int, torch.Tensor]] = {}
        """By slot: the position that drafts, and what is fed back."""

    def observed(self, rows: Sequence[RowStep], passed: PassResult) -> None:
        """Keep the model's hidden states of these rows."""
        if passed.states is None:
            return
        starts, hidden = passed.states
        for row, at in zip(rows, starts, strict=True):
            before = row.count - 1 - row.num_drafts
            features = self._head.features(hidden[at + before : at + row.count], None)
            self._last[row.slot] = row.start + before, features

    def remove(self, slot: int) -> None:
        self._last.pop(slot, None)
        self._drafting.pop(slot, None)

    def run(self, rows: Sequence[RowStep]) -> PassResult:
        """Run the last position of each row that drafts."""
        drafting = [row for row in rows if row.sample]
        for row in drafting:
            first, features = self._last[row.slot]
            position = row.start + row.count - 1
            self._drafting[row.slot] = position, features[position - first]
        return self._passed(drafting, [row.start + row.count for row in drafting])

    def go_on(self, rows: Sequence[RowStep]) -> PassResult:
        """Run the same positions with the token behind each row's last one, and what was fed back."""
        return self._passed(rows, [row.start + 1 for row in rows])

    def _passed(self, rows: Sequence[RowStep], following: Sequence[int]) -> PassResult:
        """``following``: positions of the tokens that rows take."""
        if not rows:
            return PassResult()
        positions, fed = zip(*(self._drafting[row.slot] for row in rows), strict=True)
        steps = [RowStep(row.slot, position, 1, [], True) for row, position in zip(rows, positions, strict=True)]
        forward = build_batch(steps, self._rows, self._caches, self._device).forward
        tokens = torch.from_numpy(self._rows.tokens[[row.slot for row in rows], following]).to(self._device)
        # queries are rotated to the place of the row's last token, which has no keys yet
        forward = replace(forward, tokens=tokens, positions=forward.positions + 1)
        left = self._head.forward(forward, torch.stack(fed))
        for row, position, back in zip(rows, positions, self._head.fed_back(left), strict=True):
            self._drafting[row.slot] = position, back
        return PassResult(self._head.logits(left))
