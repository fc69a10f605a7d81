"""Percentiles against numpy and the statistics module, goodput and rates against arithmetic by hand."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.loadtest.record import RequestRecord, Spread
from stentor.loadtest.serving.measure import keeps, parse_limits, span, spread, summarise
from stentor.loadtest.tool import UsageError


def _request(
    ttft: float | None = 0.1, e2e: float = 1.0, tokens: int = 10, error: str | None = None, start: float = 0.0
) -> RequestRecord:
    gaps = [0.1] * (tokens - 1)
    return RequestRecord(start, start, 5, tokens, ttft, gaps, [1] * len(gaps), e2e, error)


SECONDS = st.lists(st.floats(0, 1e4), min_size=2, max_size=200)


@given(SECONDS)
def test_percentiles_are_numpy_s_and_the_statistics_module_s(seconds: list[float]) -> None:
    found = spread(seconds)
    expected = np.percentile(np.array(seconds) * 1e3, [50, 90, 95, 99])
    assert (found.p50, found.p90, found.p95, found.p99) == pytest.approx(tuple(expected), rel=1e-12)
    cuts = statistics.quantiles([value * 1e3 for value in seconds], n=100, method="inclusive")
    assert (found.p50, found.p90, found.p95, found.p99) == pytest.approx(
        (cuts[49], cuts[89], cuts[94], cuts[98]), rel=1e-9, abs=1e-9
    )
    assert found.mean == pytest.approx(statistics.fmean(seconds) * 1e3)
    assert (found.max, found.count) == (max(seconds) * 1e3, len(seconds))


def test_nothing_has_no_spread() -> None:
    assert spread([]) == Spread()
    assert spread([0.25]) == Spread(250.0, 250.0, 250.0, 250.0, 250.0, 250.0, 1)


def test_tpot_is_the_time_after_the_first_token_shared_by_the_rest() -> None:
    assert _request(0.1, 1.0, 10).tpot == pytest.approx(0.1)
    assert _request(0.1, 1.0, 1).tpot is None
    assert _request(None, 1.0, 10).tpot is None


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"ttft": 100.0}, True),
        ({"ttft": 99.0}, False),
        ({"tpot": 101.0}, True),
        ({"tpot": 99.0}, False),
        ({"itl": 101.0, "e2e": 1000.0}, True),
        ({"itl": 99.0, "e2e": 1000.0}, False),
        ({"ttft": 500.0, "e2e": 999.0}, False),
    ],
)
def test_a_request_is_good_within_every_limit(limits: dict[str, float], kept: bool) -> None:
    assert keeps(_request(), limits) is kept


def test_an_answer_without_output_is_within_no_limit_of_its_first() -> None:
    empty = _request(None, 0.2, 0)
    assert not keeps(empty, {"ttft": 1e9})
    assert keeps(empty, {"tpot": 1.0, "itl": 1.0, "e2e": 201.0})


def test_an_error_is_never_good_and_a_measure_that_is_not_there_never_bad() -> None:
    assert not keeps(_request(error="timeout: silent"), {"ttft": 1e9})
    assert keeps(_request(tokens=1), {"tpot": 1.0, "itl": 1.0})


def test_a_summary_counts_complete_answers() -> None:
    requests = [
        _request(0.1),
        _request(0.3),
        _request(0.6),
        _request(error="http 503: full"),
        _request(None, error="http 503: empty"),
    ]
    summary = summarise(requests, 2.0, {"ttft": 300.0}, peak_concurrency=4)
    assert (summary.requests, summary.completed, summary.errors) == (5, 3, 2)
    assert (summary.prompt_tokens, summary.output_tokens) == (15, 30)
    assert (summary.output_tokens_per_s, summary.total_tokens_per_s, summary.requests_per_s) == (15.0, 22.5, 1.5)
    assert (summary.goodput_per_s, summary.goodput_share) == (1.0, 0.4)
    assert summary.errors_by_kind == {"http 503": 2}
    assert summary.ttft.count == 3
    assert summary.itl.count == 27
    assert summary.peak_concurrency == 4


def test_without_limits_there_is_no_goodput_and_without_requests_no_rate() -> None:
    assert summarise([_request()], 1.0, {}).goodput_per_s is None
    nothing = summarise([], 0.0, {"ttft": 1.0})
    assert (nothing.output_tokens_per_s, nothing.goodput_share) == (0.0, 0.0)


def test_a_run_spans_from_the_first_start_to_the_last_end() -> None:
    assert span([_request(start=2.0, e2e=5.0), _request(start=1.0, e2e=1.0)]) == 6.0
    assert span([]) == 0.0


def test_limits_are_read_and_refused() -> None:
    assert parse_limits(["ttft:500", "tpot:50.5", "e2el:9"]) == {"ttft": 500.0, "tpot": 50.5, "e2e": 9.0}
    for word in ("ttft", "ttft:", "ttft:-1", "ttft:nan", "speed:3"):
        with pytest.raises(UsageError, match="is no limit"):
            parse_limits([word])
