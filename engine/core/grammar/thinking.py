"""Limits the thinking tokens of a sequence, and ends thinking when the budget is spent. Plain data."""

from collections.abc import Sequence

from stentor.protocols.ipc.actors import Thinking


class ThinkingBudget:
    """The thinking budget of one sequence.

    Tokens count from the one after the begin marker. When the budget is spent, the tokens of the end marker are forced
    one after the other; if the sequence has just drawn the first of them itself, only the rest. Tokens of earlier
    thinking still count if the sequence begins to think again.
    """

    __slots__ = ("_begin", "_end", "_inside", "_left", "_matched", "_tail")

    def __init__(self, thinking: Thinking) -> None:
        self._begin = tuple(thinking.begin)
        self._end = tuple(thinking.end)
        self._left = thinking.budget
        self._inside = thinking.opened and bool(self._end)
        self._matched = 0
        """Leading tokens of the end marker that were drawn last."""
        self._tail: tuple[int, ...] = ()
        """Outside thinking: the last tokens, as many as the begin marker has."""

    @property
    def due(self) -> int | None:
        """The token that must come next; None if any may."""
        return self._end[self._matched] if self._inside and self._left <= 0 else None

    def may_be_due(self, ahead: int) -> bool:
        """Whether a token may be forced after up to ``ahead`` further tokens, not known yet."""
        if self._inside:
            return self._left <= ahead
        return bool(self._begin and self._end) and ahead > 0 and self._left < ahead

    def copy(self) -> "ThinkingBudget":
        twin = ThinkingBudget(Thinking(self._left, list(self._begin), list(self._end), False))
        twin._inside, twin._matched, twin._tail = self._inside, self._matched, self._tail
        return twin

    def take(self, token: int) -> None:
        """Record a drawn token."""
        if not self._inside:
            self._look_for_begin(token)
            return
        self._left -= 1
        self._matched = _matched_after(self._end, self._matched, token)
        if self._matched == len(self._end):
            self._inside = False
            self._matched = 0

    def _look_for_begin(self, token: int) -> None:
        if not self._begin or not self._end:
            return
        self._tail = (*self._tail, token)[-len(self._begin) :]
        if self._tail == self._begin:
            self._inside = True
            self._tail = ()


def _matched_after(sought: Sequence[int], matched: int, token: int) -> int:
    """Length of the longest prefix of ``sought`` that ends the text, given that it was ``matched`` before ``token``."""
    text = (*sought[:matched], token)
    return next(
        (length for length in range(min(len(text), len(sought)), 0, -1) if text[-length:] == tuple(sought[:length])), 0
    )
