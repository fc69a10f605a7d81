"""The engine or its worker dies under live streams, and what their clients get is what they would have got anyway."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

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
ENDLESS = 4_000
"""Tokens that a stream does not come to before its server has died as often as it is to: it is closed then."""
TOKENS = 40
"""Of each choice, at least."""


@pytest.fixture(scope="module")
def server(talker: ServerProcess) -> ServerProcess:
    return talker


class Reader:
    """One stream of ``/v1/completions``."""

    def __init__(self, client: httpx.AsyncClient, body: dict[str, object]) -> None:
        rules = {"model": "demo", "stream": True, "return_token_ids": True, "max_tokens": ENDLESS, "ignore_eos": True}
        self._client = client
        self.body = {**rules, **body}
        self.answer: Answer = {}
        self.events = 0
        self.done = False
        self.closing = False

    async def read(self) -> None:
        """To its end; where it is ``closing``, until each choice has ended or has ``TOKENS``."""
        async with self._client.stream("POST", "/v1/completions", json=self.body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    self._take(json.loads(line[6:]))
                if self.closing and self._has_enough():
                    return

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

    def _has_enough(self) -> bool:
        choices = self.answer.values()
        endless = self.body["max_tokens"] == ENDLESS
        return endless and len(choices) == self.body.get("n", 1) and all(len(choice[0]) >= TOKENS for choice in choices)


async def _until(condition: Callable[[], bool], readers: list[Reader]) -> None:
    while not condition():
        assert not all(reader.done for reader in readers), "the streams ended before all that is to die had"
        await asyncio.sleep(0.002)


async def _more_events(readers: list[Reader]) -> None:
    wanted = sum(reader.events for reader in readers) + 3 * len(readers)
    await _until(lambda: sum(reader.events for reader in readers) >= wanted, readers)


@contextmanager
def _no_replacement(server: ServerProcess) -> Iterator[None]:
    """What dies meanwhile is replaced behind it: its absence cannot pass unseen."""
    (fork_server,) = below(server.pid, "forksrv")
    os.kill(fork_server, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(fork_server, signal.SIGCONT)


async def _kill(victim: int, server: ServerProcess, readers: list[Reader], health: list[int]) -> None:
    """Returns once ``health`` has told of it, and then that all is well again."""
    with _no_replacement(server):
        seen = len(health)
        os.kill(victim, signal.SIGKILL)
        await _until(lambda: 503 in health[seen:], readers)
    await _until(lambda: health[-1] == 200, readers)


Killing = Callable[[httpx.AsyncClient, list[Reader], ServerProcess, list[int]], Awaitable[list[int]]]
"""Kills something under readers; gives the processes that died. The last argument is what ``/health`` has said."""


def _kill_once_streams_move(victim: str, deaths: int) -> Killing:
    """One after the other: the next victim is one that streams have gone on with, as ``/health`` has said."""

    async def kill(_: httpx.AsyncClient, readers: list[Reader], server: ServerProcess, health: list[int]) -> list[int]:
        killed = []
        for _death in range(deaths):
            await _more_events(readers)
            (found,) = below(server.pid, victim)
            killed += [found, *below(server.pid, "worker")]
            await _kill(found, server, readers, health)
        return killed

    return kill


def _pause_and_kill(victim: str) -> Killing:
    """Kills the victim of a paused server; resumes it once another has been ready for a while."""

    async def kill(
        client: httpx.AsyncClient, readers: list[Reader], server: ServerProcess, health: list[int]
    ) -> list[int]:
        await _more_events(readers)
        admin = {"authorization": "Bearer root"}
        assert (await client.post("/pause?mode=keep", headers=admin)).status_code == 200
        (found,) = below(server.pid, victim)
        await _kill(found, server, readers, health)
        events, ready = sum(reader.events for reader in readers), len(health)
        await _until(lambda: len(health) >= ready + 10, readers)
        assert sum(reader.events for reader in readers) == events, "a step while it is paused"
        assert (await client.get("/is_paused", headers=admin)).json() == {"is_paused": True}
        await client.post("/resume", headers=admin)
        return [found]

    return kill


def _sleep(level: int) -> Killing:
    """Puts the server to sleep while it streams, and wakes it."""

    async def sleep(
        client: httpx.AsyncClient, readers: list[Reader], server: ServerProcess, health: list[int]
    ) -> list[int]:
        await _more_events(readers)
        client.headers["authorization"] = "Bearer root"
        workers, seen = below(server.pid, "worker"), len(health)
        assert (await client.post(f"/sleep?level={level}&mode=keep")).json() == {"status": "sleeping", "level": level}
        assert below(server.pid, "worker") == []
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await client.post("/wake_up")).json() == {"status": "awake"}
        await _more_events(readers)
        assert set(health[seen:]) <= {200}, "a sleep is no failure"
        return workers

    return sleep


async def _disturb(server: ServerProcess, killing: Killing) -> tuple[list[Reader], list[int]]:
    """Every body at once; the readers, and the processes that died."""
    health: list[int] = []

    async def watch(client: httpx.AsyncClient) -> None:
        while True:
            health.append((await client.get("/health")).status_code)
            assert (await client.get("/ping")).status_code == 200
            await asyncio.sleep(0.01)

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        readers = [Reader(client, body) for body in BODIES]
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch(client))
            reading = [tasks.create_task(reader.read()) for reader in readers]
            killed = await killing(client, readers, server, health)
            for reader in readers:
                reader.closing = True
            await asyncio.wait(reading)
            watching.cancel()
    return readers, killed


async def _read_undisturbed(server: ServerProcess, disturbed: list[Reader]) -> list[Reader]:
    """Streams of as many tokens as the others came to."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        lengths = [max(len(tokens) for tokens, _, _ in reader.answer.values()) for reader in disturbed]
        readers = [Reader(client, {"max_tokens": length, **body}) for length, body in zip(lengths, BODIES, strict=True)]
        await asyncio.gather(*(reader.read() for reader in readers))
    assert all(reader.done for reader in readers)
    return readers


