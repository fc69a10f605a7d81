"""What decides which tests run, and what keeps them apart."""

import multiprocessing
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stentor.kernels import native
from stentor.tests.kernels.helpers import thread_count
from stentor.tests.support.cpu_seconds import CpuSeconds
from stentor.tests.support.machine import ExpectedSkips, Machine
from stentor.tests.support.proof_seconds import (
    SECONDS,
    FileSeconds,
    MeasuredTest,
    SecondsRecorder,
    read_seconds,
    write_seconds,
)
from stentor.tests.support.slow_tests import SLOW_TESTS, SlowTestsRecorder, file_of, read_slow_tests
from stentor.tests.support.tiers import (
    SAMPLED_IN_TURNS,
    SHARES,
    TENTHS,
    TESTS,
    beyond_the_sample,
    beyond_the_share,
    beyond_the_tenth,
    in_turns,
    unit_of,
)

FORK = multiprocessing.get_context("fork")


class Case:
    """An item, as far as anybody looks at it."""

    def __init__(
        self, path: str, name: str, mark: str = "", place: int = 0, *, each: str | None = None, **params: object
    ) -> None:
        self.path, self.name, self.originalname = Path(path), f"{name}{params}", name
        self.nodeid = f"{path}::{name}" + (f"[{params}]" if params else "")
        # as where one list names the values of all parameters together
        self.callspec = SimpleNamespace(indices=dict.fromkeys(params, place), params=params)
        self._mark, self._each = mark, each

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        mark: pytest.MarkDecorator = getattr(pytest.mark, name)
        return (mark(each=self._each) if self._each else mark).mark if name == self._mark else None


def cases(*found: Case) -> Any:
    return list(found)


def test_all_turns_together_run_every_file_of_the_tier_once_and_whole() -> None:
    items = cases(
        *(Case(f"file{number // 2}", f"test{number}", mark) for number, mark in enumerate(["proof", "compiles"] * 23)),
        Case("a", "b", ""),
    )
    ran = [set(items) - beyond_the_share(items, turn) for turn in range(7, 7 + SHARES)]
    assert all(items[-1] in each for each in ran), "what is not in the tier always runs"
    counts = [sum(item in each for each in ran) for item in items[:-1]]
    assert counts == [1] * 46
    assert all(
        {items[place], items[place + 1]} & each in (set(), {items[place], items[place + 1]})
        for each in ran
        for place in range(0, 46, 2)
    )


def test_values_of_a_parameter_take_turns_in_place_of_files_where_the_mark_says_so() -> None:
    count = SHARES + SHARES // 5
    many = [
        Case(file, "test", "proof", place, each="a", a=place) for file in ("file1", "file2") for place in range(count)
    ]
    files = [Case(f"file{number}", "whole", "proof") for number in range(SHARES)]
    items = cases(*many, *files)
    ran = [set(items) - beyond_the_share(items, turn) for turn in range(SHARES)]
    assert [sum(item in each for each in ran) for item in items] == [1] * len(items)
    for each in ran:
        places = {
            file: [item.callspec.params["a"] for item in many if item in each and item.path == Path(file)]
            for file in ("file1", "file2")
        }
        assert sum(map(len, places.values())) in (2, 3)
        assert sum(item in each for item in files) == 1


def test_all_tests_of_one_value_run_in_the_same_turn() -> None:
    tests = ("first", "second")
    items = cases(*(Case("file", test, "proof", place, each="a", a=place) for test in tests for place in range(12)))
    for turn in range(SHARES):
        ours = set(items) - beyond_the_share(items, turn)
        places = {test: {item.callspec.params["a"] for item in ours if item.originalname == test} for test in tests}
        assert places["first"] == places["second"]


