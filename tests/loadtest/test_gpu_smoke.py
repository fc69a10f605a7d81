"""A machine with a GPU: checks side by side and one after the other, cut short and gone on with."""

import json
import os
import time
from pathlib import Path

import pytest
import torch

from stentor.kernels.launching.precompiled import VARIABLE
from stentor.loadtest import model_speed
from stentor.loadtest.gpu import checks, pytest_rows, rows, serving
from stentor.loadtest.gpu import command as gpu
from stentor.loadtest.gpu.serving import write_model
from stentor.loadtest.kernels import command as kernels_command
from stentor.loadtest.series import CONFIGS

GOOD = ("json.tool", "--help")
BAD = ("json.tool", "/nowhere/at/all")
ENDLESS = ("http.server", "0")


def _run(output: Path, *due: checks.Check, seconds: float = 60.0, done: tuple[str, ...] = ()) -> dict[str, str]:
    return gpu.run(due, output, time.monotonic() + seconds, set(done))


def test_each_check_says_how_it_ended_in_a_row_and_a_log_of_its_own(tmp_path: Path) -> None:
    ended = _run(tmp_path, checks.Check("good", GOOD, 60), checks.Check("bad", BAD, 60, alone=True))
    assert ended == {"good": "ok", "bad": ended["bad"]}
    assert ended["bad"].startswith("exit code")
    assert {row["check"]: row["ended"] for row in rows.read(tmp_path / "rows.jsonl")} == ended
    assert "/nowhere/at/all" in (tmp_path / "bad.log").read_text()


def test_one_that_takes_too_long_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    ended = _run(tmp_path, checks.Check("endless", ENDLESS, 0.05), checks.Check("good", GOOD, 60, alone=True))
    assert ended == {"endless": "ended after 0 s", "good": "ok"}


def test_nothing_starts_when_the_time_is_over(tmp_path: Path) -> None:
    assert _run(tmp_path, checks.Check("good", GOOD, 60), seconds=1.0) == {"good": "no time was left"}
    assert not list(tmp_path.iterdir())


def test_what_was_done_is_not_done_again(tmp_path: Path) -> None:
    assert _run(tmp_path, checks.Check("good", GOOD, 60), checks.Check("bad", BAD, 60), done=("bad",)) == {"good": "ok"}


def test_every_check_is_a_module_that_there_is_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    import importlib.util

    for check in checks.first_minutes(Path("model.gguf"), tmp_path, workers=4):
        assert importlib.util.find_spec(check.command[0]) is not None
    first, tests, benchmarks = (
        checks.first_minutes(None, tmp_path, workers=1),
        checks.every_test(workers=1),
        checks.benchmarks(tmp_path),
    )
    names = [check.name for check in (*first, *tests, *benchmarks)]
    assert len({*names}) == len(names)
    for part in (first, tests, benchmarks):
        alone = [check.alone for check in part]
        assert alone == sorted(alone)  # what is timed comes last


def test_kernels_that_were_compiled_elsewhere_are_looked_at_before_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    without = checks.first_minutes(None, tmp_path, workers=1)
    monkeypatch.setenv(VARIABLE, "/kernels")
    (added,) = [check for check in checks.first_minutes(None, tmp_path, workers=1) if check not in without]
    assert added.command == ("stentor.kernels.launching.precompiled", "/kernels")
    assert not added.alone


def test_every_check_of_the_smoke_gives_arguments_that_its_command_takes(tmp_path: Path) -> None:
    parsers = {"kernels": kernels_command._parser(), "model": model_speed._parser()}
    seen = set()
    for check in checks.first_minutes(Path("model.gguf"), tmp_path, workers=4):
        module, *arguments = check.command
        if module == "stentor.loadtest.bench":
            seen.add(arguments[0])
            assert parsers[arguments[0]].parse_args(arguments[1:]).rows == tmp_path / "rows.jsonl"
        elif module == serving.__name__:
            seen.add(module)
            assert serving._parser().parse_args(arguments).rows == tmp_path / "rows.jsonl"
    assert seen == {*parsers, serving.__name__}


