"""Small requests that would take for ever, beside real streams that must keep their pace."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import msgspec

from stentor.loadtest.record import Result, load_result
from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos.bodies import MODEL
from stentor.tests.chaos.footprint import footprint
from stentor.tests.chaos.killing import Note
from stentor.tests.server.attacks.test_bombs import BOMBS, SECONDS
from stentor.tests.support.metrics import metric

STREAMS: Final = 8
SERVE: Final = (
    *("--served-model-name", MODEL, "--max-model-len", "8192"),
    "--trust-request-chat-template",
)
_LOAD: Final = ("--tokens", "--input", "1", "--ignore-eos", "--concurrency", str(STREAMS))
_PAUSE: Final = 0.05
"""Seconds between a refusal and the next bomb."""
_PATIENCE: Final = 30.0
_MEASURED: Final = 2
"""Streams, at least, that have ended one after another: only those are counted."""


class Bombed(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies between tokens of one stream are in milliseconds."""

    bombs: int
    thrown: int
    slowest_refusal_s: float
    slowest: str
    """The bomb that it was."""
    streams: int
    median_before_ms: float
    p99_before_ms: float
    median_ms: float
    p99_ms: float
    worst_ms: float
    problems: list[str]

    @property
    def ratio(self) -> float:
        """How many times longer than in peace it takes under attack: the median or the 99th percentile, whichever is
        worse."""
        return max(self.median_ms / self.median_before_ms, self.p99_ms / self.p99_before_ms)


@contextlib.contextmanager
def _streams(server: ServerProcess, tokens: int, file: Path) -> Iterator[None]:
    """Streams while the block lasts, measured by a process of their own: what throws bombs does not delay it."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "stentor.loadtest.bench",
        "serve",
        "--url",
        f"http://127.0.0.1:{server.port}",
    ]
    load = subprocess.Popen(
        [*command, *_LOAD, "--output", str(tokens), "--duration", "600", "--save", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for_streams(server)
        begun = _tokens(server)
        yield
        while _tokens(server) < begun + STREAMS * _MEASURED * tokens and load.poll() is None:  # on a busy machine
            time.sleep(0.1)
        load.send_signal(signal.SIGINT)
        load.wait(_PATIENCE)
    finally:
        load.kill()
        load.wait()


def _tokens(server: ServerProcess) -> float:
    """That have been generated for anybody."""
    return metric(server.port, "generation_tokens_total")


def _wait_for_streams(server: ServerProcess) -> None:
    deadline = time.monotonic() + _PATIENCE
    while footprint(server.port, server.pid).live < STREAMS:
        assert time.monotonic() < deadline, "the streams do not begin"
        time.sleep(0.1)


def bomb(
    server: ServerProcess, peace_seconds: float, seconds_each: float, note: Note, *, stream_tokens: int = 200
) -> Bombed:
    """Each kind is thrown at least once, and again for ``seconds_each``.

    Streams follow one another, of ``stream_tokens`` each: a context that grows would slow them by itself.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client,
    ):
        files = Path(folder) / "before.json", Path(folder) / "during.json"
        _warm_up(client)
        with _streams(server, stream_tokens, files[0]):
            time.sleep(peace_seconds)
        with _streams(server, stream_tokens, files[1]):
            thrown, refusals, problems = _throw(client, seconds_each, note)
        before, during = (load_result(file) for file in files)
    problems += [f"a stream failed: {error}" for error in _errors(during)]
    slowest = max(refusals, key=lambda name: refusals[name])
    return Bombed(
        bombs=len(refusals),
        thrown=thrown,
        slowest_refusal_s=refusals[slowest],
        slowest=slowest,
        streams=STREAMS,
        median_before_ms=before.summary.itl.p50,
        p99_before_ms=before.summary.itl.p99,
        median_ms=during.summary.itl.p50,
        p99_ms=during.summary.itl.p99,
        worst_ms=during.summary.itl.max,
        problems=problems,
    )


def _errors(result: Result) -> list[str]:
    """What went wrong, other than that the load was told to end."""
    return sorted({each.error for each in result.requests if each.error is not None})


def _throw(client: httpx.Client, seconds_each: float, note: Note) -> tuple[int, dict[str, float], list[str]]:
    """How many were thrown, the slowest refusal of each kind in seconds, and what was wrong with the answers."""
    refusals: dict[str, float] = {}
    problems: list[str] = []
    thrown = 0
    for name, (path, body) in BOMBS.items():
        began = time.monotonic()
        while name not in refusals or time.monotonic() - began < seconds_each:
            sent = time.monotonic()
            answer = client.post(path, content=body, timeout=_PATIENCE)
            refusals[name] = max(refusals.get(name, 0.0), time.monotonic() - sent)
            thrown += 1
            if answer.status_code != 400:
                problems.append(f"{name}: {answer.status_code} {answer.text[:200]}")
            time.sleep(_PAUSE)
        if refusals[name] > SECONDS:
            problems.append(f"{name}: refused after {refusals[name]:.2f} s, expected {SECONDS:g}")
        note(f"{name}: refused within {refusals[name]:.2f} s")
    return thrown, refusals, problems


def _warm_up(client: httpx.Client) -> None:
    """The process that renders templates of requests takes its time to start."""
    body = {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ 1 }}", "max_tokens": 1}
    client.post("/v1/chat/completions", json=body, timeout=_PATIENCE)