def test_turns_take_about_as_long_by_what_their_files_have_taken() -> None:
    seconds = {f"file{number}": FileSeconds(number**2 / 2, 0.0) for number in range(15)}
    seconds["values"] = FileSeconds(0.0, 120.0 * SHARES)
    files = [Case(file, "whole", "proof") for file in seconds if file != "values"]
    values = [Case("values", "test", "proof", place, each="a", a=place) for place in range(12 * SHARES)]
    items = cases(*files, *values)
    taken = []
    for turn in range(SHARES):
        ours = set(items) - beyond_the_share(items, turn, seconds)
        taken.append(sum(10 if item.callspec.params else seconds[str(item.path)].whole for item in ours))
    assert max(taken) - min(taken) <= 10
    assert sum(taken) == 120 * SHARES + sum(number**2 / 2 for number in range(15)), "each runs once"
    unknown = cases(*(Case(f"new{number}", "whole", "proof") for number in range(2 * SHARES)))
    sizes = [len(set(unknown) - beyond_the_share(unknown, turn, seconds)) for turn in range(SHARES)]
    assert sizes == [2] * SHARES, "what nobody has measured is spread as well"


def test_what_tests_take_is_written_for_files_of_which_all_have_run(tmp_path: Path) -> None:
    path = tmp_path / "tests" / "seconds.txt"
    path.parent.mkdir()
    tests = {
        "a::one": MeasuredTest("tests/a", False, False),
        "a::alone": MeasuredTest("tests/a", True, True),
        "b::one": MeasuredTest("tests/b", False, False),
        "b::two": MeasuredTest("tests/b", False, False),
        "c::skipped": MeasuredTest("tests/c", False, False),
    }
    for name in "abc":
        (path.parent / name).touch()
    recorder = SecondsRecorder(tests, path)
    for test in ("a::one", "a::alone", "b::one", "c::skipped", "of no tier"):
        for when, seconds in (("setup", 1.0), ("call", 2.5), ("teardown", 0.5)):
            skipped = when == "call" and test == "c::skipped"
            report = SimpleNamespace(nodeid=test, when=when, cpu_seconds=seconds, duration=10.0, skipped=skipped)
            recorder.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    recorder.pytest_sessionfinish()
    assert read_seconds(path) == {"tests/a": FileSeconds(4.0, 60.0)}, "who is alone keeps two cores for as long"


def test_the_files_that_have_been_measured_are_there() -> None:
    assert not [file for file in read_seconds(SECONDS) if not (TESTS.parent / file).exists()]


def test_a_turn_of_the_tier_leaves_the_rest_of_the_tests_their_time() -> None:
    """All of `make test` has ten minutes on two cores: add no more than you take away, or run less of it. Two spoken
    turns in a browser, for which both cores wait, are 24 of these."""
    seconds = read_seconds(SECONDS)
    assert sum(each.whole + each.by_value for each in seconds.values()) / SHARES < 70


def test_what_was_measured_is_written_for_the_files_that_ran_and_stays_for_others(tmp_path: Path) -> None:
    path = tmp_path / "tests" / "seconds.txt"
    path.parent.mkdir()
    for name in "ab":
        (path.parent / name).touch()
    write_seconds(path, {"tests/a": FileSeconds(1.25, 3.0), "tests/gone": FileSeconds(1.0, 1.0)})
    assert read_seconds(path) == {"tests/a": FileSeconds(1.2, 3.0)}
    write_seconds(path, {"tests/b": FileSeconds(2.0, 0.0)})
    assert read_seconds(path) == {"tests/a": FileSeconds(1.2, 3.0), "tests/b": FileSeconds(2.0, 0.0)}


def test_a_sample_has_each_value_of_each_parameter_and_another_turn_other_pairs() -> None:
    items = cases(*(Case("f", "test", "triton", a=a, b=b, c=c) for a in range(6) for b in range(4) for c in range(3)))
    kept = [set(items) - beyond_the_sample(items, turn) for turn in range(0, 800, TENTHS)]
    for sample in kept:
        for name, count in (("a", 6), ("b", 4), ("c", 3)):
            assert {item.callspec.params[name] for item in sample} == set(range(count))
        assert len(sample) == 6, "no more than it takes"
    assert set().union(*kept) == set(items), "in time all of them run"


