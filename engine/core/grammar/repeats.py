"""Bans tokens that would repeat a sequence of the output."""

from stentor.protocols.ipc.sampling import NoRepeat

from .token_sets import set_of


class RepeatedSequences:
    """Tracks one sequence's output tokens to ban those that would repeat some of them. Prompt tokens do not count.

    A token costs a look at each of the window, however long the sequences are that repeat.
    """

    __slots__ = ("_alike", "_rule", "_tail")

    def __init__(self, rule: NoRepeat) -> None:
        """``rule.size`` is 2 or more."""
        self._rule = rule
        self._tail: list[int] = []
        """The window."""
        self._alike: list[int] = []
        """Of each of its tokens but the last: how many, up to and with it, are the last ones of the output."""

    def take(self, token: int) -> None:
        """Record a token of the sequence."""
        before = (0, *self._alike)
        self._alike = [count + 1 if known == token else 0 for known, count in zip(self._tail, before, strict=False)]
        self._tail.append(token)
        if len(self._tail) > self._rule.window:
            del self._tail[0], self._alike[:1]

    def banned(self, size: int) -> int:
        """Tokens that must not come next, as a set of :mod:`.token_sets`. ``size`` is that of the vocabulary."""
        return set_of({self._tail[end] for end in self._ends(self._rule.size - 1)}.difference(self._rule.exempt), size)

    def copy(self) -> "RepeatedSequences":
        twin = RepeatedSequences(self._rule)
        twin._tail, twin._alike = self._tail.copy(), self._alike.copy()
        return twin

    def may_ban(self, ahead: int, size: int) -> bool:
        """Whether a token may be banned after up to ``ahead`` further tokens, not known yet."""
        if not ahead:
            return bool(self.banned(size))
        known = self._rule.size - 1 - ahead
        return known <= 0 or bool(self._ends(known))

    def _ends(self, count: int) -> list[int]:
        """Where in the window its last ``count`` tokens, 1 or more, came before: the place behind each time."""
        return [end for end in range(count, len(self._tail)) if self._alike[end - 1] >= count]