def _check(server: ServerProcess, disturbed: list[Reader]) -> None:
    """What came is what comes when nothing dies; streams that were closed had a part of it."""
    undisturbed = asyncio.run(_read_undisturbed(server, disturbed))
    assert [len(reader.answer) for reader in disturbed] == [1, 1, 3, 1, 2, 1]
    for body, reader, other in zip(BODIES, disturbed, undisturbed, strict=True):
        for index, (tokens, reason, logprobs) in reader.answer.items():
            whole, its_reason, its_logprobs = other.answer[index]
            assert tokens == whole[: len(tokens)], body
            assert logprobs == its_logprobs[: len(logprobs)], body
            assert bool(logprobs) == bool(body.get("logprobs")), body
            assert reason == (its_reason if reader.done else None), body


def _counted(server: ServerProcess) -> tuple[float, float, float]:
    """Engines that were lost so far, for other tests kill some too; requests that went on, and times that they did."""
    names = ("engine_restarts_total", "recovered_requests_total", "recovery_seconds_count")
    engines, requests, times = (metric(server.port, name) for name in names)
    return engines, requests, times


def _await_idle(server: ServerProcess) -> None:
    """Streams that were closed leave nothing behind."""
    names = ("num_requests_running", "num_requests_waiting")
    eventually(lambda: not any(metric(server.port, name) for name in names), 30, "nothing runs or waits")


def test_streams_over_dying_engines_give_the_tokens_that_they_give_undisturbed(server: ServerProcess) -> None:
    before, written = _counted(server), len(server.output())
    disturbed, killed = asyncio.run(_disturb(server, _kill_once_streams_move("engine", 2)))
    assert not any(map(alive, killed)), "a worker has outlived its engine"
    restarts, recovered, recoveries = (now - then for now, then in zip(_counted(server), before, strict=True))
    assert (restarts, recoveries) == (2, 2)
    assert recovered >= 2
    _await_idle(server)
    log = server.output()[written:]
    assert log.count("the engine process was lost: killed by SIGKILL") == 2
    assert log.count("the engine is back after") == 2
    _check(server, disturbed)


def test_streams_over_dying_workers_give_the_tokens_that_they_give_undisturbed(server: ServerProcess) -> None:
    (engine,) = below(server.pid, "engine")
    written = len(server.output())
    disturbed, killed = asyncio.run(_disturb(server, _kill_once_streams_move("worker", 2)))
    assert not any(map(alive, killed))
    assert below(server.pid, "engine") == [engine], "the engine lives on"
    _await_idle(server)
    assert server.output()[written:].count("the worker process was lost: killed by SIGKILL; ") == 2
    _check(server, disturbed)


@pytest.mark.parametrize("victim", [pytest.param("engine", marks=pytest.mark.proof), "worker"])
def test_streams_over_a_pause_and_a_death_in_it_give_the_tokens_that_they_give_undisturbed(
    server: ServerProcess, victim: str
) -> None:
    disturbed, _ = asyncio.run(_disturb(server, _pause_and_kill(victim)))
    _check(server, disturbed)


@pytest.mark.parametrize("level", [1, pytest.param(2, marks=pytest.mark.proof)])
def test_streams_over_a_sleep_give_the_tokens_that_they_give_undisturbed(server: ServerProcess, level: int) -> None:
    restarts = metric(server.port, "worker_restarts_total")
    disturbed, workers = asyncio.run(_disturb(server, _sleep(level)))
    assert workers
    assert not any(map(alive, workers))
    assert metric(server.port, "worker_restarts_total") == restarts
    _check(server, disturbed)


def test_an_idle_server_loses_its_engine_and_serves_on(server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.port}"
    (engine,) = below(server.pid, "engine")
    with _no_replacement(server):
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
            options = {"num_predict": 160, "temperature": 0}
            for number, chunk in enumerate(client.generate("demo", "The sea", raw=True, stream=True, options=options)):
                if kill and number == 5:
                    (worker,) = below(server.pid, "worker")
                    os.kill(worker, signal.SIGKILL)
                texts.append(chunk.response or "")
        assert chunk.done_reason in ("length", "stop")
        assert len(texts) > 10
        return "".join(texts)

    assert ask(kill=True) == ask(kill=False)


def test_a_beam_search_goes_on_with_the_next_worker_and_finds_the_same(server: ServerProcess) -> None:
    body = {
        "model": "demo",
        "prompt": "The sea",
        "max_tokens": 60,
        "n": 4,
        "ignore_eos": True,
        "use_beam_search": True,
        "return_token_ids": True,
    }

    async def search() -> tuple[dict[str, object], dict[str, object]]:
        """Undisturbed, and under the death of its worker."""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
            undisturbed = await client.post("/v1/completions", json=body)
            assert undisturbed.status_code == 200, undisturbed.text
            restarts, steps = (metric(server.port, f"{name}_total") for name in ("worker_restarts", "engine_steps"))
            searching = asyncio.create_task(client.post("/v1/completions", json=body))
            while metric(server.port, "engine_steps_total") < steps + 10:
                assert not searching.done(), "the search has ended"
                await asyncio.sleep(0.001)
            (worker,) = below(server.pid, "worker")
            os.kill(worker, signal.SIGKILL)
            disturbed = await searching
            assert metric(server.port, "worker_restarts_total") == restarts + 1
            return undisturbed.json(), disturbed.json()

    undisturbed, disturbed = asyncio.run(search())
    assert disturbed["choices"] == undisturbed["choices"]
