"""Finds the request that crashes the processes that serve it, by trial. Plain data: no I/O, no clock.

The scheduler uses it to find a request that crashes workers, from the steps in flight. The client uses it to find one
that crashes engines (:mod:`..client.trials`). Here *server* means either process.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from stentor.protocols.ipc.actors import TokensBatch

PROOF_TOKENS: Final = 4
"""Tokens that a sequence must gain from one server to be acquitted. By then prefill, decode and the step planned ahead
have all run."""
DEATHS_TO_SUSPECT: Final = 2
DEATHS_TO_CONVICT: Final = 3
FRESH_ALONE: Final = 8
"""Up to this many suspects that were new at a death are tried one by one; more are tried by halves."""


class InFlightSequence(NamedTuple):
    """A sequence that was being served when its server died."""

    rid: int
    sequence: int
    fresh: bool
    """Whether it was new or still in prefill: no result of its server had included it."""


class _Suspect:
    """A request that was in flight when a server died and has not been acquitted since."""

    __slots__ = ("alone", "deaths", "fresh", "gained")

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self.deaths = 0
        """Servers that died while it was in flight."""
        self.alone = 0
        """Servers that died while nothing else was in flight."""
        self.gained: dict[int, int] = {}
        """Tokens gained from the present server, by sequence, of sequences that were in flight at a death."""


class CrashBisector:
    """Decides after each death which requests may run, so that one that always kills is found and the others live on.

    A request becomes a suspect when a server dies while it is in flight. It is acquitted once each of its sequences
    that were in flight has ended or gained :data:`PROOF_TOKENS` tokens from one server. A first death changes nothing:
    all requests run again. Once :data:`DEATHS_TO_SUSPECT` servers have died with the same suspect in flight, a *search*
    begins: only one :attr:`group` runs at a time. Suspects that were new when their first server died come first, each
    alone, or by halves if there are many. The halves of the rest follow. An acquitted group makes way for the next, a
    group that kills is halved, and the search ends when no group is left.

    The culprit is the request for which :data:`DEATHS_TO_CONVICT` servers died with nothing else in flight before it
    was acquitted. A request that kills whenever it runs, among n in flight, costs at most ``2 + log2(n) + 3`` deaths.
    Another request is failed only if three servers died while it ran alone, each before it had gained
    :data:`PROOF_TOKENS` tokens. Random deaths do not do that, and a search cannot tell such a request from a harmful
    one.
    """

    def __init__(self) -> None:
        self._suspects: dict[int, _Suspect] = {}
        self._groups: list[list[int]] = []
        """Groups still to be tried, the next one last; every member is a suspect. Empty without a search."""

    @property
    def searching(self) -> bool:
        return bool(self._groups)

    @property
    def idle(self) -> bool:
        """Whether there are no suspects. Then :meth:`gained` and :meth:`ended` need not be called."""
        return not self._suspects

    @property
    def group(self) -> frozenset[int] | None:
        """The requests that may run; None for all."""
        return frozenset(self._groups[-1]) if self._groups else None

    def died(self, in_flight: Sequence[InFlightSequence]) -> int | None:
        """Record a server's death; returns the culprit if it is found, else None.

        ``in_flight`` is empty if the server had no work: then no request can have killed it.
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
                # it explains the deaths of all other suspects too
                self._suspects.clear()
                self._groups.clear()
                return rid
        if not self._groups:
            self._begin()
        elif not set(rids).isdisjoint(self._groups[-1]):  # else the group had not begun to run
            self._divide()
        return None

    def note_gains(self, batch: TokensBatch) -> None:
        """Record the tokens that sequences gained, and the chunks of streamed audio that were computed, as one each."""
        if self.idle:
            return
        for tokens in batch.tokens:
            self.gained(tokens.rid, tokens.index, len(tokens.tokens))
        for part in batch.parts:
            self.gained(part.rid, 0, min(1, part.computed))

    def gained(self, rid: int, index: int, tokens: int) -> None:
        """Record tokens that a sequence gained."""
        suspect = self._suspects.get(rid)
        if suspect is None or index not in suspect.gained:
            return
        suspect.gained[index] += tokens
        if all(count >= PROOF_TOKENS for count in suspect.gained.values()):
            self._acquit(rid)

    def ended(self, rid: int, index: int) -> None:
        """Record that a sequence ended, for whatever reason."""
        suspect = self._suspects.get(rid)
        if suspect is None:
            return
        suspect.gained.pop(index, None)
        if all(count >= PROOF_TOKENS for count in suspect.gained.values()):
            self._acquit(rid)

    def acquit_group(self) -> None:
        """Acquit the running group, which cannot gain tokens, and go on with the next."""
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
    """Both halves; only one list if the other would be empty."""
    middle = len(rids) // 2
    return [part for part in (rids[:middle], rids[middle:]) if part]
