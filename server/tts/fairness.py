"""Chooses whose sentence is next: a short text does not wait for whole rounds of long ones.

Texts without audio come first, the shortest before others, then texts with little audio, about ten seconds, which
completes a short text. All others take turns, and get one turn after a few of those, so that no text stalls because
others begin.

In turn is the text with the least service, its next sentence included. A common measure grows by the service that
everybody would have with an even distribution (the virtual time of fair queueing); a text that joins, or wanted nothing
for a while, starts there.
"""

from typing import Final, Generic, Protocol, TypeVar

import msgspec

FIRSTS_IN_A_ROW: Final = 8
"""Sentences of texts with no or little audio before others have a turn."""
LITTLE: Final = 160.0
"""Audio below which a text has little, as a weight (:attr:`Speaker.next_weight`)."""


class Speaker(Protocol):
    @property
    def wants(self) -> bool:
        """Whether a sentence can be made now."""

    @property
    def has_audio(self) -> bool:
        """Whether a sound has been made."""

    @property
    def next_weight(self) -> float:
        """Weight of the next sentence, in characters of plain text at a speed of 1; called while one is wanted."""

    @property
    def rest(self) -> int:
        """Remaining characters as far as known, the next sentence included."""


S = TypeVar("S", bound=Speaker)


class _Account(msgspec.Struct):
    even: float
    """Its service, by the common measure."""
    had: float = 0.0
    """Since it came."""


class Turns(Generic[S]):
    """All texts being spoken."""

    def __init__(self) -> None:
        self._accounts: dict[S, _Account] = {}
        """In the order of arrival."""
        self._even = 0.0
        """The even share so far."""
        self._firsts = 0
        """In a row."""
        self._wanted: set[S] = set()
        """Texts that wanted a sentence at the last call."""

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
        """The next text, which is charged; None if none wants a sentence."""
        weights = {speaker: speaker.next_weight for speaker in self._accounts if speaker.wants}
        for speaker in weights.keys() - self._wanted:  # unused turns are not saved up
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
        """Among texts with no or little audio."""
        without_audio = [speaker for speaker in weights if not speaker.has_audio]
        if without_audio:
            return min(without_audio, key=lambda speaker: min(speaker.rest, LITTLE))
        after = {speaker: self._accounts[speaker].had + weight for speaker, weight in weights.items()}
        return min((speaker for speaker in after if after[speaker] <= LITTLE), key=after.__getitem__, default=None)

    def _in_turn(self, weights: dict[S, float]) -> S:
        """Among other texts, if there are any."""
        with_audio = [speaker for speaker in weights if speaker.has_audio]
        return min(with_audio or weights, key=lambda speaker: self._accounts[speaker].even + weights[speaker])
