"""Finds requests that crash engines, by the search of ``core.crash_bisector``, and decides which an engine gets."""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import anyio

from stentor.protocols.ipc.actors import TokensBatch

from ..core.crash_bisector import CrashBisector, InFlightSequence
from ..processes.restart_policy import Restarts
from .journal import Journal
from .outages import Outages
from .stream import RequestStream

logger = logging.getLogger(__name__)

_POISON: Final = "the request ended the engine process each time that it ran, also alone; it is not tried again"
MAX_SEARCH_DEATHS: Final = 32
"""Most engines that one search may cost: 2 + log2 of a million + 3, and some by chance."""

_LOOK_SECONDS = 0.5
_QUIET_LOOKS = 30
"""Looks without a step after which a trial group is acquitted."""


class Verdict(NamedTuple):
    """The conclusion from an engine's loss."""

    culprit: int | None
    """The request that caused it, if found."""
    excused: bool
    """Whether the loss is explained or was expected in a search, so that it does not count against the engine."""
    searching: bool
    """Whether a search begins."""
    survivors: int
    """Requests of the lost engine that go on with another."""


class Trials:
    """Which requests the present engine has, and which it may get.

    An engine gets every request until two engines were lost with the same ones in flight. Then it gets one group of
    these at a time, while all others wait. An acquitted group runs on beside the next. If the engine is lost with both,
    the next engine gets only the group on trial.

    An explained loss does not explain the next one: after ``max_culprits`` consecutive culprits without progress
    between, the engine itself is held to be at fault.
    """

    def __init__(self, max_culprits: int) -> None:
        self._max_culprits = max_culprits
        self._bisector = CrashBisector()
        self._given: dict[int, int] = {}
        """Requests of the present engine, with the tokens delivered before it got them."""
        self._culprits = 0
        """Consecutive culprits."""
        self._deaths = 0
        """Engines lost in the present search."""

    @property
    def group(self) -> frozenset[int] | None:
        """The requests on trial; None without a search."""
        return self._bisector.group

    def has(self, rid: int) -> bool:
        """Whether the present engine has the request."""
        return rid in self._given

    def admits(self, rid: int) -> bool:
        """Whether the engine may get a request that it does not have."""
        group = self._bisector.group
        return rid not in self._given and (group is None or rid in group)

    def give(self, stream: RequestStream) -> None:
        self._given[stream.rid] = stream.delivered

    def note(self, batch: TokensBatch, journal: Journal) -> bool:
        """Record a batch, after the journal did. Returns whether it is progress: there are no suspects left."""
        bisector = self._bisector
        bisector.note_gains(batch)
        self._end(((end.rid, end.index) for end in batch.finished), journal)
        if not bisector.idle or not (batch.tokens or any(end.reason in ("stop", "length") for end in batch.finished)):
            return False
        self._culprits = 0
        return True

    def withdrawn(self, sequences: Iterable[tuple[int, int]], journal: Journal) -> None:
        """Record ended sequences, as (rid, index), that the engine does not have."""
        self._end(sequences, journal)

    def acquit(self) -> None:
        """Acquit the requests on trial, which make no progress; the next ones run."""
        self._bisector.acquit_group()

    def lost(self, journal: Journal, unsent: Callable[[int], bool]) -> Verdict:
        """Record the loss of the present engine. ``unsent``: whether a request had not been sent to it."""
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

    async def is_quiet(self, steps: Callable[[], int | None]) -> bool:
        """Wait until the group on trial has computed nothing for a while; False once there is no group.

        ``steps``: the engine's completed steps; None while it could compute none.
        """
        seen: tuple[object, ...] = ()
        quiet = 0
        while (group := self.group) is not None:
            await anyio.sleep(_LOOK_SECONDS)
            before, seen = seen, (group, steps())
            quiet = quiet + 1 if seen[1] is not None and seen == before else 0
            if quiet >= _QUIET_LOOKS:
                return True
        return False

    def judge(self, journal: Journal, unsent: Callable[[int], bool], outages: Outages, restarts: Restarts) -> None:
        """Record the loss of the present engine, and fail the request that caused it, if there is one.

        Call it while ``unsent`` still knows the queue.
        """
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
                restarts.progressed()  # earlier losses are explained too
        if verdict.excused:
            restarts.excuse()

    def _end(self, sequences: Iterable[tuple[int, int]], journal: Journal) -> None:
        for rid, index in sequences:
            self._bisector.ended(rid, index)
            if not journal.has(rid):
                self._given.pop(rid, None)
