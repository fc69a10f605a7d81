"""Passes of a draft head, and the hidden states that rows have left for it."""

import copy
from collections.abc import Sequence

import torch
from msgspec.structs import replace

from stentor.kernels import WholeSpan
from stentor.protocols.ipc.steps import RowStep

from ...layers.forward_batch import LayerCache
from ...model_config.hf.draft_head import DraftHeadSpec
from ...models.draft_head import DraftHead
from ..passes.model_pass import PassResult
from ..rows.batch import build_batch
from ..rows.rows import RowTable


class _FeaturePass:
    """What runs a head keeps the model's hidden states at positions that the head has not computed yet.

    See :class:`.draft_model.DraftPass`.
    """

    def __init__(self, head: DraftHead, caches: Sequence[LayerCache], rows: RowTable, device: torch.device) -> None:
        self._head = head
        self._caches = caches
        self._rows = rows
        self._device = device
        self._waiting: dict[int, tuple[int, torch.Tensor]] = {}
        """By slot: the first position, and features [positions, …]. Those behind the row's end are of refused
        drafts."""

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
        """Forget the row of this slot."""
        self._waiting.pop(slot, None)

    def _take(self, rows: Sequence[RowStep]) -> torch.Tensor:
        """The features of these rows, concatenated; they are not kept."""
        parts = []
        for row in rows:
            first, features = self._waiting[row.slot]
            end = row.start + row.count - first
            parts.append(features[row.start - first : end])
            self._waiting[row.slot] = first + end, features[end:]
        return torch.cat(parts)


def _one_ahead(rows: RowTable) -> RowTable:
    """The rows with the token behind each position in its place."""
    ahead = copy.copy(rows)
    ahead.tokens = rows.tokens[:, 1:]
    return ahead


class _Drafted:
    """The logits of all drafts of a pass."""

    def __init__(self) -> None:
        self._logits: dict[int, tuple[int, torch.Tensor]] = {}
        """By slot: the position of the first draft, and logits [drafts, vocabulary]."""

    def remove(self, slot: int) -> None:
        self._logits.pop(slot, None)

    def keep(self, rows: Sequence[RowStep], logits: Sequence[torch.Tensor]) -> PassResult:
        """Keep the ``logits`` [drafts, vocabulary] of each row; returns those of first drafts."""
        for row, of_row in zip(rows, logits, strict=True):
            self._logits[row.slot] = row.start + row.count + 1, of_row
        return PassResult(torch.stack([of_row[0] for of_row in logits]))

    def behind(self, rows: Sequence[RowStep]) -> PassResult:
        """The logits behind each row's last draft."""
        found = []
        for row in rows:
            first, logits = self._logits[row.slot]
            # the token that is predicted stands two behind the position of a head
            found.append(logits[row.start + 2 - first])
        return PassResult(torch.stack(found))


class HeadPass(_FeaturePass):
    """Runs a draft head: from the model's hidden state at a position and the token behind it, it predicts the one
    after."""

    def __init__(self, head: DraftHead, caches: Sequence[LayerCache], rows: RowTable, device: torch.device) -> None:
        super().__init__(head, caches, _one_ahead(rows), device)
        self._left: dict[int, torch.Tensor] = {}
        """By slot: the layer's output [hidden] at the last position of a row that drafts, which is fed back."""

    def remove(self, slot: int) -> None:
        super().remove(slot)
        self._left.pop(slot, None)

    def run(self, rows: Sequence[RowStep], drafts: Sequence[int]) -> PassResult:
        """Run positions whose hidden states are kept."""
        return self._passed(rows, self._head.combined(self._take(rows)))

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


