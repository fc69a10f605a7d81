"""The interface of draft proposers."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from stentor.protocols.ipc.steps import NewRow

Row = TypeVar("Row")


class Proposer(Protocol):
    """Proposes what rows will sample next. A wrong proposal costs time only.

    ``most`` limits the proposal for a row. Proposals depend only on what the proposer was given, so that workers which
    split a model propose the same.
    """

    most: int

    def enter(self, new: NewRow) -> None:
        """Add a row to a free slot."""

    def remove(self, slot: int) -> None:
        """Remove a row; ignored for a free slot."""

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens that the row has gained."""

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        """Proposals by slot, at most as many tokens as wanted; rows without a proposal are left out."""

    def verified(self, slot: int, drafted: int, accepted: int) -> None:
        """Report how many of the row's last proposal were computed and accepted; called before :meth:`append`."""


def row_at(rows: Sequence[Row | None], slot: int) -> Row:
    """What a proposer holds of the row in a slot. Raises ValueError for a free slot."""
    row = rows[slot]
    if row is None:
        raise ValueError(f"slot {slot} holds no row; one must enter before tokens are proposed for it")
    return row
