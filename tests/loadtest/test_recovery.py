"""What a recovery is, read from the moments at which tokens came."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from stentor.loadtest.recovery import Recoveries, Recovery, main, recovery, show
from stentor.tests.loadtest.made_up import made_up


def test_a_recovery_ends_with_the_longest_pause_about_the_kill() -> None:
    arrivals = [9.9, 10.0, 10.02, 10.05, 10.6, 10.62, 12.0]
    assert recovery([arrivals], 10.01) == pytest.approx(0.59), "tokens on their way do not count, nor later pauses"
    assert recovery([[9.0, 10.5, 10.52]], 10.0) == pytest.approx(0.5)


def test_of_several_streams_the_one_that_waits_most_counts() -> None:
    assert recovery([[9.9, 10.3, 10.4], [9.9, 10.9, 11.0], [1.0, 2.0]], 10.0) == pytest.approx(0.9)
    assert recovery([[1.0, 2.0], []], 10.0) == 0.0


def test_what_is_printed_says_the_median_the_worst_and_what_was_lost() -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    measured = [Recoveries("worker", [0.2, 0.3, 0.9], 0.95, 0.01, ["the stream ended before [DONE]"])]
    assert show(console, Recovery(started_at="", streams=8, measured=measured)) == 1
    text = console.export_text()
    (row,) = [line for line in text.splitlines() if "0.300" in line]
    assert row.replace("│", " ").split() == ["worker", "3", "0.300", "0.900", "0.950", "0.010", "1"]
    assert "worker: the stream ended before [DONE]" in text


@pytest.mark.proof  # tests/e2e kill as well
def test_streams_go_on_after_real_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, folder, *options = made_up(tmp_path)
    load = ["--kills", "1", "--streams", "2", "--output-tokens", "200"]
    assert main([given, folder, *load, "--", *options, "--log-level", "warning"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "worker" in line or "engine" in line]
    assert len(rows) == 2
