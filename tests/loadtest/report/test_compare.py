"""Ratios against numbers worked out by hand, and the exit status a check in CI relies on."""

from pathlib import Path

import pytest

from stentor.loadtest.record import Result, Sweep, save_record
from stentor.loadtest.report.compare import Row, compare, judge, main, parse_conditions, ratio_of
from stentor.loadtest.report.figures import READY, figures_of, known_figures, medians, points_of
from stentor.loadtest.tool import UsageError
from stentor.tests.loadtest.report.synthetic import lively, result, startup, summary, sweep


def _rows(before: Result, after: Result) -> dict[str, Row]:
    (one,) = compare(before, after)
    return dict(one.rows)


def test_ratios_are_after_over_before() -> None:
    rows = _rows(result(of=summary(100, ttft=80, itl=20)), result(of=summary(150, ttft=60, itl=20.1)))
    assert rows["output_tokens_per_s"].ratio == 1.5
    assert rows["ttft.p50"].ratio == 0.75
    assert rows["ttft.p99"].ratio == 0.75
    assert rows["itl.p50"].ratio == pytest.approx(1.005)
    assert rows["seconds"].ratio == 1


def test_more_is_better_for_rates_and_worse_for_latencies() -> None:
    rows = _rows(result(of=summary(100, ttft=80, itl=20)), result(of=summary(150, ttft=90, itl=20.1)))
    verdicts = {name: row.verdict for name, row in rows.items()}
    assert verdicts["output_tokens_per_s"] == "better"
    assert verdicts["ttft.p50"] == "worse"
    assert verdicts["itl.p50"] == "same"
    assert verdicts["output_tokens"] == ""


def test_figures_that_one_side_lacks_are_left_out() -> None:
    rows = _rows(result(of=summary(share=0.9)), result(of=summary()))
    assert "goodput_share" not in rows
    assert "ttft.p50" in rows


def test_nothing_over_nothing_is_one() -> None:
    assert (ratio_of(0, 0), ratio_of(0, 2), ratio_of(4, 2)) == (1, float("inf"), 0.5)


def test_every_figure_has_a_name_that_conditions_know() -> None:
    assert {*figures_of(summary(share=0.5)), READY} == set(known_figures())


def test_sweeps_are_compared_value_by_value_by_the_medians_of_their_repeats() -> None:
    found = compare(sweep({1: [100, 80, 90], 8: [400]}, "a"), sweep({8: [600], 1: [135], 16: [1]}, "b"))
    assert [one.point for one in found] == ["concurrency=1", "concurrency=8"]
    assert [one.rows["output_tokens_per_s"].ratio for one in found] == [1.5, 1.5]


def test_repeats_bound_a_ratio_by_their_extremes() -> None:
    (one,) = compare(sweep({1: [100, 80, 90]}, "a"), sweep({1: [99, 120, 110]}, "b"))
    row = one.rows["output_tokens_per_s"]
    assert (row.ratio, *(row.bounds or ())) == pytest.approx((110 / 90, 99 / 100, 120 / 80))
    assert row.verdict == "same"
    (one,) = compare(sweep({1: [100, 80, 90]}, "a"), sweep({1: [101, 120, 110]}, "b"))
    assert one.rows["output_tokens_per_s"].verdict == "better"
    (one,) = compare(sweep({1: [100, 80]}, "a"), sweep({1: [99, 120]}, "b"))
    assert one.rows["output_tokens_per_s"].bounds is None


def test_starts_are_compared_cold_with_cold_and_warm_with_warm() -> None:
    before = startup([(True, 4.0), (False, 2.0), (True, 6.0), (False, 2.2)], "a")
    after = startup([(True, 10.0), (False, 1.05)], "b")
    cold, warm = compare(before, after)
    assert (cold.point, warm.point) == ("cold", "warm")
    assert {name: row.ratio for name, row in cold.rows.items()} == {"ready_s": 2.0, "importing": 2.0, "loading": 2.0}
    assert [row.verdict for row in warm.rows.values()] == ["better"] * 3
    assert judge([cold], parse_conditions(["ready_s>1.5"])) == ["ready_s>1.5 holds at cold: b / a is 2.000"]
    with pytest.raises(UsageError, match="something that both have"):
        compare(startup([(True, 1.0)]), startup([(False, 1.0)]))


