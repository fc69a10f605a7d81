"""Seconds of full load, on a model so small that they are as many tokens as a minute of the real one.

``make soak`` takes ten minutes of that.
"""

from pathlib import Path

import numpy as np
import pytest

from stentor.loadtest.record import RequestRecord, Result, Target
from stentor.loadtest.server_process import ServerProcess
from stentor.loadtest.serving.lengths import parse_lengths
from stentor.loadtest.serving.measure import summarise
from stentor.tests.chaos.soaking import CONTEXT, INPUT, OUTPUT, SERVE, Sample, failures_in, soak, theil_sen, trend_of
from stentor.tests.e2e.made_up import describe_talker

pytestmark = pytest.mark.proof

SECONDS = 8.0
WARMUP = 2.0
SEED = 20261121


def test_under_full_load_no_process_grows(demo_model: object, tmp_path: Path) -> None:
    # a cache so small that it is soon touched as a whole by requests of a model so small
    with ServerProcess([*describe_talker(tmp_path), *SERVE, "--kv-cache-memory", "32M"]) as server:
        found = soak(server, SECONDS, WARMUP, SEED, lambda _: None)
        assert not found.problems, f"seed {SEED}: {found.problems}\n{found.trends}\n{server.output()[-3000:]}"
        assert {trend.role for trend in found.trends} >= {"server", "engine", "worker", "forkserver"}
        assert found.requests > found.streams, "the load has not begun again"


def test_no_request_of_the_load_is_larger_than_the_context() -> None:
    assert parse_lengths(INPUT).greatest + parse_lengths(OUTPUT).greatest <= CONTEXT


def test_a_request_that_failed_is_told_with_all_that_is_known_of_it() -> None:
    good = RequestRecord(1.0, 1.0, 60, 50, 0.1, [], [], 2.0)
    bad = RequestRecord(61.5, 61.5, 1145, 0, None, [], [], 0.004, "http 400: too long", request_id="req-7")
    silent = RequestRecord(70.0, 70.0, 60, 0, None, [], [], 120.0, "timeout: silent for 120 s")
    result = Result(
        name="soak",
        started_at="2026-11-21T15:44:57.387+00:00",
        target=Target("http://127.0.0.1:1", "chaos", "completions"),
        summary=summarise([good, bad, silent], 200.0, {}),
        requests=[good, bad, silent, *[bad] * 100],
    )
    first, second, *rest = failures_in(result)
    assert first.at == "2026-11-21T15:45:58.887+00:00"
    assert str(first).startswith("request req-7, sent 2026-11-21T15:45:58.887+00:00, failed after 0.00 s")
    assert str(first).endswith("1145 tokens and 0 of output: http 400: too long")
    assert str(second).startswith("request without an answer")
    assert len(rest) == 18


def _samples(*mib: float) -> list[Sample]:
    return [Sample(float(at), {"server": int(size * 2**20)}) for at, size in enumerate(mib)]


def test_a_trend_is_found_among_noise_and_noise_is_none() -> None:
    noise = np.random.default_rng(1).normal(0, 3, 600)
    flat = trend_of("server", _samples(*(400 + noise)))
    assert flat.problem is None
    assert abs(flat.growth_mib) < 1
    rising = trend_of("server", _samples(*(400 + noise + np.arange(600) / 60)))
    assert rising.slope_mib_per_hour == pytest.approx(60, rel=0.1)
    assert "grows by" in str(rising.problem)


def test_a_step_up_at_the_end_is_found_by_the_thirds() -> None:
    stepping = trend_of("server", _samples(*[400.0] * 420, *[420.0] * 180))
    assert stepping.growth_mib == 0
    assert "the median of the last third is 420.0" in str(stepping.problem)


def test_memory_that_is_given_back_is_no_trend() -> None:
    assert trend_of("server", _samples(*np.linspace(500, 400, 90))).problem is None


def test_a_few_peaks_do_not_move_the_slope() -> None:
    values = np.arange(100.0)
    values[[3, 50, 97]] = 1e6
    assert theil_sen(np.arange(100.0), values) == pytest.approx(1.0)
