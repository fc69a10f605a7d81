"""A budget of tokens for thinking, and how thinking is ended when it is spent. Plain data."""

from collections.abc import Sequence

from stentor.protocols.ipc.actors import Thinking


class ThinkingBudget:
    """Follows one sequence through its tokens.

    Tokens count from the one after those that begin thinking. When the budget is spent, the tokens that end it are due
    one after the other; where the sequence has just drawn the first of them itself, the rest. What a sequence that
    begins to think again has spent before still counts.
    """

    __slots__ = ("_begin", "_end", "_inside", "_left", "_matched", "_tail")

    def __init__(self, thinking: Thinking) -> None:
        self._begin = tuple(thinking.begin)
        self._end = tuple(thinking.end)
        self._left = thinking.budget
        self._inside = thinking.opened and bool(self._end)
        self._matched = 0
        """Leading tokens of the end that were drawn last."""
        self._tail: tuple[int, ...] = ()
        """Outside: the last tokens, as many as begin it."""

    @property
    def due(self) -> int | None:
        """The token that has to come next."""
        return self._end[self._matched] if self._inside and self._left <= 0 else None

    def may_be_due(self, ahead: int) -> bool:
        """Whether a token may be due after so many more that nobody knows yet, or fewer."""
        if self._inside:
            return self._left <= ahead
        return bool(self._begin and self._end) and ahead > 0 and self._left < ahead

    def copy(self) -> "ThinkingBudget":
        twin = ThinkingBudget(Thinking(self._left, list(self._begin), list(self._end), False))
        twin._inside, twin._matched, twin._tail = self._inside, self._matched, self._tail
        return twin

    def take(self, token: int) -> None:
        """The sequence drew a token."""
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
    """The longest beginning of ``sought`` that the text ends with, where it ended with ``matched`` of it before."""
    text = (*sought[:matched], token)
    return next(
        (length for length in range(min(len(text), len(sought)), 0, -1) if text[-length:] == tuple(sought[:length])), 0
    )
