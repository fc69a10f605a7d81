"""One step while it is put together, and what is remembered of it until its result comes."""

from typing import NamedTuple

from stentor.protocols.steps import NewRow, RowStep

from ..request import Choice

Owner = tuple[Choice, int, int, bool]
"""Whose row it was at plan time: (choice, incarnation, end of its positions, whether it draws a token)."""


class Flight(NamedTuple):
    """A planned step whose result has not come; ``owners`` follows ``rows``.

    Results are matched by owner, never by slot: by the time they come, the slot may be another's.
    """

    step: int
    rows: list[RowStep]
    owners: list[Owner]
    sampled: int


class StepDraft:
    """The step being planned. ``budget`` is the tokens that may still be added."""

    __slots__ = ("budget", "new", "owners", "rows", "sampled")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.new: list[NewRow] = []
        self.rows: list[RowStep] = []
        self.owners: list[Owner] = []
        self.sampled = 0

    def add(self, choice: Choice, count: int, new_blocks: list[int]) -> None:
        """Plan the next ``count`` positions of a running choice, and a token where they reach its end; mutates it."""
        start = choice.computed_len
        end = start + count
        choice.computed_len = end
        sample = False
        if end == choice.length:
            if choice.samples:
                sample = True
                self.sampled += 1
                choice.pending += 1
                choice.length = end + 1
                # Its last token by length needs no step of its own: nothing is drawn after it.
                choice.exhausted = end + 1 == choice.limit_len
            else:
                choice.exhausted = True
        self.budget -= count
        self.rows.append(RowStep(choice.slot, start, count, new_blocks, sample))
        self.owners.append((choice, choice.incarnation, end, sample))
