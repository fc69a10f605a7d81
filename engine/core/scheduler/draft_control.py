"""How many drafts a row gets: as many as have lately paid for the time that they took."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from stentor.protocols.ipc.steps import StepResult

from ..sequence import Sequence as Row
from .step import InFlightStep

Caps = Sequence[tuple[int, int, int]]
"""(least, most, drafts): while so many rows decode, the drafts of each."""

_KEEP: Final = 0.9
"""Of what is known of a row's acceptance, with each step that verifies drafts of it."""
_PRIOR_WEIGHT: Final = 3.0
"""Tokens that what is known of all rows counts as."""
_PRIOR: Final = 0.6
_KEEP_ALL: Final = 0.99
_KEEP_COST: Final = 0.98
_PLAIN_EVERY: Final = 64
"""Steps that verify drafts, after which one is planned without: what drafts cost is known by comparison."""
_FIRST_PLAIN: Final = 2
"""The same while nothing is known of what they cost in steps of so many rows; then twice as many each time, for there
may be none from which it can be learnt."""
_MOST_UNPRICED: Final = 2
"""Drafts of a row then."""
_LEAST_SPREAD: Final = 0.1
"""Variance of drafts in steps below which nothing is known of what one costs."""
_OUTLIER: Final = 2.0
"""A step that takes so much longer than is expected counts as no longer than that."""
_MARGIN: Final = 1.1
"""What a draft has to be worth of what it costs."""
_FIRST_PAUSE: Final = 16
_LONGEST_PAUSE: Final = 256


class Acceptance:
    """Of one sequence: how often a draft was right where all before it were."""

    __slots__ = ("pause", "right", "tried", "wait")

    def __init__(self) -> None:
        self.right = self.tried = 0.0
        self.pause = _FIRST_PAUSE
        """Steps without drafts, where none pay, before one is tried again."""
        self.wait = _FIRST_PAUSE
        """Of these, those that are left."""


class StepCost:
    """Of steps in which so many rows decode: their time as a line over the drafts in them."""

    __slots__ = ("_count", "_drafts", "_products", "_seconds", "_slope", "_squares", "is_priced")

    def __init__(self) -> None:
        self._count = self._drafts = self._seconds = self._squares = self._products = 0.0
        self.is_priced = False
        """Whether there have been steps with unlike numbers of drafts."""
        self._slope = 0.0
        """Seconds of a draft, as steps with unlike numbers of them have told last."""

    def add(self, drafts: int, seconds: float) -> None:
        if (expected := self._expected(drafts)) > 0.0:
            seconds = min(seconds, _OUTLIER * expected)
        self._count = self._count * _KEEP_COST + 1
        self._drafts = self._drafts * _KEEP_COST + drafts
        self._seconds = self._seconds * _KEEP_COST + seconds
        self._squares = self._squares * _KEEP_COST + drafts * drafts
        self._products = self._products * _KEEP_COST + drafts * seconds
        mean, time = self._drafts / self._count, self._seconds / self._count
        if (spread := self._squares / self._count - mean * mean) >= _LEAST_SPREAD:
            self.is_priced = True
            self._slope = max(0.0, (self._products / self._count - mean * time) / spread)

    @property
    def price(self) -> float:
        """Of one draft, as a share of a step without any; 0 where that is not known."""
        return self._slope / plain if (plain := self._expected(0)) > 0.0 else 0.0

    def _expected(self, drafts: int) -> float:
        """Seconds of a step with so many; 0 before there was any."""
        if not self._count:
            return 0.0
        mean, time = self._drafts / self._count, self._seconds / self._count
        return max(time + self._slope * (drafts - mean), time / (1 + mean))


