"""The engine or its worker dies under live streams, and what their clients get is what they would have got anyway."""

import asyncio
import json
import os
import signal

import httpx
import ollama
import pytest

from stentor.loadtest.processes import alive
from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.processes import below, eventually
from stentor.tests.support.metrics import metric

Answer = dict[int, tuple[list[int], str | None, list[float]]]
"""By choice: token ids, finish reason, log-probabilities."""

BODIES: tuple[dict[str, object], ...] = (
    {"prompt": "The sea", "temperature": 0},
    {"prompt": [5, 6, 7, 8, 9], "temperature": 0, "logprobs": 2},
    {"prompt": "Once upon a time", "temperature": 0.9, "seed": 7, "n": 3},
    {"prompt": "def main(", "temperature": 1.1, "seed": 8, "top_p": 0.9, "presence_penalty": 0.5, "logprobs": 1},
    {"prompt": "In the beginning was", "temperature": 0.7, "seed": 9, "n": 2, "stop": [" the", "."], "max_tokens": 30},
    {"prompt": "One two three", "temperature": 0, "min_tokens": 30},
)
TOKENS = 160


@pytest.fixture(scope="module")
def server(talker: ServerProcess) -> ServerProcess:
    return talker


class Reader:
    """One stream of ``/v1/completions``."""

    def __init__(self, client: httpx.AsyncClient, body: dict[str, object]) -> None:
        rules = {"model": "demo", "stream": True, "return_token_ids": True, "max_tokens": TOKENS, "ignore_eos": True}
        self._client = client
        self._body = {**rules, **body}
        self.answer: Answer = {}
        self.events = 0
        self.done = False

    async def read(self) -> None:
        async with self._client.stream("POST", "/v1/completions", json=self._body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    self._take(json.loads(line[6:]))

    def _take(self, event: dict[str, object]) -> None:
        assert "error" not in event, event
        choices = event["choices"]
        assert isinstance(choices, list)
        for choice in choices:
            self.events += 1
            tokens, reason, logprobs = self.answer.get(choice["index"], ([], None, []))
            assert reason is None, "something came after the end"
            logprobs += (choice.get("logprobs") or {}).get("token_logprobs", [])
            self.answer[choice["index"]] = tokens + choice.get("token_ids", []), choice["finish_reason"], logprobs


async def _kill_once_streams_move(
    readers: list[Reader], server: ServerProcess, deaths: int, victim: str, health: list[int]
) -> list[int]:
    """One after the other: the next victim is one that streams have gone on with, as ``health`` has said."""
    killed = []
    for _ in range(deaths):
        before = sum(reader.events for reader in readers)
        while sum(reader.events for reader in readers) < before + 3 * len(readers):
            await asyncio.sleep(0.002)
        (found,) = below(server.pid, victim)
        killed += [found, *below(server.pid, "worker")]
        seen = len(health)
        os.kill(found, signal.SIGKILL)
        while 503 not in health[seen:] or health[-1] != 200:
            await asyncio.sleep(0.002)
    return killed


async def _pause_and_kill(
    client: httpx.AsyncClient, readers: list[Reader], server: ServerProcess, victim: str, health: list[int]
) -> list[int]:
    """Kills the victim of a paused server; resumes it once another has been ready for a while."""
    while sum(reader.events for reader in readers) < 3 * len(readers):
        await asyncio.sleep(0.002)
    admin = {"authorization": "Bearer root"}
    assert (await client.post("/pause?mode=keep", headers=admin)).status_code == 200
    (found,) = below(server.pid, victim)
    os.kill(found, signal.SIGKILL)
    seen = len(health)
    while 503 not in health[seen:] or health[-1] != 200:
        await asyncio.sleep(0.002)
    events = sum(reader.events for reader in readers)
    seen = len(health)
    while len(health) < seen + 10:
        await asyncio.sleep(0.002)
    assert sum(reader.events for reader in readers) == events, "a step while it is paused"
    assert (await client.get("/is_paused", headers=admin)).json() == {"is_paused": True}
    await client.post("/resume", headers=admin)
    return [found]


async def _run(
    server: ServerProcess, deaths: int, victim: str = "engine", *, paused: bool = False
) -> tuple[list[Reader], list[int], list[int]]:
    """Every body at once; the readers, the processes that died, and what ``/health`` said meanwhile."""
    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        readers = [Reader(client, body) for body in BODIES]
        health: list[int] = []

        async def watch() -> None:
            while True:
                health.append((await client.get("/health")).status_code)
                assert (await client.get("/ping")).status_code == 200
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        killing = asyncio.create_task(
            _pause_and_kill(client, readers, server, victim, health)
            if paused
            else _kill_once_streams_move(readers, server, deaths, victim, health)
        )
        await asyncio.gather(*(reader.read() for reader in readers))
        watching.cancel()
        return readers, await killing, health


def _counted(server: ServerProcess) -> tuple[float, float, float]:
    """Engines that were lost so far, for other tests kill some too; requests that went on, and times that they did."""
    names = ("engine_restarts_total", "recovered_requests_total", "recovery_seconds_count")
    engines, requests, times = (metric(server.port, name) for name in names)
    return engines, requests, times


@pytest.fixture(scope="module")
def answers(server: ServerProcess) -> list[Answer]:
    """What the streams are when nothing dies."""
    return [reader.answer for reader in asyncio.run(_run(server, 0))[0]]


def test_streams_over_dying_engines_give_the_tokens_that_they_give_undisturbed(
    server: ServerProcess, answers: list[Answer]
) -> None:
    assert [len(answer) for answer in answers] == [1, 1, 3, 1, 2, 1]
    assert len(answers[0][0][0]) == TOKENS
    before, written = _counted(server), len(server.output())
    disturbed, killed, health = asyncio.run(_run(server, 2))
    assert all(reader.done for reader in disturbed)
    for body, reader, answer in zip(BODIES, disturbed, answers, strict=True):
        assert reader.answer == answer, body
    assert 503 in health, "health knew nothing of it"
    assert not any(map(alive, killed)), "a worker has outlived its engine"
    restarts, recovered, recoveries = (now - then for now, then in zip(_counted(server), before, strict=True))
    assert (restarts, recoveries) == (2, 2)
    assert recovered >= 2
    assert metric(server.port, "num_requests_running") == metric(server.port, "num_requests_waiting") == 0
    log = server.output()[written:]
    assert log.count("the engine process was lost: killed by SIGKILL") == 2
    assert log.count("the engine is back after") == 2


def test_streams_over_dying_workers_give_the_tokens_that_they_give_undisturbed(
    server: ServerProcess, answers: list[Answer]
) -> None:
    (engine,) = below(server.pid, "engine")
    written = len(server.output())
    disturbed, killed, health = asyncio.run(_run(server, 2, "worker"))
    assert all(reader.done for reader in disturbed)
    for body, reader, answer in zip(BODIES, disturbed, answers, strict=True):
        assert reader.answer == answer, body
    assert 503 in health, "health knew nothing of it"
    assert not any(map(alive, killed))
    assert below(server.pid, "engine") == [engine], "the engine lives on"
    assert metric(server.port, "num_requests_running") == metric(server.port, "num_requests_waiting") == 0
    assert server.output()[written:].count("the worker process was lost: killed by SIGKILL; ") == 2


@pytest.mark.parametrize("victim", [pytest.param("engine", marks=pytest.mark.proof), "worker"])
def test_streams_over_a_pause_and_a_death_in_it_give_the_tokens_that_they_give_undisturbed(
    server: ServerProcess, answers: list[Answer], victim: str
) -> None:
    disturbed, _, _ = asyncio.run(_run(server, 1, victim, paused=True))
    for body, reader, answer in zip(BODIES, disturbed, answers, strict=True):
        assert reader.answer == answer, body


def test_an_idle_server_loses_its_engine_and_serves_on(server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.port}"
    (engine,) = below(server.pid, "engine")
    os.kill(engine, signal.SIGKILL)
    eventually(lambda: httpx.get(f"{url}/health").status_code == 503, 30, "the loss is seen")
    body = {"model": "demo", "prompt": "a", "max_tokens": 3}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
    assert httpx.get(f"{url}/health").status_code == 200
    assert len(below(server.pid, "engine")) == len(below(server.pid, "worker")) == 1


@pytest.mark.proof
def test_a_stream_of_ollama_s_goes_on_over_a_worker_that_dies(server: ServerProcess) -> None:
    def ask(*, kill: bool) -> str:
        texts = []
        with ollama.Client(f"http://127.0.0.1:{server.port}") as client:
            options = {"num_predict": TOKENS, "temperature": 0}
            for number, chunk in enumerate(client.generate("demo", "The sea", raw=True, stream=True, options=options)):
                if kill and number == 5:
                    (worker,) = below(server.pid, "worker")
                    os.kill(worker, signal.SIGKILL)
                texts.append(chunk.response or "")
        assert chunk.done_reason in ("length", "stop")
        assert len(texts) > 10
        return "".join(texts)

    assert ask(kill=True) == ask(kill=False)