def test_rows_are_read_back_but_for_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows.append(file, {"check": "a"})
    with file.open("a") as out:
        out.write('{"check": "b')
    assert list(rows.read(file)) == [{"check": "a"}]
    assert list(rows.read(tmp_path / "none")) == []


def test_tests_leave_rows_and_those_that_passed_are_left_out(
    pytestconfig: pytest.Config, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [request.node]
    done = tmp_path / "done.jsonl"
    rows.append(done, {"test": request.node.nodeid, "outcome": "failed"})
    monkeypatch.setenv("TEST_ROWS_DONE", str(done))
    told: list[pytest.Item] = []
    monkeypatch.setattr(pytestconfig.hook, "pytest_deselected", lambda items: told.extend(items))
    pytest_rows.pytest_collection_modifyitems(pytestconfig, items)
    assert items == [request.node]
    assert told == []
    rows.append(done, {"test": request.node.nodeid, "outcome": "passed"})
    pytest_rows.pytest_collection_modifyitems(pytestconfig, items)
    assert items == []
    assert told == [request.node]


def test_what_failed_and_did_not_pass_since_runs_first_of_the_functions_that_there_are(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.jsonl"
    here = "tests/loadtest/test_gpu_smoke.py"
    named = f"{here}::{test_nothing_starts_when_the_time_is_over.__name__}"
    failed = [f"{named}[a-1]", f"{named}[b]", f"{here}::test_gone[c]", "tests/gone.py::test_b"]
    rows.append(earlier, {"failed": [*failed, "tests/kernels/test_moe.py::c"]})
    rows.append(earlier, {"test": "tests/kernels/test_moe.py::c", "outcome": "passed"})
    assert rows.failed(earlier) == {*failed}
    (check,) = checks.failed_before(earlier, workers=2)
    assert [part for part in check.command if part.startswith("tests/")] == [named]
    assert dict(check.environment) == {"TEST_ROWS_FAILED": str(earlier)}
    assert checks.failed_before(None, workers=2) == []
    assert checks.failed_before(tmp_path / "none", workers=2) == []


def test_only_what_failed_is_kept_of_the_tests_that_are_found(
    pytestconfig: pytest.Config, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = tmp_path / "earlier.jsonl"
    rows.append(earlier, {"failed": [request.node.nodeid]})
    monkeypatch.setenv("TEST_ROWS_FAILED", str(earlier))
    monkeypatch.setattr(pytestconfig.hook, "pytest_deselected", lambda items: None)
    items = [request.node]
    pytest_rows.pytest_collection_modifyitems(pytestconfig, items)
    assert items == [request.node]
    rows.append(earlier, {"test": request.node.nodeid, "outcome": "passed"})
    pytest_rows.pytest_collection_modifyitems(pytestconfig, items)
    assert items == []


def test_what_is_not_installed_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert gpu.missing() == []
    monkeypatch.setattr(gpu, "_is_installed", lambda name: name not in ("av", "llguidance"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpu.main(["--output", str(tmp_path / "rows")]) == 1
    said = capsys.readouterr()
    assert said.out == "not installed: av, llguidance; what needs them fails (see make gpu-wheels)\n"
    assert said.err == "stentor bench gpu: there is no CUDA device here\n"
    assert not (tmp_path / "rows").exists()


def test_parts_run_in_the_order_in_which_they_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def run(some: list[checks.Check], *_: object) -> dict[str, str]:
        ran.extend(check.name for check in some)
        return {check.name: "ok" for check in some}

    monkeypatch.setattr(gpu, "run", run)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("os.environ", os.environ.copy())
    assert gpu.main(["--output", str(tmp_path), "--workers", "1", "tests", "bench"]) == 0
    assert ran == [check.name for check in (*checks.every_test(1), *checks.benchmarks(tmp_path))]
    ran.clear()
    assert gpu.main(["--only", "machine", "--output", str(tmp_path)]) == 0
    assert ran == ["machine"]


def test_a_made_up_model_has_a_word_for_every_token(tmp_path: Path) -> None:
    write_model(tmp_path, CONFIGS / "llama-3.1-8b")
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == json.loads((tmp_path / "config.json").read_text())["vocab_size"]
