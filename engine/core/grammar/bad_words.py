"""Sequences of tokens that may not be drawn: the last of each is banned where the others have come. Plain data."""

from collections.abc import Iterable, Mapping, Sequence

from .token_sets import set_of

Endings = Mapping[int, Sequence[tuple[tuple[int, ...], int]]]
"""By the last but one token of a sequence: what comes up to it, and its last token."""


def endings_of(sequences: Iterable[Sequence[int]]) -> Endings:
    """Of sequences of two tokens and more; the same for all sequences of a request."""
    found: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for sequence in sequences:
        *before, last = sequence
        if before:
            found.setdefault(before[-1], []).append((tuple(before), last))
    return found


class BadWords:
    """Follows one sequence through its tokens; those of the prompt do not count."""

    __slots__ = ("_endings", "_longest", "_tail")

    def __init__(self, endings: Endings) -> None:
        self._endings = endings
        self._longest = max((len(before) for some in endings.values() for before, _ in some), default=0)
        self._tail: list[int] = []

    def take(self, token: int) -> None:
        """The sequence drew a token."""
        self._tail.append(token)
        if len(self._tail) > 2 * self._longest:
            del self._tail[: -self._longest]

    def banned(self, size: int) -> int:
        """The tokens that may not come next, as a set of :mod:`.token_sets`; ``size`` is of the vocabulary."""
        tail = self._tail
        if not tail or tail[-1] not in self._endings:
            return 0
        return set_of((last for before, last in self._endings[tail[-1]] if tuple(tail[-len(before) :]) == before), size)

    def may_ban(self, ahead: int, size: int) -> bool:
        """Whether a token may be banned after ``ahead`` more that nobody knows yet."""
        return bool(self._endings) and (ahead > 0 or bool(self.banned(size)))
