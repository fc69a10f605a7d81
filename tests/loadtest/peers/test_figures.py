"""The arithmetic of the table: figures of a round, medians, who is best, and how many times better."""

import pytest

from stentor.loadtest.client import Answer
from stentor.loadtest.peers.figures import (
    Column,
    Measure,
    Round,
    Settings,
    best,
    measures,
    medians,
    prefill_round,
    ratios,
    settle_shapes,
    streams_round,
    times_better,
    value,
)
from stentor.loadtest.record import quantile

RATE = Measure("8", "output_tokens_per_s", "8 streams: output tokens/s", True)
WAIT = Measure("8", "itl_ms_p99", "8 streams: ITL p99 ms", False, 1)


def _column(name: str, bits: str, rates: list[float], waits: list[float]) -> Column:
    rounds: list[Round] = [
        {"output_tokens_per_s": rate, "itl_ms_p99": wait} for rate, wait in zip(rates, waits, strict=True)
    ]
    return Column(
        name=name,
        peer=name.partition("-")[0],
        bits=bits,
        version="1",
        command=name,
        weights="w",
        weight_bytes=1,
        rounds={"8": rounds},
    )


def test_a_round_of_streams_counts_all_tokens_over_the_time_of_all() -> None:
    slow = Answer(0.0, [1.0, 1.5, 2.0], 4, 3)
    fast = Answer(0.5, [1.0, 1.25, 1.5], 4, 3)
    found = streams_round([slow, fast])
    assert found["output_tokens_per_s"] == 6 / 2.0
    assert (found["ttft_ms_p50"], found["ttft_ms_p99"]) == (500, 1000)
    assert found["decode_tokens_per_s"] == (2 / 1.0 + 2 / 0.5) / 2
    assert (found["itl_ms_p50"], found["itl_ms_p99"]) == (250, 500)
    assert found["longest_gap_ms"] == (500 + 250) / 2
    assert found["itl_tokens_per_s"] == 4
    assert found["tokens_per_chunk"] == 1


def test_merged_chunks_do_not_flatter_the_rate_of_decoding() -> None:
    merged = Answer(0.0, [1.0, 2.0], 4, 5)
    found = streams_round([merged])
    assert found["decode_tokens_per_s"] == 4
    assert found["tokens_per_chunk"] == 2.5
    assert found["itl_ms_p50"] == 1000


def test_an_answer_that_came_at_once_has_no_rate_of_decoding() -> None:
    assert "decode_tokens_per_s" not in streams_round([Answer(0.0, [1.0], 4, 1)])


def test_a_long_prompt_counts_prompt_tokens_to_the_first_output() -> None:
    found = prefill_round(Answer(1.0, [3.0], 2048, 1), Answer(5.0, [5.02], 2048, 1))
    assert found["prefill_tokens_per_s"] == 1024
    assert found["again_ttft_ms"] == pytest.approx(20)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)])
def test_a_quantile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    assert quantile([float(n) for n in range(100, 0, -1)], share) == expected


def test_a_value_is_the_median_of_the_rounds_and_absent_where_nothing_was_measured() -> None:
    column = _column("stentor-bf16", "bf16", [10, 40, 20], [1, 2, 3])
    assert value(column, RATE) == 20
    assert value(column, Measure("32", "output_tokens_per_s", "", True)) is None
    assert medians([column], [RATE, WAIT]) == {"stentor-bf16": {RATE.label: 20, WAIT.label: 2}}


def test_the_best_has_the_highest_rate_and_the_shortest_wait() -> None:
    columns = [_column("vllm-bf16", "bf16", [10], [5]), _column("llama.cpp-bf16", "bf16", [8], [3])]
    rate, wait = best(20, columns, RATE), best(6, columns, WAIT)
    assert rate is not None
    assert wait is not None
    assert (rate.name, rate.times) == ("vllm-bf16", 2)
    assert (wait.name, wait.times) == ("llama.cpp-bf16", 0.5)
    assert best(1, [], RATE) is None


def test_times_better_is_above_one_where_ours_is_better_in_either_direction() -> None:
    assert times_better(30, 20, RATE) == 1.5
    assert times_better(20, 30, WAIT) == 1.5
    assert times_better(20, 30, RATE) < 1 > times_better(30, 20, WAIT)


def test_ours_is_put_beside_the_best_peer_of_its_width_and_the_best_of_all() -> None:
    columns = [
        _column("stentor-q4_0", "q4_0", [30], [4]),
        _column("llama.cpp-q4_1", "q4_1", [10], [2]),
        _column("vllm-bf16", "bf16", [20], [8]),
    ]
    rate, wait = ratios(columns, [RATE, WAIT])
    assert rate.alike is not None
    assert (rate.alike.name, rate.alike.times) == ("llama.cpp-q4_1", 3.0)
    assert (rate.any.name, rate.any.times) == ("vllm-bf16", 1.5)
    assert (wait.any.name, wait.any.times) == ("llama.cpp-q4_1", 0.5)


def test_without_a_peer_there_is_no_ratio() -> None:
    assert ratios([_column("stentor-q4_0", "q4_0", [30], [4])], [RATE]) == []


def test_rows_follow_the_shapes_and_end_with_the_start() -> None:
    rows = measures(["1", "32", "prefill"])
    assert [row.shape for row in rows] == [*2 * ["1"], *6 * ["32"], *2 * ["prefill"], *2 * ["start"]]
    assert len({row.label for row in rows}) == len(rows)


def test_shapes_are_read_once_each_and_in_order() -> None:
    assert settle_shapes("8, 1,prefill,08") == ["8", "1", "prefill"]
    assert settle_shapes("prefill:512,08,prefill") == ["prefill:512", "8", "prefill"]
    assert settle_shapes(None) == ["1", "8", "32", "prefill"]


def test_prompts_of_several_lengths_are_rows_of_one_table() -> None:
    settings = Settings(settle_shapes("1,8,prefill:512,prefill"))
    assert [settings.prompt_of(shape) for shape in settings.shapes] == [128, 128, 512, 2048]
    assert settings.room == (8, 2304), "one prompt of 2,048 and its answer, in whole blocks"
    assert Settings(["1"], prompt=4000).room == (1, 4352)
    assert [row.label for row in measures(settings.shapes[2:])][:4] == [
        "prompt of 512: prefill tokens/s",
        "the same prompt of 512 again: TTFT ms",
        "long prompt: prefill tokens/s",
        "the same prompt again: TTFT ms",
    ]


@pytest.mark.parametrize("named", ["", "0", "-1", "many", "1,two", "prefill:0", "prefill:long"])
def test_a_shape_that_is_none_says_what_was_expected(named: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        settle_shapes(named)