class DraftControl:
    """Learns from results, and says how many drafts a row is to have.

    A draft i places behind a row's own token is drawn with probability p^i, where p is how often the row's drafts were
    right lately, and costs what a position costs in steps of so many rows. It is planned while it is worth more of a
    step than it takes. So rows whose drafts are refused have none, but for one now and then, and none have any where
    steps are bound by computation. A model in a test, whose steps take no time, has as many as it may.
    """

    __slots__ = (
        "_all_right",
        "_all_tried",
        "_caps",
        "_costs",
        "_drafting_steps",
        "_plain_every",
        "_takes_no_time",
        "accepted_by_position",
        "most",
        "num_draft_tokens",
        "num_drafts",
    )

    def __init__(self, most: int, caps: Caps = ()) -> None:
        self.most = most
        self._caps = caps
        self._costs: dict[int, StepCost] = {}
        self._all_right, self._all_tried = _PRIOR, 1.0
        self._drafting_steps = 0
        self._plain_every = _FIRST_PLAIN
        """Where drafts have no price yet."""
        self._takes_no_time = False
        self.num_drafts = 0
        """Times that a row was verified with drafts."""
        self.num_draft_tokens = 0
        self.accepted_by_position = [0] * most

    def limit(self, rows: int) -> int:
        """Drafts of each row in a step of so many that decode; 0 also where it is to be measured without."""
        is_priced = self._is_priced(rows)
        if self._drafting_steps >= (_PLAIN_EVERY if is_priced else self._plain_every):
            self._drafting_steps = 0
            if not is_priced:
                self._plain_every = min(2 * self._plain_every, _PLAIN_EVERY)
            return 0
        return min((drafts for least, most, drafts in self._caps if least <= rows <= most), default=self.most)

    def wanted(self, sequence: Row, rows: int, limit: int) -> int:
        """Drafts of this row in a step of so many that decode, at most ``limit``; mutates what is known of it."""
        known = sequence.acceptance
        if known is None:
            known = sequence.acceptance = Acceptance()
        if not self._is_priced(rows):
            return min(limit, _MOST_UNPRICED)
        cost = self._costs.get(_class_of(rows))
        price = 0.0 if cost is None else cost.price * rows * _MARGIN
        if price <= 0.0:
            return limit
        right = known.right + _PRIOR_WEIGHT * self._all_right / self._all_tried
        chance = right / (known.tried + _PRIOR_WEIGHT)
        worth = 0 if chance < price else limit if chance >= 1.0 else math.floor(math.log(price) / math.log(chance))
        if worth > 0:
            return min(limit, worth)
        if known.wait > 0:
            known.wait -= 1
            return 0
        known.wait = known.pause
        known.pause = min(2 * known.pause, _LONGEST_PAUSE)
        return min(limit, 1)

    def learn(self, flight: InFlightStep, result: StepResult) -> None:
        """What a step says of its rows' drafts, and of what they cost."""
        drafted = result.drafted
        total = 0
        if drafted is not None and result.counts is not None:
            drew = (sequence for sequence, _, _, most in flight.owners if most)
            total = self._note(drew, drafted, result.counts)
            self._drafting_steps += total > 0
        self._takes_no_time = result.seconds == 0.0
        if result.seconds > 0.0 and self.most and flight.decodes_alone:
            rows = len(flight.rows)
            cost = self._costs.setdefault(_class_of(rows), StepCost())
            was_priced = cost.is_priced
            cost.add(total, result.seconds)
            if cost.is_priced and not was_priced:
                self._plain_every = _FIRST_PLAIN

    def _is_priced(self, rows: int) -> bool:
        """Whether it is known what drafts cost in steps of so many rows."""
        cost = self._costs.get(_class_of(rows))
        return self._takes_no_time or (cost is not None and cost.is_priced)

    def _note(self, sequences: Iterable[Row], drafted: Sequence[int], counts: Sequence[int]) -> int:
        """Drafts in all."""
        for sequence, drafts, count in zip(sequences, drafted, counts, strict=True):
            if not drafts:
                continue
            accepted = count - 1
            tried = accepted + (accepted < drafts)
            self.num_drafts += 1
            self.num_draft_tokens += drafts
            for position in range(accepted):
                self.accepted_by_position[position] += 1
            self._all_right = self._all_right * _KEEP_ALL + accepted
            self._all_tried = self._all_tried * _KEEP_ALL + tried
            if (known := sequence.acceptance) is not None:
                known.right = known.right * _KEEP + accepted
                known.tried = known.tried * _KEEP + tried
                if accepted:
                    known.pause, known.wait = _FIRST_PAUSE, min(known.wait, _FIRST_PAUSE)
        return sum(drafted)


def _class_of(rows: int) -> int:
    """Steps of nearly as many rows take as long: each number up to 8, then four an octave."""
    return rows if rows <= 8 else 8 + math.floor(4 * math.log2(rows / 8))
