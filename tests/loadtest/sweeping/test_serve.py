"""A sweep whose load is real: our client against a server that answers with made-up streams."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stentor.loadtest.record import Sweep, load_record
from stentor.loadtest.serving.selftest import firehose
from stentor.loadtest.sweeping.command import check, main
from stentor.loadtest.tool import UsageError, masked


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with firehose(20_000) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.proof
def test_a_sweep_measures_a_server(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--url", url, "--output", "5", "--repeats", "1", "--cooldown", "0", "--out", str(tmp_path)]
    assert main(["--axis", "concurrency", "1,3", "--requests-each", "2", *more]) == 0
    sweep = load_record(tmp_path / "sweep.json")
    assert isinstance(sweep, Sweep)
    assert [(point.value, point.result.summary.completed) for point in sweep.points] == [(1, 2), (3, 6)]
    assert [point.result.summary.output_tokens for point in sweep.points] == [10, 30]
    assert sweep.points[1].result.summary.peak_concurrency == 3
    assert "2/2 concurrency=3 on server" in capsys.readouterr().out


def test_a_server_that_is_not_there_ends_the_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--axis", "concurrency", "1", "--url", "http://127.0.0.1:1", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "is the server running?" in said
    assert "goes on from here" in said


@pytest.mark.proof  # a program that is started anew
def test_an_interrupt_ends_the_sweep_and_keeps_what_was_measured(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "stentor.loadtest.bench", "sweep", "--axis", "duration", "0.1,60"]
    more = ["--url", url, "--output", "5", "--repeats", "1", "--cooldown", "0", "--out", str(tmp_path)]
    with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        first = tmp_path / "runs" / "server" / "0.1.0.json"
        deadline = time.monotonic() + 30
        while not first.exists() and time.monotonic() < deadline and sweep.poll() is None:
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(sweep.pid, signal.SIGINT)
        _, said = sweep.communicate(timeout=30)
    assert sweep.returncode == 130
    assert "interrupted; the same command goes on from here" in said
    assert [path.name for path in first.parent.iterdir()] == ["0.1.0.json"]
    assert (tmp_path / "sweep.html").is_file()


def test_serve_checks_its_own_options() -> None:
    assert check(["--rate", "3"]).rate == 3
    with pytest.raises(UsageError, match=r"--ratte 3 \(see stentor bench sweep --help\)"):
        check(["--ratte", "3"])


def test_keys_and_headers_are_masked_however_they_are_given() -> None:
    given = ["--api-key", "a", "--rate", "1", "--header=x: b", "--api-key=c", "--header", "y: d"]
    assert masked(given) == ["--api-key", "***", "--rate", "1", "--header=***", "--api-key=***", "--header", "***"]
