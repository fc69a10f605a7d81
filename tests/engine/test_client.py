"""The client of an engine: every request ends once, and nothing is left of an engine that ended."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from stentor.engine.client import client as client_module
from stentor.engine.client.client import EngineClient
from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.journal import Journal
from stentor.engine.client.request import EngineRequest
from stentor.engine.client.stream import RequestStream
from stentor.engine.processes import launch as launch_module
from stentor.engine.processes.process import Child, spawn
from stentor.loadtest.processes import alive, children, tree
from stentor.protocols.ipc.actors import Finished, SequenceTokens, Submit, TokensBatch
from stentor.protocols.ipc.config import RecoveryConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.tests.e2e.processes import eventually
from stentor.tests.engine.engines import delivered, read_all, running
from stentor.tests.engine.odd_worker import MAX_MODEL_LEN, REFUSAL
from stentor.tests.support.descriptors import open_descriptors

pytestmark = pytest.mark.anyio
IMPATIENT = RecoveryConfig(watchdog_seconds=0.5, max_engine_deaths=1000)
"""On a busy machine an engine that is replaced may be silent for as long, and again."""
TOKENS = 4000
PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


def _processes(client: EngineClient) -> list[int]:
    """The engine and all below it."""
    assert client.pid is not None
    return tree(client.pid)


def _worker(client: EngineClient) -> int | None:
    """The pid, once it has begun."""
    for pid in _processes(client)[1:]:
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "odd-worker":
                return pid
    return None


def _all_gone(processes: list[int]) -> None:
    eventually(lambda: not any(map(alive, processes)), 60, "engine and worker are gone")


async def _failure(client: EngineClient) -> str:
    with anyio.fail_after(60):
        while client.failure is None:
            await anyio.sleep(0.005)
    return client.failure


async def test_each_sequence_of_a_request_gets_its_tokens_and_one_end() -> None:
    async with running("ready") as client:
        ready = await client.wait_started()
        assert ready.max_model_len == MAX_MODEL_LEN
        stream = client.submit(EngineRequest(PROMPT, SamplingParams(max_tokens=7), [1, 2]))
        tokens, ends = await read_all(stream)
        assert tokens == {0: list(range(5, 12)), 1: list(range(5, 12))}
        assert {index: end.reason for index, end in ends.items()} == {0: "length", 1: "length"}
        assert not client._journal


async def test_an_engine_that_has_ended_leaves_no_process_and_no_descriptor() -> None:
    before: set[tuple[int, str]] = set()
    for life in range(3):
        async with running("ready") as client:
            await client.wait_started()
            processes = _processes(client)
        _all_gone(processes)
        if life == 0:
            before = open_descriptors()  # the first life also opens what the loop keeps
    assert not open_descriptors() - before


async def test_requests_are_refused_before_the_engine_is_ready_and_after_it_ended() -> None:
    async with running("silent") as client:
        with pytest.raises(EngineUnavailable, match="still loading"):
            client.submit(EngineRequest(PROMPT, SamplingParams(max_tokens=1), [1]))
    with pytest.raises(EngineUnavailable, match="shutting down"):
        client.submit(EngineRequest(PROMPT, SamplingParams(max_tokens=1), [1]))


async def test_cancelling_while_the_worker_loads_ends_all_processes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_SHUTDOWN_SECONDS", 60.0)
    async with running("silent") as client:
        while client.pid is None or not children(client.pid):
            await anyio.sleep(0.01)
        processes = _processes(client)
        await anyio.sleep(0.1)
        assert client._launcher.process is not None
        engine = client._launcher.process.child
    assert engine.returncode == 0, "the engine had to be killed"
    _all_gone(processes)


@pytest.mark.parametrize("victim", ["engine", "worker"])
async def test_a_death_while_loading_says_who_died_of_what(victim: str) -> None:
    async with running("silent") as client:
        while client.pid is None or _worker(client) is None:
            await anyio.sleep(0.01)
        processes = _processes(client)
        pid = client.pid if victim == "engine" else _worker(client)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        hint = ", as the kernel does where memory, .*" if victim == "worker" else ""
        with pytest.raises(EngineUnavailable, match=f"the {victim} process was lost.*: killed by SIGKILL{hint}$"):
            await client.wait_started()
    _all_gone(processes)


@pytest.mark.parametrize(
    ("manner", "why"),
    [
        ("refuses", REFUSAL),
        ("vanishes", "the worker process was lost while starting: exited with 3"),
        ("babbles", "the engine failed: DecodeError: .*"),
    ],
)
async def test_a_worker_that_cannot_start_is_told_in_one_line(manner: str, why: str) -> None:
    async with running(manner) as client:
        with pytest.raises(EngineUnavailable, match=f"^{why}$"):
            await client.wait_started()


async def test_an_engine_that_begins_with_nonsense_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn_odd(module: str, fds: Sequence[int], **_: object) -> Child:
        return spawn("stentor.tests.engine.odd_engine", fds)

    monkeypatch.setattr(launch_module, "spawn", spawn_odd)
    async with running("ready") as client:
        with pytest.raises(EngineUnavailable, match="the conversation with the engine broke off"):
            await client.wait_started()
        assert client.pid is not None
    _all_gone([client.pid])


@pytest.mark.proof(each="victim")
@pytest.mark.parametrize("victim", ["engine", "worker"])
async def test_streams_outlive_the_processes_under_them(victim: str) -> None:
    dead: list[int] = []
    async with running("wordy") as client:
        await client.wait_started()
        # so many that none ends before the third death, also where this process waits for its turn
        streams = [client.submit(EngineRequest(PROMPT, SamplingParams(max_tokens=TOKENS), [1, 2])) for _ in range(3)]
        results: dict[int, tuple[dict[int, list[int]], dict[int, Finished]]] = {}

        async def read(number: int) -> None:
            results[number] = await read_all(streams[number])

        def find() -> int | None:
            return client.pid if victim == "engine" else _worker(client)

        async with anyio.create_task_group() as readers:
            for number in range(3):
                readers.start_soon(read, number)
            with anyio.fail_after(120):
                for _ in range(3):
                    before = delivered(streams)
                    while client.stalled is not None or delivered(streams) == before:
                        await anyio.sleep(0.001)
                    pid = find()
                    assert pid is not None
                    dead.append(pid)
                    os.kill(pid, signal.SIGKILL)
                    while find() in (None, pid):
                        await anyio.sleep(0.001)
        for tokens, ends in results.values():
            assert tokens == {0: list(range(5, 5 + TOKENS)), 1: list(range(5, 5 + TOKENS))}
            assert {end.reason for end in ends.values()} == {"length"}
        assert len(set(dead)) == 3, "no death came while it would hurt"
        restarts = client.engine_restarts if victim == "engine" else client.stats.worker_restarts
        assert restarts == 3
        if victim == "worker":
            with anyio.fail_after(60):  # its figures come behind the tokens that they count
                while client.stats.recovered < 3:
                    await anyio.sleep(0.001)
        assert client.stats.recovered >= 3
        assert client.failure is None
    eventually(lambda: not any(map(alive, dead)), 60, "what was killed is gone")


async def test_an_engine_that_stands_still_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("wordy", IMPATIENT) as client:
        await client.wait_started()
        assert client.pid is not None
        living = [client.pid]
        push = RequestStream.push_tokens

        def stop_engine(stream: RequestStream, event: SequenceTokens) -> bool:
            if living:
                os.kill(living.pop(), signal.SIGSTOP)
            return push(stream, event)

        monkeypatch.setattr(RequestStream, "push_tokens", stop_engine)
        # more than the ring holds: none has ended before its first tokens are read
        stream = client.submit(EngineRequest(PROMPT, SamplingParams(max_tokens=2000), [1, 2]))
        await anext(stream)
        before = delivered([stream])
        with anyio.fail_after(60):
            tokens, ends = await read_all(stream)
        assert [tokens[index][-1] for index in (0, 1)] == [2004, 2004]
        assert sum(map(len, tokens.values())) + before >= 4000
        assert {end.reason for end in ends.values()} == {"length"}
        assert client.engine_restarts == client.stats.watchdog_kills >= 1


async def test_an_idle_engine_that_stands_still_is_replaced_once_it_is_to_pause() -> None:
    async with running("ready", IMPATIENT) as client:
        await client.wait_started()
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        with anyio.fail_after(60):
            await client.controls.pause()
            await client.controls.resume()
            tokens, _ = await read_all(client.submit(EngineRequest(PROMPT, SamplingParams(max_tokens=3), [1])))
        assert tokens == {0: [5, 6, 7]}
        assert client.stats.watchdog_kills >= 1


async def test_requests_given_up_while_the_engine_stands_still_leave_nothing_behind() -> None:
    async with running("ready") as client:
        await client.wait_started()
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        try:
            for _ in range(40):
                streams = [
                    client.submit(EngineRequest([7] * 2000, SamplingParams(max_tokens=5), [1])) for _ in range(20)
                ]
                for stream in streams:
                    stream.abort()
                for stream in streams:
                    _, ends = await read_all(stream)
                    assert ends[0].reason == "abort"
                assert len(client._send_queue) <= 1
            # these do leave, as far as the ring holds them: their ends come once the engine moves again
            sent = [client.submit(EngineRequest([7] * 2000, SamplingParams(max_tokens=5), [1])) for _ in range(700)]
            await anyio.sleep(0.05)
            held = len(client._send_queue)
            assert 0 < held < 700
            for stream in sent:
                stream.abort()
                stream.abort()
            assert len(client._send_queue) <= 700 - held
        finally:
            os.kill(client.pid, signal.SIGCONT)
        for stream in sent:
            _, ends = await read_all(stream)
            assert ends[0].reason in ("abort", "length"), "the engine may be done with one before it reads the abort"
        assert not client._journal
        tokens, _ = await read_all(client.submit(EngineRequest(PROMPT, SamplingParams(max_tokens=3), [1])))
        assert tokens == {0: [5, 6, 7]}


async def test_a_server_that_stands_still_loses_no_token_of_more_than_a_ring_holds() -> None:
    async with running("wordy") as client:
        await client.wait_started()
        streams = [client.submit(EngineRequest(PROMPT, SamplingParams(max_tokens=120), [1])) for _ in range(48)]
        await anext(streams[0])
        time.sleep(0.5)  # the whole loop stands: some 2 MB wait for it, in a ring of 1 MB
        await streams[1].__anext__()
        for stream in streams[2:]:
            tokens, ends = await read_all(stream)
            assert tokens == {0: list(range(5, 125))}
            assert ends[0].reason == "length"


# ---- a stream that is read slowly


def _stream(sequences: int, rid: int = 0) -> RequestStream:
    submit = Submit(rid, PROMPT, SamplingParams(max_tokens=1000), list(range(sequences)), 0, "", 0.0)
    return RequestStream(submit, lambda _stream, _index: None)


def _logprob(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -1.0, 1, [])


async def test_unread_tokens_of_a_sequence_are_one_event() -> None:
    stream = _stream(2)
    for token in range(1000):
        stream.push_tokens(SequenceTokens(0, token % 2, [token], [_logprob(token)]))
    stream.push_end(Finished(0, 1, "length", None, None))
    first, second, end = await anext(stream)
    assert isinstance(first, SequenceTokens)
    assert isinstance(second, SequenceTokens)
    assert (first.index, first.tokens) == (0, list(range(0, 1000, 2)))
    assert (second.index, second.tokens) == (1, list(range(1, 1000, 2)))
    assert first.logprobs is not None
    assert [entry.token for entry in first.logprobs] == first.tokens
    assert isinstance(end, Finished)


async def test_a_reader_gets_what_came_together_as_one_and_no_other_reader_is_woken() -> None:
    journal = Journal()
    busy, idle = _stream(1, 0), _stream(1, 1)
    journal.add(busy)
    journal.add(idle)
    reading, waiting = asyncio.ensure_future(anext(busy)), asyncio.ensure_future(anext(idle))
    await asyncio.sleep(0)
    for token in (1, 2):
        journal.deliver(TokensBatch([], [SequenceTokens(0, 0, [token], None)], []))
    journal.wake_readers()
    assert await reading == [SequenceTokens(0, 0, [1, 2], None)]
    assert not waiting.done()
    assert journal._arrived == []
    waiting.cancel()


async def test_events_that_were_read_do_not_change_any_more() -> None:
    stream = _stream(1)
    stream.push_tokens(SequenceTokens(0, 0, [1], None))
    (before,) = await anext(stream)
    stream.push_tokens(SequenceTokens(0, 0, [2], None))
    (after,) = await anext(stream)
    assert isinstance(before, SequenceTokens)
    assert isinstance(after, SequenceTokens)
    assert (before.tokens, after.tokens) == ([1], [2])


async def test_a_sequence_ends_once_and_has_no_tokens_afterwards() -> None:
    stream = _stream(1)
    stream.push_end(Finished(0, 0, "stop", None, None))
    stream.push_tokens(SequenceTokens(0, 0, [1], None))
    stream.push_end(Finished(0, 0, "error", None, None))
    _, ends = await read_all(stream)
    assert ends[0].reason == "stop"


async def test_a_reader_that_was_cancelled_may_read_again() -> None:
    stream = _stream(1)
    with anyio.move_on_after(0.01):
        await anext(stream)
    stream.push_tokens(SequenceTokens(0, 0, [1], None))
    (event,) = await anext(stream)
    assert event == SequenceTokens(0, 0, [1], None)


async def test_a_client_that_cannot_start_its_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Child:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(launch_module, "spawn", refuse)
    before = open_descriptors()
    async with running("ready") as client:
        with pytest.raises(EngineUnavailable, match=r"cannot start the engine process: .*temporarily unavailable"):
            await client.wait_started()
    assert not open_descriptors() - before
