"""Workers and engines die under 32 live streams. ``make chaos`` has the long form, on the real model.

A seed makes the requests and the moments of the kills; what they meet depends on time all the same.
"""

from pathlib import Path

import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos.bodies import make_bodies, runs_to_its_length
from stentor.tests.chaos.exactness import SHORT, SMALL_STEPS, Amount, Outcome, measure, serve_arguments
from stentor.tests.e2e.made_up import EXACT, describe_talker

pytestmark = [pytest.mark.alone, pytest.mark.proof]

SEED = 20261121
FEWER = Amount(1, 1, 0, 32, 20, 40)


def _run(server: ServerProcess, amount: Amount, *, exact: bool) -> Outcome:
    notes: list[str] = []
    try:
        outcome = measure(server, amount, SEED, exact=exact, note=notes.append)
    except TimeoutError as error:
        pytest.fail(f"{error}; seed {SEED}, {notes[-1]}\n{server.output()[-5000:]}")
    assert not outcome.problems, f"seed {SEED}: {outcome.problems[:5]}\n{server.output()[-5000:]}"
    assert outcome.incomplete == 0
    assert outcome.survivors >= outcome.streams_at_once, "no stream was hit"
    return outcome


@pytest.mark.proof
def test_in_float32_every_stream_is_exactly_what_it_is_undisturbed(demo_model: object, tmp_path: Path) -> None:
    with ServerProcess([*describe_talker(tmp_path), *serve_arguments(*EXACT, *SMALL_STEPS)]) as server:
        outcome = _run(server, SHORT, exact=True)
        assert outcome.identical == outcome.streams
        assert [each.kills for each in outcome.recoveries] == [3, 3, 1]
        assert "the worker process hung in a step" in server.output()


def test_in_the_default_dtype_no_token_is_lost_and_none_comes_twice(demo_model: object, tmp_path: Path) -> None:
    with ServerProcess([*describe_talker(tmp_path), *serve_arguments(*SMALL_STEPS)]) as server:
        outcome = _run(server, FEWER, exact=False)
        assert [each.kills for each in outcome.recoveries] == [1, 1, 0]


def test_requests_are_half_greedy_and_half_drawn_with_a_seed_and_the_same_for_the_same_seed() -> None:
    bodies = make_bodies(1, 64, 10, 20)
    assert bodies == make_bodies(1, 64, 10, 20)
    drawn = [body for body in bodies if body["temperature"]]
    assert len(drawn) == 32
    assert all("seed" in body for body in drawn)
    assert len({body["seed"] for body in drawn}) == 32
    assert sum(body.get("n", 1) == 2 for body in bodies) == 20
    assert sum("tools" in body for body in bodies) == sum("structured_outputs" in body for body in bodies) == 8
    assert 35 < sum(map(runs_to_its_length, bodies)) < 48
    assert {body["max_tokens"] for body in bodies} <= set(range(10, 21))
