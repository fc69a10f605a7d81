"""Bans tokens that would repeat a sequence of the output."""

from collections.abc import Sequence

from stentor.protocols.ipc.sampling import NoRepeat

from .token_sets import set_of


class RepeatedSequences:
    """Tracks one sequence's output tokens to ban those that would repeat some of them. Prompt tokens do not count."""

    __slots__ = ("_rule", "_tail")

    def __init__(self, rule: NoRepeat) -> None:
        """``rule.size`` is 2 or more."""
        self._rule = rule
        self._tail: list[int] = []

    def take(self, token: int) -> None:
        """Record a token of the sequence."""
        self._tail.append(token)
        if len(self._tail) > 2 * self._rule.window:
            del self._tail[: -self._rule.window]

    def banned(self, size: int) -> int:
        """Tokens that must not come next, as a set of :mod:`.token_sets`. ``size`` is that of the vocabulary."""
        rule, tail = self._rule, self._tail[-self._rule.window :]
        if len(tail) < rule.size:
            return 0
        ends = _ends_of(tail[1 - rule.size :], tail[:-1])
        return set_of({tail[end] for end in ends}.difference(rule.exempt), size)

    def copy(self) -> "RepeatedSequences":
        twin = RepeatedSequences(self._rule)
        twin._tail = self._tail.copy()
        return twin

    def may_ban(self, ahead: int, size: int) -> bool:
        """Whether a token may be banned after up to ``ahead`` further tokens, not known yet."""
        if not ahead:
            return bool(self.banned(size))
        tail = self._tail[-self._rule.window :]
        known = self._rule.size - 1 - ahead
        return known <= 0 or bool(_ends_of(tail[-known:], tail[:-1]))


def _ends_of(part: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Where in ``tokens`` the whole of ``part`` ends: the place behind its last token."""
    if not part:
        return []
    length, last = len(part), part[-1]
    ends = (end for end, token in enumerate(tokens, 1) if token == last and end >= length)
    return [end for end in ends if tokens[end - length : end] == part]
