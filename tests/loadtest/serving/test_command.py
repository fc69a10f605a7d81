"""The command as a user runs it, in a process of its own where that matters, against a real server."""

import asyncio
import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from stentor.loadtest.record import load_result
from stentor.loadtest.serving.command import main
from stentor.loadtest.serving.selftest import Case, run_case, self_test
from stentor.tests.loadtest.serving.scripted import HEAD, Answer, Asked, Script, Write, serving, token, tokens

IDS = "--tokens --token-range 7:9 --input 30 --output 2 --requests 1 --ignore-eos"
BENCH = [sys.executable, "-P", "-m", "stentor.loadtest.bench", "serve"]


@contextmanager
def _served(answer: Answer = tokens) -> Iterator[Script]:
    """The scripted server in a thread, for a client that has a loop or a process of its own."""
    script, ready, over = Script(), threading.Event(), threading.Event()

    async def serve() -> None:
        nonlocal script
        async with serving(answer) as script:
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield script
    finally:
        over.set()
        thread.join()


def _bench(script: Script, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*BENCH, "--url", f"http://127.0.0.1:{script.port}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def _here(script: Script, *arguments: str) -> int:
    """The same in this process, which has imported it all."""
    return main(["--url", f"http://127.0.0.1:{script.port}", *arguments])


def test_a_run_prints_a_table_and_saves_what_it_measured(tmp_path: Path) -> None:
    with _served() as script:
        done = _bench(
            script,
            *shlex.split("--api chat --concurrency 3 --requests 7 --output 5 --warmup 1 --seed 4"),
            *("--save", str(tmp_path / "run.json"), "--csv", str(tmp_path / "run.csv"), "--name", "mine"),
            *("--goodput", "ttft:5000", "e2e:9000", "--api-key", "secret", "--header", "X-Team: red"),
        )
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("7 completed, 0 failed", "TTFT", "ITL", "TPOT", "E2E", "100.0% within ttft 5000 ms, e2e 9000 ms"):
        assert text in done.stdout
    assert "\x1b" not in done.stdout
    sent = script.prompts[-1].headers
    assert (sent["authorization"], sent["x-team"]) == ("Bearer secret", "red")
    result = load_result(tmp_path / "run.json")
    assert (result.name, result.summary.completed, result.summary.output_tokens) == ("mine", 7, 35)
    assert result.command[:3] == ["stentor", "bench", "serve"]
    assert "secret" not in (tmp_path / "run.json").read_text()
    assert result.limits == {"ttft": 5000.0, "e2e": 9000.0}
    with open(tmp_path / "run.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    assert {row["output_tokens"] for row in rows} == {"5"}
    assert datetime.fromisoformat(rows[0]["started_at"]) >= datetime.fromisoformat(result.started_at)


def test_quiet_prints_nothing_but_errors(capfd: pytest.CaptureFixture[str]) -> None:
    async def refuse(asked: Asked, write: Write) -> None:
        await write(b"HTTP/1.1 400 Bad\r\ncontent-length: 3\r\n\r\nbad")

    with _served() as script:
        assert _here(script, "--requests", "2", "--quiet") == 0
    assert capfd.readouterr() == ("", "")
    with _served(refuse) as script:
        assert _here(script, "--requests", "2", "--quiet") == 1
    said = "stentor bench serve: all 2 requests failed, the first with http 400: bad\n"
    assert capfd.readouterr() == ("", said)


def test_failures_are_told_by_kind_with_an_example(capfd: pytest.CaptureFixture[str]) -> None:
    async def every_other(asked: Asked, write: Write) -> bool:
        if len(script.prompts) % 2:
            await write(HEAD + token())
            return True
        await tokens(asked, write)
        return False

    with _served(every_other) as script:
        assert _here(script, "--requests", "4", "--concurrency", "1") == 0
    printed = capfd.readouterr().out
    assert "2 completed, 2 failed" in printed
    assert "truncated" in printed
    assert "the stream ended before [DONE]" in printed


def test_nothing_of_torch_is_imported() -> None:
    code = (
        "import sys\nfrom stentor.loadtest.bench import main\n"
        "main(sys.argv[1:])\nassert not {'torch', 'transformers', 'triton'} & set(sys.modules)"
    )
    with _served() as script:
        command = [sys.executable, "-P", "-c", code, "serve", "--url", f"http://127.0.0.1:{script.port}"]
        done = subprocess.run([*command, "--requests", "1"], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def test_an_interrupt_prints_and_saves_what_has_completed(tmp_path: Path) -> None:
    async def some(asked: Asked, write: Write) -> None:
        if len(script.prompts) <= 3:
            await tokens(asked, write)
            return
        process.send_signal(signal.SIGINT)
        await write(HEAD + token())
        await asyncio.Event().wait()

    with _served(some) as script:
        command = [*BENCH, "--url", f"http://127.0.0.1:{script.port}", "--concurrency", "1", "--save", "run.json"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    assert "3 completed, 0 failed" in out
    assert "interrupted" in out
    assert load_result(tmp_path / "run.json").summary.completed == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--concurrency 2 --rate 3", "--concurrency, --rate and --ramp exclude one another"),
        ("--concurrency 0", "expected a whole number, at least 1"),
        ("--input uniform:9:1", "uniform:9:1 allows no length"),
        ("--api chat --tokens", "--tokens: the chat API takes text alone"),
        ("--tokens --turns 3", "--tokens and --turns exclude one another"),
        ("--token-range 1:2", "--token-range is for --tokens"),
        ("--tokens --token-range 5:2", "expected LOW:HIGH"),
        ("--prefixes 3", "--prefixes 3: expected N:TOKENS"),
        ("--dataset /no/such/file", "cannot read /no/such/file"),
        ("--dataset x --input 3", "--input-tokens and --dataset exclude one another"),
        ("--goodput speed:1", "speed:1 is no limit"),
        ("--header nocolon", "expected NAME:VALUE"),
        ("--extra-body [1]", "expected a JSON object"),
        ("--url ftp://here", "is no address of a server"),
        ("--ramp users:1,2", "is no ramp"),
        ("--seed -1", "expected a whole number, at least 0"),
        ("--save /no/such/folder/run.json", "there is no folder /no/such/folder"),
        ("--save /", "/ is a folder: expected the name of a file"),
        ("--unknown", "unrecognized arguments: --unknown"),
    ],
)
def test_what_is_used_wrongly_is_one_line_and_exit_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("stentor bench serve: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_a_file_that_cannot_be_written_in_the_end_costs_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "taken_away"

    async def takes_away(asked: Asked, write: Write) -> None:
        folder.rmdir()
        await tokens(asked, write)

    folder.mkdir()
    with _served(takes_away) as script:
        url = f"http://127.0.0.1:{script.port}"
        assert main(["--url", url, "--requests", "1", "--save", str(folder / "run.json")]) == 1
    printed = capsys.readouterr()
    assert "1 completed, 0 failed" in printed.out
    assert "No such file or directory" in printed.err
    assert printed.err.count("\n") == 1


def test_nobody_there_is_one_line_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1", "--quiet"]) == 1
    assert "Connection refused; is the server running?" in capsys.readouterr().err


def test_what_is_asked_is_what_the_options_say(tmp_path: Path) -> None:
    (tmp_path / "talks.jsonl").write_text('{"messages":[{"role":"user","content":"Ahoy"}]}\n')
    with _served() as script:
        assert _here(script, *shlex.split(IDS)) == 0
        extra = json.dumps({"top_k": 5})
        file = ["--dataset", str(tmp_path / "talks.jsonl"), "--api", "chat", "--output", "3", "--requests", "1"]
        assert _here(script, *file, "--extra-body", extra, "--temperature", "0.5", "--model", "mine") == 0
    first, second = (asked.body for asked in script.prompts)
    assert (len(first["prompt"]), set(first["prompt"])) == (30, {7, 8})
    assert (first["max_tokens"], first["ignore_eos"], first["model"]) == (2, True, "scripted")
    assert second["messages"] == [{"role": "user", "content": "Ahoy"}]
    assert (second["max_tokens"], second["top_k"], second["temperature"], second["model"]) == (3, 5, 0.5, "mine")


@pytest.mark.parametrize("rate", [None, 20_000.0])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_the_self_test_counts_every_chunk(api: str, rate: float | None) -> None:
    cost = run_case(Case("small", api, streams=4, chunks=500, rate=rate))
    assert cost.chunks == 2000
    assert 4 <= cost.reads <= 2000
    assert 0 < cost.cpu_seconds < 2


def test_the_self_test_prints_its_cases(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out:
        assert self_test(Console(file=out, width=120), (Case("small", "chat", 2, 100, None),)) == 0
    assert "small" in (tmp_path / "out").read_text()
    assert "200" in (tmp_path / "out").read_text()


def test_on_a_terminal_the_run_is_drawn(tmp_path: Path) -> None:
    async def slow(asked: Asked, write: Write) -> None:
        await asyncio.sleep(0.3)  # the line is drawn twice a second
        await tokens(asked, write)

    ours, theirs = os.openpty()
    with _served(slow) as script:
        process = subprocess.Popen(
            [*BENCH, "--url", f"http://127.0.0.1:{script.port}", "--requests", "4", "--concurrency", "1"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        )
        os.close(theirs)
        drawn = b""
        try:
            while piece := os.read(ours, 65536):
                drawn += piece
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(ours)
        assert process.wait(60) == 0
    text = drawn.decode()
    assert "/4 done" in text
    assert "tokens/s" in text
    assert "4 completed, 0 failed" in text
