"""Who proposes draft tokens."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from stentor.protocols.ipc.steps import NewRow


class Proposer(Protocol):
    """Guesses what rows will draw next. A wrong guess costs time and nothing else.

    ``most`` bounds what it proposes for a row at once. That is a function of what the proposer has been told, so
    that workers that split a model propose the same.
    """

    most: int

    def enter(self, new: NewRow) -> None:
        """A row enters a slot that is free."""

    def remove(self, slot: int) -> None:
        """The row leaves; a free slot stays as it is."""

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """The row has gained tokens."""

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        """By slot, at most as many tokens as are wanted there; rows without a proposal are left out."""

    def verified(self, slot: int, drafted: int, accepted: int) -> None:
        """Of the row's last proposal so many tokens were computed, and so many drawn; told before :meth:`append`."""
