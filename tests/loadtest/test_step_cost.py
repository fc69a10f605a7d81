"""Step times against batch and context: the shapes, their work, and what counts as a surprise."""

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stentor.kernels import native
from stentor.kernels.native.load import _State
from stentor.loadtest import step_cost
from stentor.loadtest.record import about
from stentor.loadtest.report import page
from stentor.loadtest.report.plots import STEP_PLOTS
from stentor.loadtest.step_cost import make_shapes
from stentor.loadtest.step_curves import CHUNK, Figure, surprises
from stentor.loadtest.step_runs import decode_length
from stentor.loadtest.thread_counts import ThreadCounts, ThreadSteps, print_counts
from stentor.loadtest.tool import wide_console
from stentor.tests.loadtest.made_up import made_up


def _figure(kind: str, milliseconds: float, rows: int = 1, tokens: int = 1, context: int = 16) -> Figure:
    return Figure(kind, rows, tokens, context, milliseconds, milliseconds, 5, 1.0, 1.0, 1.0, 0.5)


@pytest.mark.parametrize(
    "times",
    [
        {1: 5.0, 2: 5.0, 4: 5.2, 8: 8.0, 16: 16.0},  # memory first, then arithmetic
        {1: 5.0, 2: 10.0, 4: 20.0},
        {1: 5.0, 2: 4.6},  # noise
    ],
)
def test_a_curve_that_grows_with_its_work_is_no_surprise(times: dict[int, float]) -> None:
    assert surprises([_figure("decode", time, rows=rows) for rows, time in times.items()]) == []
    assert surprises([_figure("prefill", time, tokens=rows) for rows, time in times.items()]) == []


@pytest.mark.parametrize(
    ("times", "reported"),
    [
        ({16: 20.0, 24: 21.0, 32: 60.0}, "21.00 ms at 24 rows, 60.00 ms at 32: 2.86 times, for 1.33 times the work"),
        ({16: 20.0, 24: 15.0}, "although there is more to do"),
    ],
)
def test_a_cliff_and_a_dip_are_surprises(times: dict[int, float], reported: str) -> None:
    (found,) = surprises([_figure("decode", time, rows=rows) for rows, time in times.items()])
    assert reported in found


def test_time_over_context_is_a_straight_line() -> None:
    straight = {0: 10.0, 1000: 12.0, 4000: 18.0}
    assert surprises([_figure("chunk", time, tokens=CHUNK, context=at) for at, time in straight.items()]) == []
    bent = straight | {2000: 18.0}
    (found,) = surprises([_figure("chunk", time, tokens=CHUNK, context=at) for at, time in bent.items()])
    assert found == f"a chunk of {CHUNK}: 18.00 ms at 2000 context, 14.00 ms on the line from 0 to 4000"


def test_shapes_are_cut_to_the_longest_sequence() -> None:
    asked = argparse.Namespace(batch=[1, 4], context=[16, 4000, 9000], prefill=[32, 9000])
    shapes = make_shapes(asked, 4096)
    room = 4096 - decode_length(0)
    assert all(shape.length <= 4096 for shape in shapes)
    assert [(each.rows, each.context) for each in shapes if each.kind == "decode"] == [
        (1, 16), (1, 4000), (1, room), (4, 16), (4, 4000), (4, room),
    ]  # fmt: skip
    assert [each.tokens for each in shapes if each.kind == "prefill"] == [32]
    assert [each.context for each in shapes if each.kind == "chunk"] == [16, 4096 - CHUNK]


def test_a_small_model_is_measured_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # products of bfloat16 take torch twenty seconds each where the processor has no instruction for them
    monkeypatch.setattr(step_cost, "_SIDES", (64, 128))
    options = [option for option in made_up(tmp_path) if option not in ("--device", "cpu")]
    grid = ["--batch", "1", "4", "--context", "16", "64", "--prefill", "8", "32", "--cache-tokens", "1024"]
    cheap = ["--seconds", "0", "--repeats", "1", "--read-bytes", str(1 << 20)]
    files = ["--save", str(tmp_path / "steps.json")]
    assert step_cost.main([*grid, *cheap, *options, *files]) == 0
    content = json.loads((tmp_path / "steps.json").read_text())
    figures = content["figures"]
    assert [(each["kind"], each["rows"], each["context"]) for each in figures if each["kind"] == "decode"] == [
        ("decode", 1, 16), ("decode", 1, 64), ("decode", 4, 16), ("decode", 4, 64),
    ]  # fmt: skip
    limit = content["ceilings"]["read_bytes_per_second"]
    for each in figures:
        seconds = each["milliseconds"] / 1e3
        assert each["fastest_milliseconds"] <= each["milliseconds"]
        assert each["tokens_per_second"] == pytest.approx(each["rows"] * each["tokens"] / seconds)
        if each["kind"] == "decode":
            assert each["share"] == pytest.approx(1e6 * each["megabytes"] / limit / seconds)
    one, four = (each for each in figures if each["kind"] == "decode" and each["context"] == 64)
    keys_and_values = 65 * 2 * 2 * 2 * 32  # tokens, K and V, layers, heads, dimensions
    bytes_each = 1e6 * (four["megabytes"] - one["megabytes"]) / 3 / keys_and_values
    assert bytes_each in (pytest.approx(2), pytest.approx(4)), "of bfloat16 or float32"
    plots = ["--svg", ",".join(STEP_PLOTS), "--out", str(tmp_path / "steps.svg")]
    assert page.main([str(tmp_path / "steps.json"), *plots]) == 0
    texts = {text.text for text in ElementTree.parse(tmp_path / "steps.svg").getroot().iter() if text.text}
    assert {plot.title for plot in STEP_PLOTS.values()} <= texts
    assert "GB/s read" in capsys.readouterr().out


def test_numbers_of_threads_are_compared_in_turn_and_the_workers_own_is_put_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [option for option in made_up(tmp_path) if option not in ("--device", "cpu")]
    small = ["--context", "16", "--cache-tokens", "2048", "--seconds", "0", "--repeats", "2"]
    before, file = native.set_threads(None), tmp_path / "threads.json"
    try:
        code = step_cost.main([*small, *options, "--beside-threads", "1", "3", "--save", str(file)])
        saved = json.loads(file.read_text())
        assert native.threads() == saved["own"]
    finally:
        native.set_threads(before)
    assert [each["work"] for each in saved["steps"]] == ["decode of 1", "decode of 8", "prefill of 512"]
    for each in saved["steps"]:
        assert [int(count) for count in each["milliseconds"]] == sorted({1, 3, saved["own"]})
        assert min(each["milliseconds"].values()) > 0
    assert code in (0, 1)
    assert "3 threads" in capsys.readouterr().out


@pytest.mark.parametrize(("milliseconds", "code"), [({1: 10.0, 2: 10.4}, 0), ({1: 10.0, 2: 10.6}, 1)])
def test_a_choice_of_threads_that_is_slower_by_a_twentieth_fails(milliseconds: dict[int, float], code: int) -> None:
    steps = [ThreadSteps("decode of 1", {1: 9.0, 2: 5.0}), ThreadSteps("decode of 8", milliseconds)]
    record = ThreadCounts(own=2, steps=steps, worker={}, march="native", notes=[], **about("steps", []))
    assert print_counts(wide_console(), record) == code


def test_a_processor_that_the_compiler_does_not_know_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stentor.kernels.native.load._state", _State())
    assert step_cost.main(["--march", "abacus"]) == 1
    assert capsys.readouterr().err.startswith("stentor bench steps: no kernels for abacus: ")


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert step_cost.main(["--model", str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