def test_ten_turns_run_each_case_of_a_slow_test_once_and_take_about_as_long() -> None:
    seconds = {f"f::one{number}": 0.5 + number / 3 for number in range(40)} | {"f::many": 30.0}
    slow = cases(*(Case("f", f"one{number}") for number in range(40)), *(Case("f", "many", a=a) for a in range(60)))
    others = cases(Case("f", "quick"), Case("f", "one1", "proof"))
    for begin in range(0, 8 * TENTHS, TENTHS):
        ran = [{*slow, *others} - beyond_the_tenth(slow + others, begin + turn, seconds) for turn in range(TENTHS)]
        assert sorted(id(item) for each in ran for item in each if item in slow) == sorted(map(id, slow))
        assert all(each.issuperset(others) for each in ran), "these are not divided"
        assert all(sum(item.name.startswith("many") for item in each) >= 5 for each in ran), "cases are spread"
        cost = {item: 0.5 if item.name.startswith("many") else seconds[item.nodeid] for item in slow}
        taken = [sum(cost.get(item, 0.0) for item in each) for each in ran]
        assert max(taken) - min(taken) < 1


def test_a_slow_file_of_tests_that_share_servers_has_one_turn_of_ten() -> None:
    items = cases(*(Case(f"tests/e2e/{file}", f"test{number}") for file in "ab" for number in range(3)))
    kept = [{*items} - beyond_the_tenth(items, turn, {"tests/e2e/a": 9.0}) for turn in range(TENTHS)]
    assert sorted(len(each) for each in kept) == [3] * (TENTHS - 1) + [6]


