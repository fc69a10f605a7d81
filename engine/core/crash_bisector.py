"""Which request kills the processes that serve it: a search by trial over plain data. No I/O, no clock.

The scheduler searches for one that kills workers, by the steps that were in flight, and the client for one that kills
engines (:mod:`..client.trials`). A *server* is either here.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

PROOF_TOKENS: Final = 4
"""Tokens that a sequence must gain from one server to be held harmless: prefill and decode have then both run, and the
step that is prepared ahead too."""
DEATHS_TO_SUSPECT: Final = 2
DEATHS_TO_CONVICT: Final = 3
FRESH_ALONE: Final = 8
"""So many that were new at a death are tried one by one; if there are more, their halves are."""


class InFlightSequence(NamedTuple):
    """A sequence that was being served when its server died."""

    rid: int
    sequence: int
    fresh: bool
    """It had just come, or was still being prefilled: nothing that its server completed was with it."""


class _Suspect:
    """A request that was in flight at a death and has not been proved harmless since."""

    __slots__ = ("alone", "deaths", "fresh", "gained")

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self.deaths = 0
        """Servers that died with it in flight."""
        self.alone = 0
        """Those of them that died with nothing else in flight."""
        self.gained: dict[int, int] = {}
        """Tokens from the present server, by sequence, of those sequences that were in flight at a death."""


class CrashBisector:
    """Decides after each death who may run next, so that a request that always kills is found and the rest live on.

    A request becomes a suspect when a server dies with it in flight, and ceases to be one when each of its sequences
    that were in flight has ended or gained :data:`PROOF_TOKENS` tokens from one server. One death alone changes
    nothing: everybody runs again. Where :data:`DEATHS_TO_SUSPECT` servers died with one and the same suspect in
    flight, a *search* begins: only one :attr:`group` runs at a time, all others wait. First each suspect that was new
    when its first server died runs alone (or the halves of these, where they are many), then the halves of the rest. A
    group proved harmless makes way for the next, a group that kills is halved, and the search ends when no group is
    left.

    A request is the culprit when :data:`DEATHS_TO_CONVICT` servers died with nothing but it in flight, before it was
    proved harmless. So one that kills whenever it runs, among n in flight, costs at most ``2 + log2(n) + 3`` deaths,
    and no other request is ever failed unless three servers in a row died while it ran alone, each before it
    had drawn :data:`PROOF_TOKENS` tokens: what random deaths do not do, and what a search cannot tell from poison.
    """

    def __init__(self) -> None:
        self._suspects: dict[int, _Suspect] = {}
        self._groups: list[list[int]] = []
        """Still to be tried, the next one last; every member is a suspect. Empty: there is no search."""

    @property
    def searching(self) -> bool:
        return bool(self._groups)

    @property
    def idle(self) -> bool:
        """Whether nobody is suspected, so that nothing need be told of tokens and ends."""
        return not self._suspects

    @property
    def group(self) -> frozenset[int] | None:
        """The requests that may run; None for all."""
        return frozenset(self._groups[-1]) if self._groups else None

    def died(self, in_flight: Sequence[InFlightSequence]) -> int | None:
        """The server died; returns the request that is to be failed for it, if one is.

        ``in_flight`` is empty where it had nothing to do: then nobody can have killed it.
        """
        for suspect in self._suspects.values():
            for index in suspect.gained:
                suspect.gained[index] = 0
        rids = list(dict.fromkeys(record.rid for record in in_flight))
        for record in in_flight:
            suspect = self._suspects.setdefault(record.rid, _Suspect(record.fresh))
            suspect.gained.setdefault(record.sequence, 0)
        for rid in rids:
            self._suspects[rid].deaths += 1
        if len(rids) == 1:
            (rid,) = rids
            self._suspects[rid].alone += 1
            if self._suspects[rid].alone >= DEATHS_TO_CONVICT:
                # it explains the deaths of all the others too
                self._suspects.clear()
                self._groups.clear()
                return rid
        if not self._groups:
            self._begin()
        elif not set(rids).isdisjoint(self._groups[-1]):  # else the next group had not begun to run
            self._divide()
        return None

    def gained(self, rid: int, index: int, tokens: int) -> None:
        """A sequence drew tokens."""
        suspect = self._suspects.get(rid)
        if suspect is None or index not in suspect.gained:
            return
        suspect.gained[index] += tokens
        if all(count >= PROOF_TOKENS for count in suspect.gained.values()):
            self._acquit(rid)

    def ended(self, rid: int, index: int) -> None:
        """A sequence ended, whatever for."""
        suspect = self._suspects.get(rid)
        if suspect is None:
            return
        suspect.gained.pop(index, None)
        if all(count >= PROOF_TOKENS for count in suspect.gained.values()):
            self._acquit(rid)

    def acquit_group(self) -> None:
        """Nothing comes of the group that runs: it makes way for the next."""
        for rid in self._groups[-1] if self._groups else ():
            self._acquit(rid)

    def _begin(self) -> None:
        found = [rid for rid, suspect in self._suspects.items() if suspect.deaths >= DEATHS_TO_SUSPECT]
        fresh = [rid for rid in found if self._suspects[rid].fresh]
        rest = [rid for rid in found if not self._suspects[rid].fresh]
        newest = _halves(fresh) if len(fresh) > FRESH_ALONE else ([rid] for rid in reversed(fresh))
        self._groups = [*_halves(rest), *newest]

    def _divide(self) -> None:
        self._groups.extend(_halves(self._groups.pop()))

    def _acquit(self, rid: int) -> None:
        del self._suspects[rid]
        left = ([each for each in group if each != rid] for group in self._groups)
        self._groups = [group for group in left if group]


def _halves(rids: list[int]) -> Iterable[list[int]]:
    """Both halves, where neither is empty."""
    middle = len(rids) // 2
    return [part for part in (rids[:middle], rids[middle:]) if part]
