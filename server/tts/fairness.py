"""Whose sentence is made next: a short text does not wait for whole rounds of the sentences of long ones.

Who has not been heard goes first, the shortest text before the others, and then who has had little yet: some ten
seconds of speech, with which a short text is through. All others are in turn, and one of them after every few of those,
so that nobody falls silent because others begin.

In turn is who has had least, what comes next included. That is kept by a common measure, which grows by what everybody
would have had if all that want something had been served evenly (the virtual time of fair queueing); who joins, or has
wanted nothing for a while, begins there.
"""

from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

FIRSTS_IN_A_ROW: Final = 8
"""Sentences of those who have had nothing, or little, before somebody else has a turn."""
LITTLE: Final = 160.0
"""As :attr:`Speaker.next_weight`."""


class Speaker(Protocol):
    @property
    def wants(self) -> bool:
        """Whether a sentence can be made now."""

    @property
    def has_audio(self) -> bool:
        """Whether a sound has been made."""

    @property
    def next_weight(self) -> float:
        """Of the next sentence, in characters of plain text at a speed of 1; asked while one is wanted."""

    @property
    def rest(self) -> int:
        """Characters that are known to be left, the next sentence's among them."""


S = TypeVar("S", bound=Speaker)


@dataclass
class _Account:
    even: float
    """What it has had, by the common measure."""
    had: float = 0.0
    """Since it came."""


class Turns(Generic[S]):
    """Of all texts that are being spoken."""

    def __init__(self) -> None:
        self._accounts: dict[S, _Account] = {}
        """In the order of arrival."""
        self._even = 0.0
        """What everybody would have had."""
        self._firsts = 0
        """In a row."""
        self._wanted: set[S] = set()
        """Those who wanted something when it was last asked."""

    def __len__(self) -> int:
        return len(self._accounts)

    def __contains__(self, speaker: S) -> bool:
        return speaker in self._accounts

    def join(self, speaker: S) -> None:
        self._accounts[speaker] = _Account(self._even)

    def leave(self, speaker: S) -> None:
        del self._accounts[speaker]
        self._wanted.discard(speaker)

    def next(self) -> S | None:
        """Whose turn it is, which is put on its account; None where nobody wants anything."""
        weights = {speaker: speaker.next_weight for speaker in self._accounts if speaker.wants}
        for speaker in weights.keys() - self._wanted:  # what it did not want it has not saved up
            account = self._accounts[speaker]
            account.even = max(account.even, self._even)
        self._wanted = set(weights)
        if not weights:
            return None
        chosen = self._first(weights) if self._firsts < FIRSTS_IN_A_ROW else None
        self._firsts = 0 if chosen is None else self._firsts + 1
        if chosen is None:
            chosen = self._in_turn(weights)
        weight = weights[chosen]
        account = self._accounts[chosen]
        account.even += weight
        account.had += weight
        self._even += weight / len(weights)
        return chosen

    def _first(self, weights: dict[S, float]) -> S | None:
        """Of those who have had nothing or little."""
        without_audio = [speaker for speaker in weights if not speaker.has_audio]
        if without_audio:
            return min(without_audio, key=lambda speaker: min(speaker.rest, LITTLE))
        after = {speaker: self._accounts[speaker].had + weight for speaker, weight in weights.items()}
        return min((speaker for speaker in after if after[speaker] <= LITTLE), key=after.__getitem__, default=None)

    def _in_turn(self, weights: dict[S, float]) -> S:
        """Of those who have been heard, where there are any."""
        with_audio = [speaker for speaker in weights if speaker.has_audio]
        return min(with_audio or weights, key=lambda speaker: self._accounts[speaker].even + weights[speaker])