def test_what_is_sampled_is_the_same_in_the_turns_that_divide_it() -> None:
    items = cases(*(Case("f", "test", "triton", a=a, b=b) for a in range(6) for b in range(4)))
    left_out = [beyond_the_sample(items, turn) for turn in range(100)]
    assert all(left_out[turn] == left_out[turn // TENTHS * TENTHS] for turn in range(100))
    assert left_out[0] != left_out[TENTHS]


def test_which_tests_are_slow_is_written_for_the_files_that_were_measured(tmp_path: Path) -> None:
    path = tmp_path / "tests" / "slow.txt"
    (path.parent / "u").mkdir(parents=True)
    for name in ("u/a", "u/b", "whole"):
        (path.parent / name).touch()
    path.write_text("  3.0 tests/u/a::gone\n  4.0 tests/u/a::skipped\n  2.0 tests/u/b::kept\n  9.0 tests/u/c::gone\n")
    cases_of = [
        "tests/u/a::many[0]",
        "tests/u/a::many[1]",
        "tests/u/a::quick",
        "tests/u/a::skipped",
        "tests/u/a::alone",
    ]
    cases_of.append("tests/whole::one")
    recorder = SlowTestsRecorder({test: test.endswith("alone") for test in cases_of}, path)
    for test in (*cases_of, "tests/u/b::proof"):
        for when in ("setup", "call", "teardown"):
            seconds = 0.09 if test.endswith("quick") else 0.4
            report = SimpleNamespace(
                nodeid=test, when=when, cpu_seconds=seconds, duration=3.0, skipped=test.endswith("skipped")
            )
            recorder.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    recorder.pytest_sessionfinish()
    files = [f"tests/e2e/test_{name}.py" for name in ("long", "short")]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    recorder = SlowTestsRecorder({f"{file}::one": False for file in files}, path)
    for file, seconds in zip(files, (0.7, 0.6), strict=True):
        for when in ("setup", "call", "teardown"):
            report = SimpleNamespace(nodeid=f"{file}::one", when=when, cpu_seconds=seconds, duration=3.0, skipped=False)
            recorder.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    recorder.pytest_sessionfinish()
    assert read_slow_tests(path) == {
        files[0]: 2.1,
        "tests/u/a::alone": 6.0,
        "tests/u/a::many": 0.8,
        "tests/u/a::skipped": 4.0,
        "tests/u/b::kept": 2.0,
    }


def test_the_files_of_slow_tests_are_there() -> None:
    assert not [test for test in read_slow_tests(SLOW_TESTS) if not (TESTS.parent / file_of(test)).exists()]


def test_of_what_is_sampled_in_turns_a_run_of_one_file_has_every_case() -> None:
    items = cases(*(Case("f", "test", "sampled", a=a, b=b) for a in range(6) for b in range(4)))
    assert not beyond_the_sample(items, 3)
    assert len(set(items) - beyond_the_sample(items, 3, SAMPLED_IN_TURNS)) == 6


def test_values_are_told_apart_by_their_text_or_where_they_have_none_by_their_place() -> None:
    values = [object(), object(), object()]
    items = cases(*(Case("f", "test", "triton", place, a=place % 2, b=values[place // 2]) for place in range(6)))
    for turn in range(20):
        sample = set(items) - beyond_the_sample(items, turn)
        assert {item.callspec.params["a"] for item in sample} == {0, 1}
        assert len(sample) == 6, "objects at other places may be others"
    items = cases(*(Case("f", "test", "triton", place, a=place % 2, b=place // 2) for place in range(6)))
    assert all(len(set(items) - beyond_the_sample(items, turn)) <= 4 for turn in range(20))


def test_a_kernel_test_without_parameters_always_runs_and_one_for_a_gpu_is_not_sampled() -> None:
    plain = cases(Case("f", "test", "triton"))
    assert not beyond_the_sample(plain, 3)
    assert not beyond_the_sample(cases(*(Case("f", "test", "gpu", a, a=a) for a in range(9))), 3)


def test_files_that_wait_stand_between_others_whole_and_what_is_alone_comes_last() -> None:
    names = [f"e2e/test_{number}.py" for number in range(3)] + [f"server/test_{number}.py" for number in range(10)]
    marks = ["", "alone", ""]
    items = cases(
        *(Case(str(TESTS / name), f"test{place}", mark) for name in names for place, mark in enumerate(marks))
    )
    ran: list[Any] = in_turns(items)
    assert sorted(map(id, ran)) == sorted(map(id, items)), "every test once"
    assert [bool(item.get_closest_marker("alone")) for item in ran] == [False] * 26 + [True] * 13
    files = [item.path for item in ran[:26]]
    assert files[0::2] == files[1::2], "a file in one piece"
    order = [path.parent.name for path in files[0::2]]
    assert order == ["e2e", *["server"] * 4, "e2e", *["server"] * 4, "e2e", "server", "server"]


def test_tests_that_share_a_server_are_one_unit_and_others_are_their_file() -> None:
    shared = {unit_of(f"tests/e2e/test_{name}.py") for name in ("sdk", "tools")}
    assert len(shared) == 1
    others = [*shared, *(unit_of(f"tests/{name}/test_e2e.py") for name in ("chaos", "chaos/e2e", "server"))]
    assert len(set(others)) == 4


def test_who_is_alone_waits_for_the_others_and_they_for_it(tmp_path: Path) -> None:
    started, leave = FORK.Event(), FORK.Event()
    with Machine(tmp_path).held(alone=False), _other(tmp_path, started, leave, alone=False):
        assert started.wait(60), "two that are not alone run side by side"
        leave.set()
    for mine, others in ((False, True), (True, False)):
        started, leave = FORK.Event(), FORK.Event()
        with Machine(tmp_path).held(alone=mine):
            other = _start(tmp_path, started, leave, alone=others)
            assert not started.wait(0.1)
        assert started.wait(60)
        leave.set()
        other.join()


def test_a_process_that_dies_leaves_the_machine(tmp_path: Path) -> None:
    started = FORK.Event()
    other = _start(tmp_path, started, FORK.Event(), alone=True)
    assert started.wait(60)
    other.kill()
    other.join()
    with Machine(tmp_path).held(alone=True):
        pass


def test_threads_that_a_file_has_set_are_not_those_of_the_next(request: pytest.FixtureRequest) -> None:
    assert "same_threads" in request.fixturenames
    before = torch.get_num_threads(), native.threads()
    with thread_count(1):
        torch.set_num_threads(before[0] + 1)
        native.set_threads(before[1] + 2)
    assert (torch.get_num_threads(), native.threads()) == before


def test_a_skip_is_expected_for_the_reasons_that_are_listed() -> None:
    skips = ExpectedSkips(["# of the machine", "", "no .* here"])
    assert skips.unexpected(["Skipped: no IPv6 here", "no GPU here", "because", "because"]) == ["because"]


def _start(folder: Path, started: Event, leave: Event, *, alone: bool) -> Any:
    def hold() -> None:
        with Machine(folder).held(alone=alone):
            started.set()
            leave.wait()

    process = FORK.Process(target=hold)
    process.start()
    return process


class _other:
    def __init__(self, *arguments: Any, alone: bool) -> None:
        self._process = _start(*arguments, alone=alone)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._process.join()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


RUN = """
import os, signal, threading
import pytest

@pytest.fixture(scope="session")
def shared():
    yield
    with open(os.environ["TOLD"], "a", buffering=1) as told: print("torn down", os.getpid(), file=told)

def test_first(shared, tmp_path): (tmp_path / "file").write_text(str(os.getpid()))
def test_dies(shared): os.system("echo its last words >&2"); os.kill(os.getpid(), signal.SIGKILL)
@pytest.mark.timeout(0.5)
def test_hangs():
    threading.Thread(target=threading.Event().wait, name="another thread", daemon=True).start()
    threading.Event().wait()
def test_prints(shared): print("said by the test"); assert False
@pytest.mark.skip(reason="for a reason")
def test_skipped(): pass
def test_last(shared, capfd): os.system("echo heard"); assert capfd.readouterr().out == "heard\\n"
"""


def _forked(folder: Path, *options: str) -> str:
    """What pytest prints of three files in two processes."""
    (folder / "test_a.py").write_text(RUN)
    harmless = RUN.replace("os.kill(os.getpid(), signal.SIGKILL)", "...").replace("@pytest.mark.timeout(0.5)\n", "")
    for name in "bc":
        (folder / f"test_{name}.py").write_text(harmless.replace("    threading.Event().wait()", "    ..."))
    command = [sys.executable, "-P", "-m", "pytest", "-p", "stentor.tests.support.forked", "--processes", "2", "-ra"]
    # in CI's runs pytest writes whole messages in its summary, as if they had failed twice
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    environment["TOLD"] = str(folder / "told")
    ended = subprocess.run(
        [*command, *options, str(folder)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stdout


def test_a_test_that_kills_its_process_or_hangs_fails_alone_and_what_came_after_it_is_run(tmp_path: Path) -> None:
    printed = _forked(tmp_path)
    assert "5 failed, 10 passed, 3 skipped in " in printed
    assert "FAILED test_a.py::test_dies - its process was killed: 9" in printed
    assert printed.count("\nits last words\n") == 1
    assert printed.count("said by the test") == 2 * 3  # as source, and as what was captured
    assert "Failed: Timeout (>0.5s)" in printed
    assert "Stack of another thread" in printed
    assert "for a reason" in printed
    # once in each process that ended by itself: of the three, one was killed
    assert len(set((tmp_path / "told").read_text().split("\n")[:-1])) == 2


def test_a_process_that_dies_of_a_fault_tells_its_native_and_its_python_frames(tmp_path: Path) -> None:
    (tmp_path / "test_d.py").write_text("import ctypes\ndef test_falls(): ctypes.string_at(0)\ndef test_stays(): ...\n")
    command = [sys.executable, "-P", "-m", "pytest", "-p", "stentor.tests.support.forked", "--processes", "2"]
    told = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    native, python = (
        told.index("Native stack of the thread that died:\n"),
        told.index("Fatal Python error: Segmentation"),
    )
    assert "libffi" in told[native:python] or "_ctypes" in told[native:python]
    assert platform.machine() != "x86_64" or "Memory at rsp:\n" in told[native:python]
    assert ", line 2 in test_falls\n" in told[python:]


def test_the_first_failure_ends_the_run_where_that_was_asked_for(tmp_path: Path) -> None:
    printed = _forked(tmp_path, "-x")
    assert "stopping after" in printed
    assert int(re.search(r"(\d+) failed", printed)[1]) <= 2, "of each process one at most"  # type: ignore[index]


def test_a_process_that_a_test_has_started_is_counted_while_it_runs() -> None:
    measured = CpuSeconds()
    burns = "import time, sys\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\nsys.stdin.read()"
    measured.pytest_runtest_logstart()
    with subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1"; true', sys.executable, burns], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as below:
        assert below.stdout is not None
        assert below.stdout.readline() == b"1\n"
        phase = measured.pytest_runtest_makereport()
        next(phase)
        report: Any = SimpleNamespace()
        with pytest.raises(StopIteration):
            phase.send(report)
        below.communicate()
    assert report.cpu_seconds >= 0.25
