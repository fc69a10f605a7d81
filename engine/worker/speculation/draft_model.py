"""Drafts sampled by a smaller model or a head, whose cache shares the blocks of the verifying model."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from stentor.protocols.ipc.steps import NewRow, RowStep

from ...layers.forward_batch import LayerCache
from ...models.decoder import Decoder
from ...models.draft_head import DraftHead
from ..passes.model_pass import ModelPass, PassResult
from ..rows.rows import RowTable
from ..sampling.sampler import Sampler


class ProposingModel(msgspec.Struct, frozen=True):
    """A draft model or a draft head."""

    model: Decoder | DraftHead
    caches: Sequence[LayerCache]
    """Caches of its layers, in the verifying model's blocks."""
    most: int
    """Most tokens that it proposes for a row at once."""


class DraftPass(Protocol):
    """Runs the draft model over rows of the table."""

    def run(self, rows: Sequence[RowStep], drafts: Sequence[int]) -> PassResult:
        """Run rows; returns logits of the last token of each row that samples. ``drafts``: how many tokens each row
        drafts from there, counting :meth:`go_on`'s."""

    def go_on(self, rows: Sequence[RowStep]) -> PassResult:
        """Run rows of one token each, directly behind the token that they sampled last."""

    def remove(self, slot: int) -> None:
        """Forget the row of this slot."""


class PlainPass:
    """The pass of a draft model, which needs tokens only."""

    def __init__(self, model: ModelPass) -> None:
        self.go_on = model.run

    def run(self, rows: Sequence[RowStep], drafts: Sequence[int]) -> PassResult:
        return self.go_on(rows)

    def remove(self, slot: int) -> None:
        pass


class DraftModel:
    """See :class:`.proposer.Proposer` and :class:`.row_drafts.Follower`: one pass a draft, for all rows together.

    A draft is sampled with the noise, the temperature, the cuts and the penalties of the verifying model at its
    position. If both models give the same logits, it is accepted at any temperature.

    The draft's keys and values lie in the same blocks, at the same positions, as the verifying model's. They are
    written: for prompts in the step that computes these; for a row's tokens before it drafts; otherwise once a row is a
    block behind, or leaves. So blocks that a later prompt finds hold them too.

    A head is one position behind: it runs where the verifying model has run, and knows the token that follows.
    """

    def __init__(self, model: DraftPass, rows: RowTable, sampler: Sampler, most: int, *, behind: int = 0) -> None:
        """``rows`` and ``sampler`` are the verifying model's. ``behind``: 1 for a head."""
        self.most = most
        self._model = model
        self._rows = rows
        self._sampler = sampler
        slots, width = rows.tokens.shape
        self._behind = behind
        self._longest: int = width - 1
        self._lengths = [0] * slots
        """Tokens of each row; 0 while the slot is free."""
        self._computed: list[int | None] = [None] * slots
        """Positions with draft keys; None until the row's first step says where it begins."""
        self._written = [0] * slots
        """Positions with keys of the verifying model."""
        self._right: dict[int, int] = {}
        """Accepted drafts in the step whose tokens the row has not been given."""
        self._due: dict[int, int] = {}
        """Ends of rows that must be computed besides those that draft."""

    def enter(self, new: NewRow) -> None:
        slot = new.slot
        self._lengths[slot] = len(new.tokens)
        self._computed[slot], self._written[slot] = None, 0

    def remove(self, slot: int) -> None:
        self._lengths[slot] = 0
        self._computed[slot] = None
        self._right.pop(slot, None)
        self._model.remove(slot)

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        length, computed = self._lengths[slot], self._computed[slot]
        if computed is not None:
            right = self._right.pop(slot, 0)
            # a head computes the keys of drafts from its own outputs, and again from the model's hidden states
            self._computed[slot] = min(computed, length - 1 if self._behind else length + right)
        self._lengths[slot] = length + len(tokens)
        self._written[slot] = self._lengths[slot] - 1

    def verified(self, slot: int, drafted: int, accepted: int) -> None:
        self._right[slot] = accepted

    def follow(self, rows: Sequence[RowStep]) -> None:
        for row in rows:
            slot, length = row.slot, self._lengths[row.slot]
            if not length:
                continue
            if (computed := self._computed[slot]) is None:
                computed = self._computed[slot] = self._written[slot] = row.start
            is_prompt = not row.sample or row.count > 1
            reach = row.start + row.count if is_prompt else length
            end = self._written[slot] if self._behind else reach
            if is_prompt or end - computed > self._rows.block_size:
                self._due[slot] = end
            if is_prompt:
                self._written[slot] = reach

    def leave(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if self._computed[slot] is not None:
                self._due[slot] = self._written[slot]
        self._pass({})

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        counts = {slot: count for slot, most in wanted.items() if (count := min(most, self._room(slot))) > 0}
        found = {slot: [token] for slot, token in self._pass(counts).items()}
        tokens = self._rows.tokens
        for behind in range(1, max(counts.values(), default=0)):
            steps = []
            for slot, drafts in found.items():
                if counts[slot] > behind:
                    end = self._lengths[slot] + behind
                    tokens[slot, end - 1] = drafts[-1]
                    steps.append(RowStep(slot, end - 1 - self._behind, 1, [], True))
                    self._computed[slot] = end - self._behind
            if not steps:
                break
            for slot, token in self._drawn(steps, self._model.go_on(steps)).items():
                found[slot].append(token)
        for slot, drafts in found.items():
            self._sampler.take_back(slot, drafts)
        return found

    def _room(self, slot: int) -> int:
        """Drafts for which the row's blocks have space; the last needs none."""
        end = min(self._rows.block_count(slot) * self._rows.block_size, self._longest)
        return end + 1 - self._lengths[slot]

    def _pass(self, drafting: Mapping[int, int]) -> dict[int, int]:
        """Compute what rows lack, as far as due, and to the end for rows that draft; returns their first drafts."""
        ends = {**self._due, **{slot: self._lengths[slot] - self._behind for slot in drafting}}
        self._due = {}
        steps = []
        for slot, end in ends.items():
            start = self._computed[slot]
            if start is not None and start < end:
                steps.append(RowStep(slot, start, end - start, [], slot in drafting))
                self._computed[slot] = end
        drafts = [drafting.get(step.slot, 0) for step in steps]
        return self._drawn(steps, self._model.run(steps, drafts)) if steps else {}

    def _drawn(self, steps: Sequence[RowStep], passed: PassResult) -> dict[int, int]:
        """The tokens sampled in a pass, by slot."""
        slots = [step.slot for step in steps if step.sample]
        if passed.logits is None:
            return {}
        return dict(zip(slots, self._sampler.draft(passed.logits, slots, passed.best), strict=True))
