import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from stentor.kernels.tuning import Config, Tunable, Workload, pick
from stentor.kernels.tuning.search import Measure, Outcome, compile_share, main, matches, search, write_table
from stentor.kernels.tuning.timing import Call, Timing

CPU = torch.device("cpu")
DEFAULT = Config.of(BLOCK=1)


def operation(
    seen: list[Config], broken: Config | None = None, wrong: Sequence[Config] = ()
) -> Callable[[], torch.Tensor]:
    """A call that takes its config as a launcher does."""

    def call() -> torch.Tensor:
        config = pick("op", "k", DEFAULT)
        seen.append(config)
        if config == broken:
            raise RuntimeError("out of shared memory")
        made = torch.randn(64, 64)
        if config in wrong:
            made[7, 5] += 1.0
        return made

    return call


def tunable(call: Callable[[], object], *candidates: Config) -> Tunable:
    return Tunable("op", "k", candidates, lambda device: call)


def clock(seen: list[Config], seconds: dict[Config, float]) -> Measure:
    """Runs the call once and reads the time that its config was given."""

    def measure(calls: Sequence[Call], device: torch.device) -> Timing:
        calls[0]()
        taken = seconds[seen[-1]]
        return Timing(taken, taken, taken, 1, taken, taken)

    return measure


def run(
    seconds: dict[Config, float],
    *candidates: Config,
    broken: Config | None = None,
    wrong: Sequence[Config] = (),
    printed: io.StringIO | None = None,
    definition: Workload | None = None,
) -> list[Outcome]:
    seen: list[Config] = []
    console = Console(file=io.StringIO() if printed is None else printed, width=300)
    tried = replace(tunable(operation(seen, broken, wrong), *candidates), definition=definition)
    return search([tried], CPU, console, clock(seen, seconds))


FAST, SLOW = Config.of(BLOCK=2), Config.of(BLOCK=3)


def test_the_fastest_candidate_wins() -> None:
    (found,) = run({DEFAULT: 3.0, FAST: 1.0, SLOW: 5.0}, SLOW, FAST)
    assert (found.best, found.seconds, found.untuned_seconds, found.failed) == (FAST, 1.0, 3.0, 0)


def test_processes_that_compile_share_the_candidates() -> None:
    seen: list[Config] = []
    call = operation(seen, broken=SLOW)
    for number in range(3):
        compile_share([tunable(call, DEFAULT, FAST), tunable(call, SLOW)], CPU, number, 3)
    assert seen == [DEFAULT, FAST, SLOW]


def test_a_gain_within_the_noise_changes_nothing() -> None:
    (found,) = run({DEFAULT: 1.0, FAST: 0.99}, FAST)
    assert found.best is None
    assert found.seconds == 1.0


def test_a_second_search_finds_what_the_first_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stentor.kernels.tuning import table

    seconds = {DEFAULT: 3.0, FAST: 1.0, SLOW: 5.0}
    (first,) = run(seconds, SLOW, FAST)
    entries = {"op": {"k": FAST.to_json()}}
    monkeypatch.setattr(table, "_table", lambda *_: entries)  # what a launcher reads from then on
    table._picked.cache_clear()
    try:
        assert pick("op", "k", DEFAULT) == FAST
        (second,) = run(seconds, SLOW, FAST)
    finally:
        table._picked.cache_clear()
    assert (second.best, second.untuned_seconds) == (first.best, first.untuned_seconds) == (FAST, 3.0)
    path = tmp_path / "gpu.json"
    write_table(path, [second], entries)
    assert json.loads(path.read_text()) == entries


def test_a_candidate_whose_result_is_wrong_is_refused_and_the_next_one_wins() -> None:
    printed = io.StringIO()
    (found,) = run({DEFAULT: 3.0, FAST: 1.0, SLOW: 2.0}, FAST, SLOW, wrong=[FAST], printed=printed)
    assert (found.best, found.seconds, found.failed) == (SLOW, 2.0, 0)
    assert "op k: {'BLOCK': 2, 'num_warps': 4, 'num_stages': 2} is refused, its result is wrong here: " in (
        printed.getvalue()
    )
    (found,) = run({DEFAULT: 3.0, FAST: 1.0, SLOW: 2.0}, FAST, SLOW, wrong=[FAST, SLOW])
    assert (found.best, found.seconds) == (None, 3.0)


def test_results_are_compared_with_the_definition_where_there_is_one() -> None:
    printed = io.StringIO()
    seconds = {DEFAULT: 3.0, FAST: 1.0, SLOW: 2.0}

    def definition(device: torch.device) -> Callable[[], torch.Tensor]:
        return lambda: torch.randn(64, 64)

    (found,) = run(seconds, FAST, SLOW, wrong=[DEFAULT, FAST], printed=printed, definition=definition)
    assert found.best == SLOW
    assert "the default's result differs from the definition: 1 elements are off" in printed.getvalue()


def test_where_the_default_does_not_run_and_nothing_is_right_the_operation_is_left_out() -> None:
    assert run({FAST: 1.0}, FAST, broken=DEFAULT, wrong=[FAST]) == []


def test_a_candidate_that_does_not_run_is_passed_over() -> None:
    (found,) = run({DEFAULT: 3.0, FAST: 1.0, SLOW: 2.0}, FAST, SLOW, broken=FAST)
    assert (found.best, found.failed) == (SLOW, 1)


def test_an_operation_of_which_nothing_runs_is_left_out() -> None:
    assert run({DEFAULT: 1.0}, DEFAULT, broken=DEFAULT) == []


def test_the_table_keeps_what_was_known_and_what_launchers_read(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    call = operation([])
    outcomes = [Outcome(tunable(call), FAST, 1.0, 2.0, 0)]
    known = {"op": {"other": {"BLOCK": 9, "num_warps": 1, "num_stages": 1}}, "more": {}}
    write_table(path, outcomes, known)
    table = json.loads(path.read_text())
    assert table["op"]["other"] == known["op"]["other"]
    assert DEFAULT.replaced(table["op"]["k"]) == FAST
    write_table(path, [Outcome(tunable(call), None, 1.0, 1.0, 0)], table)
    assert set(json.loads(path.read_text())["op"]) == {"other"}


def test_words_choose_operations_by_name_and_key() -> None:
    each = Tunable("paged_decode", "d128 g4 bfloat16", (), lambda device: lambda: None)
    assert matches(each, None)
    assert matches(each, "decode g4")
    assert not matches(each, "decode g8")


def test_without_a_gpu_the_command_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["--only", "decode"]) == 1
    assert "there is no CUDA device here" in capsys.readouterr().err


def test_an_unknown_operation_is_a_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nothing has this name"]) == 2
    assert "--list shows them" in capsys.readouterr().err
