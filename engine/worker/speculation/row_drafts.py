"""The drafts of a worker's rows: placed behind their last tokens, and sent to the engine where masks need them."""

from collections.abc import Sequence
from typing import Final, Protocol

from stentor.protocols.ipc.steps import RowDrafts, RowStep, StepPlan

from ..rows.rows import Int64
from .proposer import Proposer

_NO_DRAFTS: Final[Sequence[int]] = ()


class Follower(Protocol):
    """A proposer that computes along with its rows."""

    def follow(self, rows: Sequence[RowStep]) -> None:
        """Prepare for a step of these rows; called before drafts are proposed for it."""

    def leave(self, slots: Sequence[int]) -> None:
        """Prepare for the removal of these slots. Their blocks stay valid until the next step."""


class Drafting:
    """The drafts of every slot.

    Drafts stand in the token table behind a row's end, where its next tokens go. Refused ones are overwritten there, as
    their keys and values are in the cache.
    """

    def __init__(self, proposer: Proposer, tokens: Int64, follower: Follower | None = None) -> None:
        """``tokens``: the table of all rows, [slots, positions].

        ``follower``: the proposer if it is one. Its drafts are expensive, so no more are sent than the last step let a
        row have.
        """
        self._proposer = proposer
        self._follower = follower
        self._tokens = tokens
        self._lengths = [0] * len(tokens)
        self._masked: set[int] = set()
        """Slots of rows that may be masked: their drafts are sent to the engine before they are computed."""
        self._announced: dict[int, list[int]] = {}
        self._laid: dict[int, list[int]] = {}
        """Drafts of the current step, by slot."""
        self._planned: dict[int, int] = {}
        """Drafts of the current step that rows with masks were allowed, if there is a follower."""

    def enter(self, plan: StepPlan) -> None:
        for new in plan.new:
            if new.pooling is None:
                self._lengths[new.slot] = len(new.tokens)
                self._proposer.enter(new)
                if new.masked:
                    self._masked.add(new.slot)

    def release(self, slots: Sequence[int]) -> None:
        if self._follower is not None:
            self._follower.leave(slots)
        for slot in slots:
            self._proposer.remove(slot)
            self._masked.discard(slot)
            self._announced.pop(slot, None)

    def lay(self, rows: Sequence[RowStep]) -> Sequence[RowStep]:
        """The rows of a step at their real positions with their drafts.

        ``count`` includes the drafts, and ``num_drafts`` is their number.
        """
        if self._follower is not None:
            self._follower.follow(rows)
            self._planned = {row.slot: row.num_drafts for row in rows if row.slot in self._masked}
        self._laid = self._proposer.propose(
            {row.slot: row.num_drafts for row in rows if row.num_drafts and row.slot not in self._masked}
        )
        for row in rows:
            if row.slot in self._announced and (drafts := self._announced.pop(row.slot)[: row.num_drafts]):
                self._laid[row.slot] = drafts
        return [self._from_its_end(row) for row in rows]

    def drafts(self, slot: int) -> Sequence[int]:
        """The drafts of a row in the step last given to :meth:`lay`."""
        return self._laid.get(slot, _NO_DRAFTS)

    def gained(self, slot: int, tokens: Sequence[int]) -> None:
        """Append the tokens that a row gained in that step."""
        length = self._lengths[slot]
        self._tokens[slot, length : length + len(tokens)] = tokens
        self._lengths[slot] = length + len(tokens)
        if drafts := self._laid.get(slot):
            self._proposer.verified(slot, len(drafts), len(tokens) - 1)
        self._proposer.append(slot, tokens)

    def announce(self, rows: Sequence[RowStep]) -> list[RowDrafts]:
        """The next drafts of rows that may be masked, for the engine; call it once the rows have gained their
        tokens."""
        most = self._proposer.most
        wanted = {row.slot: most for row in rows if row.sample and row.slot in self._masked}
        if self._follower is not None:
            wanted = {slot: planned for slot in wanted if (planned := self._planned[slot])}
        self._announced |= self._proposer.propose(wanted)
        return [RowDrafts(row.slot, self._announced[row.slot]) for row in rows if row.slot in self._announced]

    def _from_its_end(self, row: RowStep) -> RowStep:
        if not row.sample or row.count > 1:
            return row
        start = self._lengths[row.slot] - 1
        drafts = self.drafts(row.slot)
        if drafts:
            self._tokens[row.slot, start + 1 : start + 1 + len(drafts)] = drafts
        return RowStep(row.slot, start, 1 + len(drafts), row.new_blocks, True, len(drafts), row.state)
