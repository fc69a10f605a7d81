"""Decides how many draft tokens a row gets: as many as have lately paid for their time."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from stentor.protocols.ipc.steps import StepResult

from ..sequence import Sequence as Row
from .step import InFlightStep

Caps = Sequence[tuple[int, int, int]]
"""(min rows, max rows, drafts): the limit of drafts a row while this many rows decode."""

_KEEP: Final = 0.9
"""Decay of a row's acceptance record with each verified step."""
_PRIOR_WEIGHT: Final = 3.0
"""Weight in tokens of all rows' acceptance as the prior of one row's."""
_PRIOR: Final = 0.6
_KEEP_ALL: Final = 0.99
_KEEP_COST: Final = 0.98
_PLAIN_EVERY: Final = 64
"""Steps with drafts after which one is planned without, to measure what drafts cost."""
_FIRST_PLAIN: Final = 2
"""Such steps while the cost is unknown for this number of rows. Doubles each time, since there may be no steps to learn
from."""
_MOST_UNPRICED: Final = 2
"""Drafts of a row while the cost is unknown."""
_LEAST_SPREAD: Final = 0.1
"""Least variance of drafts over steps from which the cost of one is estimated."""
_OUTLIER: Final = 2.0
"""A step's time counts as at most this multiple of the expected time."""
_MARGIN: Final = 1.1
"""Least ratio of a draft's worth to its cost."""
_FIRST_PAUSE: Final = 16
_LONGEST_PAUSE: Final = 256


class Acceptance:
    """How often the drafts of one sequence were right, given that all before them were."""

    __slots__ = ("pause", "right", "tried", "wait")

    def __init__(self) -> None:
        self.right = self.tried = 0.0
        self.pause = _FIRST_PAUSE
        """Steps without drafts before one is tried again, where drafts do not pay."""
        self.wait = _FIRST_PAUSE
        """Steps left of this pause."""


class StepCost:
    """Time of steps with one number of decoding rows, as a linear function of the drafts in them."""

    __slots__ = ("_count", "_drafts", "_products", "_seconds", "_slope", "_squares", "is_priced")

    def __init__(self) -> None:
        self._count = self._drafts = self._seconds = self._squares = self._products = 0.0
        self.is_priced = False
        """Whether steps with different numbers of drafts have been measured."""
        self._slope = 0.0
        """Latest estimate of the seconds that one draft takes."""

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
        """Cost of one draft as a fraction of a step without drafts; 0 if unknown."""
        return self._slope / plain if (plain := self._expected(0)) > 0.0 else 0.0

    def _expected(self, drafts: int) -> float:
        """Expected seconds of a step with this many drafts; 0 before the first step."""
        if not self._count:
            return 0.0
        mean, time = self._drafts / self._count, self._seconds / self._count
        return max(time + self._slope * (drafts - mean), time / (1 + mean))


class DraftControl:
    """Learns from results how many drafts a row should have.

    The i-th draft of a row is accepted with probability p^i, where p is the row's recent acceptance. It costs what a
    position costs in a step of that many rows, and is planned while its worth exceeds its cost. So rows whose drafts
    are refused have none, except one now and then to try, and no row has any where steps are bound by computation.
    Steps that take no time, as in tests, get the full number.
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
        """Interval of steps without drafts while their cost is unknown."""
        self._takes_no_time = False
        self.num_drafts = 0
        """Row steps with drafts that were verified."""
        self.num_draft_tokens = 0
        self.accepted_by_position = [0] * most

    def limit(self, rows: int) -> int:
        """Most drafts of each row in a step with this many decoding rows; 0 also in a step that measures without
        drafts."""
        is_priced = self._is_priced(rows)
        if self._drafting_steps >= (_PLAIN_EVERY if is_priced else self._plain_every):
            self._drafting_steps = 0
            if not is_priced:
                self._plain_every = min(2 * self._plain_every, _PLAIN_EVERY)
            return 0
        return min((drafts for least, most, drafts in self._caps if least <= rows <= most), default=self.most)

    def wanted(self, sequence: Row, rows: int, limit: int) -> int:
        """Drafts of this row in a step with this many decoding rows, at most ``limit``; mutates the row's record."""
        known = sequence.acceptance
        if known is None:
            known = sequence.acceptance = Acceptance()
        if not self._is_priced(rows):
            return min(limit, _MOST_UNPRICED)
        cost = self._costs.get(row_class(rows))
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
        """Learn acceptance and cost of drafts from a step's result."""
        drafted = result.drafted
        total = 0
        if drafted is not None and result.counts is not None:
            drew = (sequence for sequence, _, _, max_gained in flight.owners if max_gained)
            total = self._note(drew, drafted, result.counts)
            self._drafting_steps += total > 0
        self._takes_no_time = result.seconds == 0.0
        if result.seconds > 0.0 and self.most and flight.decodes_alone:
            rows = len(flight.rows)
            cost = self._costs.setdefault(row_class(rows), StepCost())
            was_priced = cost.is_priced
            cost.add(total, result.seconds)
            if cost.is_priced and not was_priced:
                self._plain_every = _FIRST_PLAIN

    def _is_priced(self, rows: int) -> bool:
        """Whether the cost of drafts is known for this number of rows."""
        cost = self._costs.get(row_class(rows))
        return self._takes_no_time or (cost is not None and cost.is_priced)

    def _note(self, sequences: Iterable[Row], drafted: Sequence[int], counts: Sequence[int]) -> int:
        """Record the acceptance of each row; returns the number of drafts."""
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


def row_class(rows: int) -> int:
    """Class of row counts whose steps take about equal time: each number up to 8, then four an octave."""
    return rows if rows <= 8 else 8 + math.floor(4 * math.log2(rows / 8))