def test_medians_are_of_each_figure_by_itself() -> None:
    assert medians([{"a": 1, "b": 5}, {"a": 3, "b": 4}, {"a": 2}]) == {"a": 2, "b": 4.5}
    points = points_of(sweep({"x": [1], "a": [2]}))
    assert [point.value for point in points] == ["x", "a"]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (result(), "a sweep and a serve"),
        (sweep({1: [1]}, "other", axis="rate"), "ours has concurrency=1, other has rate=1: expected something"),
        (sweep({2: [1]}), r"\(A\) has concurrency=1, ours \(B\) has concurrency=2: expected something"),
    ],
)
def test_what_cannot_be_compared_is_refused(other: Result | Sweep, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        compare(sweep({1: [1]}), other)


@pytest.mark.parametrize(
    ("text", "ratio", "holds"),
    [
        ("itl.p99>1.1", 1.2, True),
        ("itl.p99>1.1", 1.1, False),
        ("itl.p99 >= 1.1", 1.1, True),
        (" output_tokens_per_s<0.95", 0.9, True),
        ("errors<=1", 2.0, False),
        ("errors>1", float("inf"), True),
    ],
)
def test_a_condition_holds_as_it_is_written(text: str, ratio: float, holds: bool) -> None:
    (condition,) = parse_conditions([text])
    assert condition.holds(ratio) is holds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("itl.p99", "expected FIGURE>RATIO"),
        ("itl.p99>1.1 or 1", "expected FIGURE>RATIO"),
        ("itl.p99==1", "expected FIGURE>RATIO"),
        ("__import__('os')>1", "expected FIGURE>RATIO"),
        ("itl.p98>1", "no figure itl.p98, expected output_tokens_per_s"),
        ("speed>1", "no figure speed, expected output_tokens_per_s"),
        ("itl.p99>1e", "expected FIGURE>RATIO"),
        ("itl.p99>1e999", "expected FIGURE>RATIO"),
        ("", "expected FIGURE>RATIO"),
    ],
)
def test_a_condition_that_says_nothing_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_conditions([text])


def test_several_conditions_may_stand_in_one_option() -> None:
    assert [str(one) for one in parse_conditions(["itl.p99>1.1,errors>1", "ttft.p50>2"])] == [
        "itl.p99>1.1",
        "errors>1",
        "ttft.p50>2",
    ]


def test_a_condition_on_what_was_not_measured_is_no_pass() -> None:
    comparisons = compare(result(), result())
    assert judge(comparisons, parse_conditions(["ttft.p50>1"])) == []
    with pytest.raises(UsageError, match="goodput_share was not measured on both sides"):
        judge(comparisons, parse_conditions(["goodput_share<1"]))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    save_record(result(lively(1, 60), "before", summary(100, itl=20)), paths[0])
    save_record(result(lively(2, 60), "after", summary(150, itl=30)), paths[1])
    return [str(path) for path in paths]


def test_the_command_prints_a_table_and_ends_well(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(files) == 0
    shown = capsys.readouterr().out
    assert "after / before" in shown
    assert "1.500" in shown
    assert "▲ better" in shown
    assert "▼ worse" in shown


def test_names_are_no_markup_and_long_ones_leave_room_for_the_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    for path, rate in zip(paths, (100, 150), strict=True):
        save_record(result(name=f"{rate} [/x] {'a-model-of-a-long-name-' * 4}", of=summary(rate)), path)
    assert main(paths) == 0
    shown = capsys.readouterr().out
    assert "100 [/x]" in shown
    assert "1.500" in shown
    assert "▲ better" in shown


def test_a_condition_that_holds_ends_with_1_and_says_why(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*files, "--fail-if", "itl.p99>1.6"]) == 0
    assert main([*files, "--fail-if", "itl.p99>1.1"]) == 1
    assert "itl.p99>1.1 holds: after / before is 1.500" in capsys.readouterr().err


@pytest.mark.parametrize("extra", [["--fail-if", "x"], ["--fail-if", "goodput_share<1"]])
def test_misuse_ends_with_2(files: list[str], extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*files, *extra]) == 2
    assert main(files[:1]) == 2
    assert main([files[0], files[1] + ".missing"]) == 2
    assert capsys.readouterr().err.count("stentor bench compare: ") == 3
