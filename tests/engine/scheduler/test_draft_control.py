"""How many drafts a row gets: by how often they were right, and by what they cost."""

import random
from itertools import pairwise

import pytest

from stentor.engine.core.scheduler.draft_control import DraftControl, StepCost
from stentor.engine.core.scheduler.step import InFlightStep, Owner
from stentor.engine.core.sequence import Sequence
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import RowStep, StepResult
from stentor.tests.engine.fake_engine import Engine

NOBODY: frozenset[int] = frozenset()


def sequences(count: int) -> list[Sequence]:
    engine = Engine()
    rid = engine.submit([1, 2], SamplingParams(max_tokens=9), seeds=range(count))
    return engine.scheduler._output.requests[rid].sequences


def steps(control: DraftControl, rows: list[Sequence], drafts: int, right: int, *, each: float, count: int = 1) -> None:
    """So many steps of a second and ``each`` for every draft, of which ``right`` of a row's are accepted."""
    flight = InFlightStep(
        0,
        [RowStep(slot, 5, 1, [], True, drafts) for slot in range(len(rows))],
        [Owner(row, 0, 6, 1 + drafts) for row in rows],
        len(rows),
        len(rows),
        [],
        NOBODY,
        NOBODY,
    )
    counts, drafted = [1 + right] * len(rows), [drafts] * len(rows)
    seconds = 1 + each * drafts * len(rows)
    for _ in range(count):
        control.learn(flight, StepResult(0, 0, [], None, [], seconds, counts=counts, drafted=drafted))


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_what_a_draft_costs_is_the_slope_of_the_times_of_steps(noise: float) -> None:
    rng = random.Random(1)
    cost = StepCost()
    assert cost.price == 0.0
    for _ in range(400):
        drafts = rng.randrange(5)
        cost.add(drafts, 0.010 + 0.001 * drafts + 0.010 * noise * rng.random())
    assert cost.price == pytest.approx(0.1, rel=0.01 if not noise else 0.3)


def test_a_step_that_took_very_long_once_says_little_of_drafts() -> None:
    cost = StepCost()
    for at in range(200):
        cost.add(at % 5, 0.010 + 0.001 * (at % 5))
    cost.add(4, 30.0)
    assert cost.price < 0.4


def test_drafts_follow_what_was_right_and_what_they_cost() -> None:
    (row,) = rows = sequences(1)
    control = DraftControl(4)
    assert control.wanted(row, 1, 4) == 2, "nothing is known"
    steps(control, rows, 4, 4, each=0.1, count=20)
    steps(control, rows, 0, 0, each=0.1, count=5)
    assert control.wanted(row, 1, 4) == 4
    for right, least, most in ((2, 4, 4), (1, 2, 3)):
        steps(control, rows, 4, right, each=0.1, count=60)
        assert least <= control.wanted(row, 1, 4) <= most


def test_a_row_whose_drafts_are_refused_tries_one_ever_more_rarely() -> None:
    (row,) = rows = sequences(1)
    control = DraftControl(4)
    control.wanted(row, 1, 4)
    steps(control, rows, 0, 0, each=0.1, count=5)
    steps(control, rows, 4, 0, each=0.1, count=200)
    wanted = [control.wanted(row, 1, 4) for _ in range(900)]
    assert set(wanted) == {0, 1}
    tried = [at for at, drafts in enumerate(wanted) if drafts]
    assert [b - a for a, b in pairwise(tried)] == [17, 33, 65, 129, 257, 257]
    steps(control, rows, 1, 1, each=0.1, count=30)
    assert control.wanted(row, 1, 4) > 1, "once they are right again they come back"


def test_steps_that_computation_binds_have_no_drafts_that_may_be_wrong() -> None:
    """Of 16 rows a draft takes as much of a step as a row does."""
    rows = sequences(16)
    control = DraftControl(4)
    for row in rows:
        control.wanted(row, 16, 4)
    steps(control, rows, 0, 0, each=1 / 16, count=5)
    steps(control, rows, 4, 3, each=1 / 16, count=50)
    assert control.wanted(rows[0], 16, 4) == 0
    assert control.wanted(rows[0], 1, 4) == 2, "of one row nothing is known yet"


def test_the_operator_bounds_drafts_by_the_rows_that_run() -> None:
    control = DraftControl(4, [(1, 4, 3), (5, 8, 0)])
    assert [control.limit(rows) for rows in (1, 4, 5, 9)] == [3, 3, 0, 4]


def test_a_step_is_planned_without_drafts_now_and_then() -> None:
    rows = sequences(1)
    control = DraftControl(4)
    limits = []
    for _ in range(150):
        limits.append(control.limit(1))
        steps(control, rows, limits[-1], limits[-1], each=0.1)
    assert [at for at, limit in enumerate(limits) if not limit] == [2, 67, 132]


def test_what_drafts_cost_is_learnt_with_few_of_them_and_sought_ever_more_rarely_where_it_cannot_be() -> None:
    (row,) = rows = sequences(1)
    control = DraftControl(8)
    steps(control, rows, 0, 0, each=0.1)
    assert control.wanted(row, 1, control.limit(1)) == 2
    steps(control, rows, 2, 2, each=0.1, count=2)
    assert control.wanted(row, 1, 8) == 8, "they were right, and have a price"
    lonely = DraftControl(8)
    steps(lonely, rows, 3, 3, each=0.1)
    limits = []
    for _ in range(150):
        limits.append(lonely.limit(1))
        if limits[-1]:
            steps(lonely, rows, 3, 3, each=0.1)  # never one without
    assert [at for at, limit in enumerate(limits) if not limit] == [1, 6, 15, 32, 65, 130]


def test_what_was_drafted_and_accepted_is_counted_by_position() -> None:
    control = DraftControl(3)
    rows = sequences(2)
    steps(control, rows, 3, 2, each=0.0)
    steps(control, rows, 2, 0, each=0.0)
    assert (control.num_drafts, control.num_draft_tokens, control.accepted_by_position) == (4, 10, [2, 2, 0])