class BlockPass(_FeaturePass):
    """Runs a head that drafts blocks: all drafts of a row in one pass over its last token and masks behind it.

    A block's keys and values are not kept, so it may reach beyond the row's blocks of the cache.
    """

    def __init__(self, head: DraftHead, caches: Sequence[LayerCache], rows: RowTable, device: torch.device) -> None:
        super().__init__(head, caches, rows, device)
        self._drafted = _Drafted()

    def remove(self, slot: int) -> None:
        super().remove(slot)
        self._drafted.remove(slot)

    def run(self, rows: Sequence[RowStep], drafts: Sequence[int]) -> PassResult:
        """Write the keys of positions whose hidden states are kept; run the blocks of rows that sample."""
        context = build_batch(rows, self._rows, self._caches, self._device).forward
        self._head.keep(context, self._take(rows))
        drafting = [number for number, row in enumerate(rows) if row.sample]
        if not drafting:
            return PassResult()
        size = self._head.spec.block
        asking = [rows[at] for at in drafting]
        slots, starts = zip(*((row.slot, row.start + row.count) for row in asking), strict=True)
        tokens = torch.full((len(slots), size), self._head.spec.mask_token)
        tokens[:, 0] = torch.from_numpy(self._rows.tokens[slots, starts])
        positions = torch.tensor(starts)[:, None] + torch.arange(size)
        spans = [
            WholeSpan(number * size, size, sequence, start)
            for number, (sequence, start) in enumerate(zip(drafting, starts, strict=True))
        ]
        batch = replace(
            context,
            tokens=tokens.flatten().to(self._device),
            positions=positions.flatten().to(self._device),
            drafted=spans,
        )
        hidden = self._head.block(batch).unflatten(0, (-1, size))
        counts = [drafts[at] for at in drafting]
        first = 0 if self._head.spec.anchored else 1
        wanted = [of_row[first : first + count] for of_row, count in zip(hidden, counts, strict=True)]
        found = self._drafted.keep(asking, self._head.logits(torch.cat(wanted)).split(counts))
        return self._behind(slots, starts, found)

    def go_on(self, rows: Sequence[RowStep]) -> PassResult:
        """The logits behind each row's last draft, which :meth:`run` made."""
        slots, lasts = [row.slot for row in rows], [row.start + 1 for row in rows]
        return self._behind(slots, lasts, self._drafted.behind(rows))

    def _behind(self, slots: Sequence[int], lasts: Sequence[int], found: PassResult) -> PassResult:
        """The logits with what the token before adds; ``lasts``: its position in each slot."""
        if not self._head.spec.markov_rank or found.logits is None:
            return found
        before = torch.from_numpy(self._rows.tokens[slots, lasts]).to(self._device)
        return PassResult(found.logits + self._head.transition(before))


class MaskPass(_FeaturePass):
    """Runs a head that drafts in parallel: one pass over what a row lacks and masks behind it, a draft each.

    Keys of masks are overwritten as those of drafts are.
    """

    def __init__(self, head: DraftHead, caches: Sequence[LayerCache], rows: RowTable, device: torch.device) -> None:
        super().__init__(head, caches, _one_ahead(rows), device)
        self._drafted = _Drafted()

    def remove(self, slot: int) -> None:
        super().remove(slot)
        self._drafted.remove(slot)

    def run(self, rows: Sequence[RowStep], drafts: Sequence[int]) -> PassResult:
        """Run positions whose hidden states are kept, and the masks of rows that sample."""
        known = self._head.combined(self._take(rows)).split([row.count for row in rows])
        mask, steps, hidden = self._head.masks(), [], []
        for row, of_row, count in zip(rows, known, drafts, strict=True):
            masks, end = max(count - 1, 0), row.start + row.count
            self._rows.tokens[row.slot, end : end + masks] = self._head.spec.mask_token
            steps.append(RowStep(row.slot, row.start, row.count + masks, [], row.sample, masks))
            hidden += [of_row, mask.expand(masks, -1)]
        batch = build_batch(steps, self._rows, self._caches, self._device)
        left = self._head.forward(batch.forward, torch.cat(hidden))
        if not len(batch.last):
            return PassResult()
        counts = [count for row, count in zip(rows, drafts, strict=True) if row.sample]
        logits = self._head.logits(left[batch.last]).split(counts)
        return self._drafted.keep([row for row in rows if row.sample], logits)

    def go_on(self, rows: Sequence[RowStep]) -> PassResult:
        """The logits behind each row's last draft, which :meth:`run` made."""
        return self._drafted.behind(rows)


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

    def run(self, rows: Sequence[RowStep], drafts: Sequence[int]) -> PassResult:
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


AnyHeadPass = HeadPass | BlockPass | MaskPass | AssistantPass


def head_pass_of(spec: DraftHeadSpec) -> type[HeadPass] | type[BlockPass] | type[MaskPass] | type[AssistantPass]:
    """What runs a head of this spec."""
    if spec.shares_keys:
        return AssistantPass
    if spec.masks_hidden:
        return MaskPass
    return BlockPass if spec.block else HeadPass
