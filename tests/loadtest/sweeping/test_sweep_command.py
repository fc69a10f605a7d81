"""The whole command; only the load itself is scripted."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from stentor.loadtest.record import Sweep, load_record, load_result
from stentor.loadtest.report import page
from stentor.loadtest.report.figures import points_of
from stentor.loadtest.sweeping.command import main
from stentor.tests.loadtest.report.synthetic import request, result, summary
from stentor.tests.loadtest.sweeping.scripted import Scripted, capacity

WRITE_HTML = page.write_html
TARGETS = ["--target", "ours=http://127.0.0.1:1", "--target", "theirs=http://127.0.0.1:2"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture(autouse=True)
def _plain_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight plots take a second: they are drawn for the test that looks at them, and by those of reports."""
    monkeypatch.setattr(page, "write_html", lambda records, path, title: path.write_text(title))


def _sweep(
    out: Path, *more: str, measure: Scripted | None = None, axis: str = "concurrency", values: str = "1,8"
) -> int:
    argv = ["--axis", axis, values, "--out", str(out), "--cooldown", "0", *more]
    return main(argv, measure or Scripted())


def _read(path: Path) -> Sweep:
    record = load_record(path)
    assert isinstance(record, Sweep)
    return record


def test_every_value_runs_as_often_as_asked_and_its_median_is_kept(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "write_html", WRITE_HTML)
    rates = iter([100, 300, 110, 800, 700, 100])
    measure = Scripted(lambda options: result(of=summary(next(rates))))
    assert _sweep(out, measure=measure) == 0
    assert measure.asked_with("concurrency") == [("1",)] * 3 + [("8",)] * 3
    sweep = _read(out / "sweep.json")
    assert (sweep.axis, sweep.name, len(sweep.points)) == ("concurrency", "server", 6)
    assert [point.medians["output_tokens_per_s"] for point in points_of(sweep)] == [110, 700]
    assert "data:image/svg+xml" in (out / "sweep.html").read_text()


