"""What the tables say, and that names which others choose are shown as they are."""

from typing import Any

import msgspec
from rich.console import Console

from stentor.loadtest.record import RequestRecord, Result, Summary, Target
from stentor.loadtest.serving.measure import summarise
from stentor.loadtest.serving.table import print_result

HOSTILE = "[/x] [bold]<b>"


def _printed(requests: list[RequestRecord], name: str = "m", **fields: Any) -> str:
    summary: Summary = summarise(requests, 1.0, {})
    target = Target("http://h", name, "completions", name)
    result = Result(name=name, started_at="2026-01-01", target=target, summary=summary, requests=requests, **fields)
    console = Console(width=150)
    with console.capture() as captured:
        print_result(console, result)
    return captured.get()


def _request(scheduled: float = 1.0, error: str | None = None, ttft: float | None = 0.1) -> RequestRecord:
    return RequestRecord(1.0, scheduled, 3, 4, ttft, [0.1], [1], 1.0, error)


def test_what_a_server_calls_itself_is_no_markup() -> None:
    printed = _printed([_request(), _request(error=f"http 500: {HOSTILE}")], HOSTILE)
    assert f"({HOSTILE})" in printed
    assert f"{HOSTILE}, completions" in printed
    assert printed.count(HOSTILE) == 3


def test_answers_without_output_are_told() -> None:
    assert "1 completed, 0 failed" in _printed([_request()])
    assert "2 completed (1 without output), 0 failed" in _printed([_request(), _request(ttft=None)])


def test_requests_that_left_late_are_told_since_no_latency_counts_it() -> None:
    assert "later than they were due" not in _printed([_request(0.999)])
    printed = _printed([_request(0.999), _request(0.2)])
    assert "requests were sent later than they were due" in printed
    assert "at most 800 ms" in printed


def test_what_the_server_counted_of_its_prefix_cache_is_told() -> None:
    before = {"vllm:prefix_cache_queries_total": 100.0, "vllm:prefix_cache_hits_total": 10.0}
    after = {"vllm:prefix_cache_queries_total": 300.0, "vllm:prefix_cache_hits_total": 60.0}
    after["vllm:num_preemptions_total"] = 2.0
    printed = _printed([_request()], metrics_before=before, metrics_after=after)
    assert "prefix cache      50 of 200 prompt tokens, 25.0%" in printed
    assert "preemptions       2" in printed
    assert "prefix cache" not in _printed([_request()])


def test_what_the_server_counted_of_its_drafts_is_told_by_position() -> None:
    name = "stentor:spec_decode_num_accepted_tokens_per_pos_total"
    before = {f'{name}{{model_name="m",position="{at}"}}': 5.0 for at in (0, 1)}
    after = {f'{name}{{model_name="m",position="{at}"}}': 5.0 + count for at, count in ((1, 10), (0, 30))}
    after |= {
        "stentor:spec_decode_num_drafts_total": 40.0,
        "stentor:spec_decode_num_draft_tokens_total": 80.0,
        "stentor:spec_decode_num_accepted_tokens_total": 40.0,
    }
    printed = " ".join(_printed([_request()], metrics_before=before, metrics_after=after).split())
    assert "2.00 tokens a step, 40 of 80 accepted (75%, 25% by position)" in printed
    assert "drafts" not in _printed([_request()])


def test_stages_are_told_in_their_order() -> None:
    requests = [msgspec.structs.replace(_request(), stage=f"rate={rate}") for rate in (2, 10)]
    lines = [line.split() for line in _printed(requests).splitlines()]
    assert [line[:3] for line in lines if line and line[0].startswith("rate=")] == [
        ["rate=2", "1", "0"],
        ["rate=10", "1", "0"],
    ]
