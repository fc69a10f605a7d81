"""From requests to curves, against numbers worked out by hand."""

import numpy as np
import pytest

from stentor.loadtest.record import RequestRecord
from stentor.loadtest.report.measures import (
    cumulative,
    gaps_over_time,
    in_flight,
    latencies,
    output_rate,
    percentile_over_time,
    thin,
    wide,
)
from stentor.tests.loadtest.report.synthetic import request


def test_latencies_are_milliseconds_of_completed_requests() -> None:
    requests = [request(ttft=0.1, itl=(0.02, 0.04)), request(ttft=0.3, itl=()), request(ttft=0.9, error="timeout: x")]
    assert latencies(requests, "ttft").tolist() == pytest.approx([100, 300])
    assert latencies(requests, "itl").tolist() == pytest.approx([20, 40])
    assert latencies(requests, "tpot").tolist() == pytest.approx([30])
    assert latencies(requests, "e2e").tolist() == pytest.approx([160, 300])


def test_a_distribution_rises_by_one_share_a_value() -> None:
    assert cumulative(np.array([30.0, 10.0, 20.0, 40.0])) == [(10, 0), (10, 25), (20, 50), (30, 75), (40, 100)]
    assert cumulative(np.zeros(0)) == []


def test_a_long_distribution_is_thinned_and_keeps_its_percentiles() -> None:
    points = cumulative(np.arange(1, 100_001, dtype=np.float64))
    assert len(points) < 300
    for value, share in points[1:]:
        assert value / 1000 == pytest.approx(share, abs=0.002)
    assert points[-1] == (100_000, 100)


def test_output_tokens_count_when_their_chunk_arrived() -> None:
    merged = RequestRecord(
        start=0.0,
        scheduled=0.0,
        prompt_tokens=5,
        output_tokens=6,
        ttft=0.5,
        itl=[1.0, 1.0],
        chunk_tokens=[3, 2],
        e2e=2.6,
    )
    late = request(start=1.0, ttft=0.2, itl=())
    points = output_rate([merged, late, request(ttft=None, error="refused")], np.array([0.0, 1.0, 2.0, 4.0]))
    assert points == [(0.5, 1.0), (1.5, 4.0), (3.0, 1.0)]


def test_requests_in_flight_rise_with_a_sending_and_fall_with_an_end() -> None:
    requests = [request(0.0, 1.0, (1.0,)), request(1.0, 0.5, ()), request(2.0, 1.0, ())]
    assert in_flight(requests) == [(0.0, 1), (1.0, 2), (1.5, 1), (2.0, 1), (3.0, 0)]


def test_percentiles_over_time_are_of_the_gaps_that_ended_in_each_slice() -> None:
    times, gaps = gaps_over_time([request(0.0, 0.5, (0.1, 0.2, 1.0)), request(1.0, 0.5, (0.3,))])
    assert times.tolist() == pytest.approx([0.6, 0.8, 1.8, 1.8])
    assert gaps.tolist() == pytest.approx([100, 200, 1000, 300])
    points = percentile_over_time(times, gaps, np.array([0.0, 1.0, 1.5, 2.0]), 50)
    assert [x for x, _ in points] == pytest.approx([0.5, 1.75])
    assert [y for _, y in points] == pytest.approx([150, 650])


def test_only_a_wide_spread_asks_for_a_logarithmic_axis() -> None:
    assert wide(np.geomspace(1, 100, 50))
    assert not wide(np.linspace(50, 100, 50))
    assert not wide(np.zeros(10))


def test_thinning_keeps_the_ends() -> None:
    points = [(float(index), 0.0) for index in range(1000)]
    kept = thin(points, 10)
    assert len(kept) == 10
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert thin(points[:5], 10) == points[:5]