def test_a_name_in_brackets_is_printed_as_it_is(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _sweep(out, "--name", "[/u]") == 0
    assert "│ [/u]" in capsys.readouterr().out
    argv = ["--saturate", "--goodput", "ttft:500", "--cooldown", "0", "--name", "[/u]"]
    assert main([*argv, "--out", str(out.with_name("b"))], Scripted(capacity(3.0))) == 0
    assert "[/u]: 2.9" in capsys.readouterr().out


def test_targets_take_turns_at_every_repeat_and_are_asked_the_same(out: Path) -> None:
    measure = Scripted()
    assert _sweep(out, *TARGETS, "--repeats", "2", measure=measure) == 0
    assert measure.asked_with("concurrency", "name") == [
        (value, name) for value in "18" for _ in range(2) for name in ("ours", "theirs")
    ]
    seeds = [seed for (seed,) in measure.asked_with("seed")]
    assert seeds[0::2] == seeds[1::2]
    assert len(set(seeds)) == 4
    assert measure.asked_with("url")[:2] == [("http://127.0.0.1:1",), ("http://127.0.0.1:2",)]
    assert [_read(out / f"sweep-{name}.json").name for name in ("ours", "theirs")] == ["ours", "theirs"]
    assert not (out / "sweep.json").exists()


def test_an_interrupted_sweep_goes_on_where_it_stopped(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Scripted(stop_after=3)
    assert _sweep(out, *TARGETS, measure=first) == 130
    assert "goes on from here" in capsys.readouterr().err
    assert len(_read(out / "sweep-ours.json").points) == 2
    second = Scripted()
    assert _sweep(out, *TARGETS, measure=second) == 0
    whole = Scripted()
    assert _sweep(out.with_name("whole"), *TARGETS, measure=whole) == 0
    assert first.asked + second.asked == whole.asked
    assert len(_read(out / "sweep-ours.json").points) == 6
    third = Scripted()
    assert _sweep(out, *TARGETS, measure=third) == 0
    assert third.asked == []


def test_a_sweep_may_be_widened(out: Path) -> None:
    assert _sweep(out, "--repeats", "1", values="8") == 0
    measure = Scripted()
    assert _sweep(out, "--repeats", "2", values="1,8", measure=measure) == 0
    assert measure.asked_with("concurrency") == [("1",), ("1",), ("8",)]
    assert [point.value for point in _read(out / "sweep.json").points] == [1, 1, 8, 8]


@pytest.mark.parametrize(
    ("more", "axis", "why"),
    [
        (["--input-tokens", "64"], "concurrency", "options: none, now --input-tokens 64"),
        (["--target", "a=http://127.0.0.1:9"], "concurrency", "targets: server=.*now a="),
        ([], "rate", "axis: concurrency, now rate"),
        (["--seed", "5"], "concurrency", "options: none, now --seed 5"),
        (["--requests-each", "2"], "concurrency", "now --requests-each=2"),
    ],
)
def test_a_changed_command_says_what_changed_and_touches_nothing(
    out: Path, more: list[str], axis: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _sweep(out) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    measure = Scripted()
    capsys.readouterr()
    assert _sweep(out, *more, axis=axis, measure=measure) == 2
    said = capsys.readouterr().err
    assert "was begun by another command" in said
    assert re.search(why, said)
    assert measure.asked == []
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_folder_of_something_else_is_not_touched(out: Path) -> None:
    (out / "runs").mkdir(parents=True)
    assert _sweep(out) == 2
    assert (out / "runs").is_dir()
    (out / "plan.json").write_text("[1]")
    assert _sweep(out) == 2
    assert sorted(path.name for path in out.iterdir()) == ["plan.json", "runs"]


def test_a_run_that_nobody_answered_is_not_kept_and_the_rest_is(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = replace(summary(), completed=0, errors=100, errors_by_kind={"connection": 100})
    answers = iter([summary(), nobody])
    assert _sweep(out, measure=Scripted(lambda options: result(of=next(answers)))) == 1
    assert "no request of concurrency=1 at server was answered (connection)" in capsys.readouterr().err
    assert len(_read(out / "sweep.json").points) == 1


def test_a_server_that_fails_under_the_load_is_a_result(out: Path) -> None:
    failed = replace(summary(), completed=0, errors=100, errors_by_kind={"timeout": 100})
    assert _sweep(out, measure=Scripted(lambda options: result(of=failed))) == 0
    assert len(_read(out / "sweep.json").points) == 6


def test_requests_grow_with_the_users(out: Path) -> None:
    measure = Scripted()
    assert _sweep(out, "--requests-each", "4", measure=measure) == 0
    assert set(measure.asked_with("concurrency", "requests")) == {("1", "4"), ("8", "32")}


def test_a_seed_of_the_operators_own_moves_every_run(out: Path) -> None:
    first, second = Scripted(), Scripted()
    _sweep(out, measure=first)
    _sweep(out.with_name("b"), "--seed=7", measure=second)
    assert set(first.asked_with("seed")).isdisjoint(second.asked_with("seed"))
    over = Scripted()
    _sweep(out.with_name("d"), axis="seed", values="1,2", measure=over)
    assert over.asked_with("seed") == [("1",)] * 3 + [("2",)] * 3


def test_words_can_be_varied(out: Path) -> None:
    assert _sweep(out, axis="api", values="chat,completions", measure=Scripted(lambda options: result())) == 0
    assert [point.value for point in points_of(_read(out / "sweep.json"))] == ["chat", "completions"]


def test_requests_are_kept_in_the_runs_and_left_out_of_the_sweep(out: Path) -> None:
    measure = Scripted(lambda options: result([request()]))
    assert _sweep(out, "--repeats", "1", measure=measure) == 0
    assert [point.result.requests for point in _read(out / "sweep.json").points] == [[], []]
    assert len(load_result(out / "runs" / "server" / "8.0.json").requests) == 1


def test_secrets_stay_out_of_every_file(out: Path) -> None:
    more = ["--api-key", "s3cret-1", "--header=authorization: s3cret-2"]
    assert _sweep(out, *more) == 0
    for path in out.rglob("*"):
        assert path.is_dir() or "s3cret" not in path.read_text()
    assert _sweep(out, "--api-key", "another", "--header=x: y") == 0


def test_saturation_is_found_for_each_target_in_turn(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = {"ours": capacity(20.0), "theirs": capacity(3.0)}
    argv = ["--saturate", "--goodput", "ttft:500", "--out", str(out), "--cooldown", "0", *TARGETS]
    first = Scripted(lambda options: limits[options["name"]](options), stop_after=17)
    assert main(argv, first) == 130
    second = Scripted(lambda options: limits[options["name"]](options))
    assert main(argv, second) == 0
    shown = capsys.readouterr().out
    assert "ours: 20 requests/s" in shown or "ours: 19" in shown
    assert "theirs: 2.9" in shown or "theirs: 3 " in shown
    asked_with = first.asked_with("name", "rate") + second.asked_with("name", "rate")
    assert asked_with[:6] == [("ours", "1"), ("theirs", "1")] * 3
    assert len(asked_with) == 3 * len(set(asked_with))
    assert set(first.asked_with("duration")) == {("30",)}
    assert {point.value for point in _read(out / "sweep-ours.json").points} == {
        float(rate) for name, rate in asked_with if name == "ours"
    }


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "either --axis NAME VALUES or --saturate"),
        (["--axis", "rate", "1", "--saturate"], "either --axis NAME VALUES or --saturate"),
        (["--saturate"], "needs limits"),
        (["--axis", "rate", "1", "--rate", "2"], "is what is varied"),
        (["--axis", "nonsense", "1"], "unrecognized arguments: --nonsense=1"),
        (["--axis", "concurrency", "1,x"], "concurrency"),
        (["--axis", "concurrency", "1", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["--axis", "concurrency", "1", "--save", "x.json"], "--save is for `stentor bench serve`"),
        (["--axis", "concurrency", "1", "--dataset", "missing.json"], "missing.json"),
        (["--axis", "rate", "1", "--requests-each", "3"], "is for --axis concurrency"),
        (["--axis", "rate", "1", "--target", "x"], "expected NAME=URL"),
        (["--axis", "rate", "1", "--target", "../x=http://127.0.0.1"], "expected NAME=URL"),
        (["--axis", "rate", "1", *TARGETS, *TARGETS[:2]], "a name of its own"),
        (["--axis", "rate", "1", *TARGETS, "--url", "http://127.0.0.1"], "--url and --target"),
        (["--axis", "rate", "1", "--repeats", "0"], "whole number, at least 1"),
    ],
)
def test_misuse_is_told_before_the_first_run(
    tmp_path: Path, argv: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    measure = Scripted()
    assert main(argv, measure) == 2
    assert why in capsys.readouterr().err
    assert measure.asked == []
    assert list(tmp_path.iterdir()) == []
