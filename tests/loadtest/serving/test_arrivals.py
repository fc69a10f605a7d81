"""Arrivals: the statistics of their gaps, and how a run is cut into stages."""

import math
from itertools import islice

import numpy as np
import pytest

from stentor.loadtest.serving.arrivals import Stage, gaps, parse_ramp, plan
from stentor.loadtest.tool import UsageError


def _gaps(rate: float, burstiness: float, seed: int = 3) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(list(islice(gaps(np.random.default_rng(seed), rate, burstiness), 20_000)))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_s_mean_and_the_burstiness_s_variation(burstiness: float) -> None:
    found = _gaps(8.0, burstiness)
    assert abs(found.mean() * 8 - 1) < 0.05
    assert abs(found.std() / found.mean() * math.sqrt(burstiness) - 1) < 0.05


def test_poisson_s_gaps_are_exponential_and_its_counts_vary_as_their_mean() -> None:
    found = _gaps(50.0, 1.0)
    assert abs((found > 1 / 50).mean() - math.exp(-1)) < 0.01
    counts = np.bincount(np.cumsum(found).astype(int))[:-1]
    assert abs(counts.var() / counts.mean() - 1) < 0.2


def test_without_burstiness_there_is_a_metronome() -> None:
    assert set(_gaps(5.0, math.inf)) == {0.2}


def test_the_same_seed_arrives_at_the_same_times() -> None:
    assert (_gaps(5, 1) == _gaps(5, 1)).all()
    assert (_gaps(5, 1) != _gaps(5, 1, seed=4)).any()


@pytest.mark.parametrize(
    ("text", "axis", "values"),
    [
        ("concurrency:1:32:4", "concurrency", [1, 11, 22, 32]),
        ("concurrency:1,2,16", "concurrency", [1, 2, 16]),
        ("rate:0.5:2:4", "rate", [0.5, 1.0, 1.5, 2.0]),
        ("rate:8:2:3", "rate", [8, 5, 2]),
    ],
)
def test_a_ramp_is_even_steps_or_a_list(text: str, axis: str, values: list[float]) -> None:
    assert parse_ramp(text) == (axis, values)


@pytest.mark.parametrize(
    "text",
    ["", "rate", "users:1:2:3", "rate:1:2:1", "rate:0:2:3", "concurrency:0.2,1", "concurrency:inf,2", "rate:a,b"],
)
def test_what_is_no_ramp_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no ramp"):
        parse_ramp(text)


def test_a_plain_run_is_one_stage_without_a_name() -> None:
    assert plan(concurrency=4, requests=9) == [Stage(concurrency=4, requests=9)]
    assert plan(rate=2.5, seconds=3.0, burstiness=0.5) == [Stage(rate=2.5, seconds=3.0, burstiness=0.5)]


def test_a_ramp_shares_out_requests_and_time() -> None:
    stages = plan(ramp="rate:1,2,3", requests=8, seconds=6.0)
    assert [stage.requests for stage in stages] == [3, 3, 2]
    assert [stage.name for stage in stages] == ["rate=1", "rate=2", "rate=3"]
    assert {stage.seconds for stage in stages} == {2.0}


def test_two_ways_to_arrive_contradict_and_a_ramp_needs_a_request_a_step() -> None:
    with pytest.raises(UsageError, match="exclude one another"):
        plan(concurrency=4, rate=2.0)
    with pytest.raises(UsageError, match="too few"):
        plan(ramp="rate:1,2,3", requests=2)
