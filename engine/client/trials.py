"""Which requests an engine is given after engines were lost with some: the search of ``core.crash_bisector``."""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from stentor.protocols.ipc.actors import TokensBatch

from ..core.crash_bisector import CrashBisector, InFlightSequence
from ..processes.restart_policy import Restarts
from .journal import Journal
from .outages import Outages
from .stream import RequestStream

logger = logging.getLogger(__name__)

_POISON: Final = "the request ended the engine process each time that it ran, also alone; it is not tried again"
MAX_SEARCH_DEATHS: Final = 32
"""Engines that one search may cost: 2 + log2 of a million and 3, and some that chance takes."""


class Verdict(NamedTuple):
    """What the loss of an engine meant."""

    culprit: int | None
    """The request that it is due to."""
    excused: bool
    """Whether it has an explanation, or was risked to find one: then it says nothing of the engine."""
    searching: bool
    """Whether a search begins with it."""
    survivors: int
    """Requests that it had been given and that go on with another."""


class Trials:
    """What the engine at hand has been given, and what it may be.

    An engine is given every request, until two engines were lost with the same ones: then one group of these at a time,
    while all others wait. A group that has proved itself goes on beside those that follow. If the engine is lost with
    both, the next one is given the group to be tried, and nobody else.

    What explains one loss says nothing of the next: after ``max_culprits`` requests in a row that were to blame, with
    nobody making progress between, it is taken to be the engine that is at fault.
    """

    def __init__(self, max_culprits: int) -> None:
        self._max_culprits = max_culprits
        self._bisector = CrashBisector()
        self._given: dict[int, int] = {}
        """By request that the engine at hand has: how many tokens had been delivered before."""
        self._culprits = 0
        """In a row."""
        self._deaths = 0
        """Of the search that goes on."""

    @property
    def group(self) -> frozenset[int] | None:
        """Those that are tried, where there is a search."""
        return self._bisector.group

    def has(self, rid: int) -> bool:
        """Whether the engine at hand has been given a request."""
        return rid in self._given

    def admits(self, rid: int) -> bool:
        """Whether it is to be given one that it has not got."""
        group = self._bisector.group
        return rid not in self._given and (group is None or rid in group)

    def give(self, stream: RequestStream) -> None:
        self._given[stream.rid] = stream.delivered

    def note(self, batch: TokensBatch, journal: Journal) -> bool:
        """What the engine has yielded, once the journal knows of it. Whether that is progress: all that were in flight
        at earlier losses have ended, or come further than anything fatal is taken to."""
        bisector = self._bisector
        if not bisector.idle:
            for gained in batch.tokens:
                bisector.gained(gained.rid, gained.index, len(gained.tokens))
        self._end(((end.rid, end.index) for end in batch.finished), journal)
        if not bisector.idle or not (batch.tokens or any(end.reason in ("stop", "length") for end in batch.finished)):
            return False
        self._culprits = 0
        return True

    def withdrawn(self, sequences: Iterable[tuple[int, int]], journal: Journal) -> None:
        """Sequences, by request and index, ended that the engine does not know of, or does not any more."""
        self._end(sequences, journal)

    def acquit(self) -> None:
        """Nothing comes of those that are tried: the next have their turn."""
        self._bisector.acquit_group()

    def lost(self, journal: Journal, unsent: Callable[[int], bool]) -> Verdict:
        """The engine at hand was lost, with those requests that it had been given and that had been sent."""
        bisector, given = self._bisector, self._given
        self._given = {}
        in_flight = [
            InFlightSequence(stream.rid, index, given[stream.rid] == stream.delivered)
            for stream in journal
            if stream.rid in given and not unsent(stream.rid)
            for index in stream.open_indices
        ]
        searching = bisector.group is not None
        self._deaths = self._deaths + bool(in_flight) if searching else 0
        by_intent = searching and bool(in_flight) and self._deaths <= MAX_SEARCH_DEATHS
        culprit = bisector.died(in_flight)
        survivors = len({each.rid for each in in_flight} - {culprit})
        if culprit is not None:
            self._deaths = 0
            self._culprits += 1
            return Verdict(culprit, self._culprits < self._max_culprits, False, survivors)
        return Verdict(None, by_intent, not searching and bisector.group is not None, survivors)

    def judge(self, journal: Journal, unsent: Callable[[int], bool], outages: Outages, restarts: Restarts) -> None:
        """The engine at hand was lost, and what it had not been sent is still known: is it due to a request? That one
        fails."""
        verdict = self.lost(journal, unsent)
        outages.count_recovered(verdict.survivors)
        if verdict.searching:
            logger.warning(
                "engines were lost with the same requests in flight: these run in groups until the one that ends "
                "engines is found, and all others wait"
            )
        if verdict.culprit is not None:
            name = next(stream.name for stream in journal if stream.rid == verdict.culprit)
            logger.error("a request was failed: its engines died of it", extra={"request_id": name})
            journal.fail(verdict.culprit, _POISON)
            outages.count_poisoned()
            if verdict.excused:
                restarts.progressed()  # those before are explained, too
        if verdict.excused:
            restarts.excuse()

    def _end(self, sequences: Iterable[tuple[int, int]], journal: Journal) -> None:
        for rid, index in sequences:
            self._bisector.ended(rid, index)
            if not journal.has(rid):
                self._given.pop(rid, None)
