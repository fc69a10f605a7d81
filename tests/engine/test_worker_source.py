"""Workers from a fork server: whose children they are, what they are given, and what follows when it is lost."""

import contextlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from stentor.engine.channel import ChannelPair, Endpoint, PeerDied
from stentor.engine.core.worker_source import WorkerSource
from stentor.engine.processes import fork_server, fork_server_owner, process
from stentor.engine.processes.fork_server_owner import ForkServer
from stentor.engine.processes.process import Child, spawn
from stentor.tests.engine.channel.harness import ends_within
from stentor.tests.engine.fork_server_programs import MODULE, MULTIPLYING, THREADED, UNPREPARED
from stentor.tests.support.descriptors import open_descriptors

SOON = 60.0

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@asynccontextmanager
async def started(source: WorkerSource) -> AsyncIterator[tuple[Endpoint, Child]]:
    pair = ChannelPair.create()
    with anyio.fail_after(SOON):
        child = await source.start(pair.child_fds)
    try:
        pair.parent.watch(child.pid, child.pidfd)
        yield pair.parent, child
    finally:
        child.close()
        pair.parent.close()


@contextlib.contextmanager
def source_of(module: str, weights_fd: int | None = None) -> Iterator[WorkerSource]:
    source = WorkerSource(module, () if weights_fd is None else (weights_fd,))
    try:
        yield source
    finally:
        source.close()
        source.close()


@asynccontextmanager
async def spawned(weights: int) -> AsyncIterator[Endpoint]:
    """The same worker, started by itself."""
    pair = ChannelPair.create()
    arguments, environment = ("--weights-fd", str(weights)), fork_server_owner.WORKER_ENVIRONMENT
    with pair.parent as endpoint:
        child = spawn(UNPREPARED, pair.child_fds, kept_fds=(weights,), arguments=arguments, env_extra=environment)
        endpoint.watch(child.pid, child.pidfd)
        yield endpoint
        child.close()


async def facts_of(endpoint: Endpoint) -> dict[str, Any]:
    await endpoint.send(b"describe")
    with anyio.fail_after(SOON):
        (frame,) = await endpoint.receive()
    facts: dict[str, Any] = json.loads(frame)
    return facts


async def test_a_worker_is_tied_to_its_fork_server_and_is_given_only_what_was_passed() -> None:
    weights = os.memfd_create("weights-for-test")
    os.write(weights, b"heavy")
    with source_of(MODULE, weights) as source:
        async with started(source) as (endpoint, child):
            facts = await facts_of(endpoint)
            assert facts.pop("preloaded in") == facts.pop("parent") == source.own_fork_server
    descriptors = facts.pop("descriptors")
    assert facts == {
        "pid": child.pid,
        "told parent": os.getpid(),
        "comm": "test-worker",
        "own session": True,
        "stdin": "/dev/null",
        "option": "--weights-fd",
        "kept": "heavy",
        "environment": fork_server_owner.WORKER_ENVIRONMENT["GOMP_SPINCOUNT"],
        "threads": 1,
    }
    async with spawned(weights) as endpoint:
        assert descriptors == (await facts_of(endpoint))["descriptors"]
    os.close(weights)


async def test_workers_come_from_one_fork_server_and_their_ends_are_told() -> None:
    with source_of(MODULE) as source:
        seen = set()
        for order, end in ((b"exit", 7), (None, -signal.SIGKILL)):
            async with started(source) as (endpoint, child):
                seen.add((await facts_of(endpoint))["preloaded in"])
                if order is None:
                    child.kill()
                else:
                    await endpoint.send(order)
                assert await child.wait() == end
                with pytest.raises(PeerDied):
                    await endpoint.receive()
        assert seen == {source.own_fork_server}


async def test_a_fork_server_that_was_killed_takes_its_worker_along_and_is_replaced() -> None:
    with source_of(MODULE) as source:
        async with started(source) as (endpoint, child):
            first = source.own_fork_server
            assert first is not None
            os.kill(first, signal.SIGKILL)
            with pytest.raises(PeerDied):
                await endpoint.receive()
            assert await child.wait() == -signal.SIGKILL
        async with started(source) as (endpoint, _):
            assert (await facts_of(endpoint))["preloaded in"] == source.own_fork_server != first


async def test_a_fork_server_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server_owner, "_FORK_SECONDS", 0.1)
    with source_of(MODULE) as source:
        async with started(source):
            pass
        first = source.own_fork_server
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        async with started(source) as (endpoint, _):
            assert (await facts_of(endpoint))["preloaded in"] == source.own_fork_server != first


@pytest.mark.parametrize("module", [UNPREPARED, THREADED])
async def test_where_no_fork_server_can_fork_workers_are_spawned(module: str) -> None:
    weights = os.memfd_create("weights-for-test")
    os.write(weights, b"heavy")
    with source_of(module, weights) as source:
        for _ in range(2):
            async with started(source) as (endpoint, child):
                facts = await facts_of(endpoint)
                assert (facts["preloaded in"], facts["parent"], facts["kept"]) == (0, os.getpid(), "heavy")
                assert facts["pid"] == child.pid
                assert source.own_fork_server is None
    os.close(weights)


async def cancelled_start(source: WorkerSource) -> None:
    pair = ChannelPair.create()
    with anyio.move_on_after(0.01) as scope:
        await source.start(pair.child_fds)
    pair.parent.close()
    assert scope.cancelled_caught


async def test_a_fork_server_that_imports_for_too_long_is_kept_for_the_next_worker_and_no_longer() -> None:
    with source_of(MODULE) as source:
        await cancelled_start(source)
        first = source.own_fork_server
        async with started(source) as (endpoint, _):
            assert (await facts_of(endpoint))["preloaded in"] == first
    with source_of(MODULE) as source:
        await cancelled_start(source)
        first = source.own_fork_server
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        await cancelled_start(source)
        async with started(source) as (endpoint, _):
            assert (await facts_of(endpoint))["preloaded in"] == source.own_fork_server != first


async def test_nothing_is_left_open() -> None:
    before = open_descriptors()
    with source_of(MODULE) as source:
        for _ in range(3):
            async with started(source):
                pass
        assert len(open_descriptors() - before) == 3, "two sockets of the fork server and its pidfd"
    assert not open_descriptors() - before


@pytest.mark.proof
async def test_a_forked_worker_multiplies_on_several_threads() -> None:
    with source_of(MULTIPLYING) as source:
        for _ in range(2):
            async with started(source) as (endpoint, _):
                with anyio.fail_after(SOON):
                    (frame,) = await endpoint.receive()
                already, product, sums, threads = frame.decode().split()
                assert (already, threads) == ("True", "2")
                assert float(sums) == pytest.approx(sum(range(360_000)) / 1000)
                columns = [sum(range(j, 360_000, 600)) / 1000 for j in range(600)]
                rows = [sum(range(600 * i, 600 * i + 600)) / 1000 for i in range(600)]
                assert float(product) == pytest.approx(sum(c * r for c, r in zip(columns, rows, strict=True)))


@pytest.mark.parametrize("victim", ["engine", "forkserver"])
async def test_a_worker_outlives_neither_its_engine_nor_its_fork_server(victim: str) -> None:
    pair = ChannelPair.create()
    with pair.parent as endpoint:
        engine = spawn(MODULE, pair.child_fds)
        endpoint.watch(engine.pid, engine.pidfd)
        with anyio.fail_after(SOON):
            (pids,) = await endpoint.receive()
        fork_server, worker = (os.pidfd_open(int(pid)) for pid in pids.split())
        try:
            signal.pidfd_send_signal(worker, signal.SIGSTOP)  # it can do nothing about it itself
            signal.pidfd_send_signal(engine.pidfd if victim == "engine" else fork_server, signal.SIGKILL)
            assert ends_within(fork_server, SOON)
            assert ends_within(worker, SOON)
        finally:
            for pidfd in (fork_server, worker):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
            engine.close()


# ---- a fork server that belongs to somebody else


@contextlib.contextmanager
def fork_server_of(module: str) -> Iterator[ForkServer]:
    fork_server = ForkServer(module)
    try:
        yield fork_server
    finally:
        fork_server.close()
        fork_server.close()


async def test_engines_share_a_fork_server_and_each_ones_workers_end_with_it() -> None:
    with fork_server_of(MODULE) as fork_server:
        sources = [WorkerSource(MODULE, (), fork_server.connect().detach(), fork_server.pid) for _ in range(2)]
        async with started(sources[0]) as (endpoint, child), started(sources[1]) as (other, _):
            os.kill(child.pid, signal.SIGSTOP)
            sources[0].close()
            assert ends_within(child.pidfd, SOON)
            assert await child.wait() == -signal.SIGKILL
            facts = await facts_of(other)
            assert (facts["preloaded in"], facts["parent"]) == (fork_server.pid, fork_server.pid)
            assert [source.own_fork_server for source in sources] == [None, None]
        sources[1].close()
        third = WorkerSource(MODULE, (), fork_server.connect().detach(), fork_server.pid)
        async with started(third) as (endpoint, _):
            assert (await facts_of(endpoint))["preloaded in"] == fork_server.pid
        third.close()


async def test_a_fork_server_that_hangs_before_an_engine_has_a_worker_of_it_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fork_server_of(MODULE) as fork_server:
        sources = [WorkerSource(MODULE, (), fork_server.connect().detach(), fork_server.pid)]
        async with started(sources[0]):
            pass
        first = fork_server.pid
        os.kill(first, signal.SIGSTOP)
        monkeypatch.setattr(fork_server_owner, "_FIRST_SECONDS", 0.1)
        sources.append(WorkerSource(UNPREPARED, (), fork_server.connect().detach(), first))
        async with started(sources[1]) as (endpoint, _):
            assert (await facts_of(endpoint))["parent"] == os.getpid()
        monkeypatch.undo()
        sources.append(WorkerSource(MODULE, (), fork_server.connect().detach(), fork_server.pid))
        async with started(sources[2]) as (endpoint, _):
            assert (await facts_of(endpoint))["preloaded in"] == fork_server.pid != first
        for source in sources:
            source.close()


def test_a_fork_server_waits_for_a_worker_that_cannot_be_killed_for_a_while_and_reaps_it_when_it_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fork_server, "DYING_SECONDS", 0.0)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    owner, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    engine, engines_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = subprocess.Popen(["sleep", "60"])
    pidfd, (reported, note) = os.pidfd_open(worker.pid), os.pipe()
    serving = fork_server._ForkServer(ours)
    serving._engines[engine.fileno()] = engine
    serving._workers[pidfd] = fork_server._Worker(worker.pid, pidfd, note, engine.fileno())
    for fd in (pidfd, engine.fileno()):
        serving._poll.register(fd, select.POLLIN)
    serving._forget(engine.fileno())
    assert list(serving._workers) == [pidfd]
    assert not serving._engines
    worker.kill()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    owner.close()
    assert serving.serve() is None
    assert not serving._workers
    assert process.STATUS.unpack(os.read(reported, process.STATUS.size)) == (-signal.SIGKILL,)
    worker.returncode = -signal.SIGKILL
    os.close(reported)
    ours.close()
    engines_end.close()


def test_while_a_worker_dies_the_next_engine_waits_and_those_that_live_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pair() -> tuple[socket.socket, socket.socket]:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    monkeypatch.setattr(fork_server, "DYING_SECONDS", 3600.0)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    (owner, owners_end), (lost, losts_end), (living, livings_end), (following, theirs) = (pair() for _ in range(4))
    worker = subprocess.Popen(["sleep", "60"])
    pidfd, note = os.pidfd_open(worker.pid), os.open("/dev/null", os.O_WRONLY)
    serving = fork_server._ForkServer(owners_end)
    serving._engines = {each.fileno(): each for each in (losts_end, livings_end)}
    serving._workers[pidfd] = fork_server._Worker(worker.pid, pidfd, note, losts_end.fileno())
    for fd in (pidfd, *serving._engines):
        serving._poll.register(fd, select.POLLIN)
    answered: queue.Queue[bytes] = queue.Queue()
    monkeypatch.setattr(serving, "_answer", lambda engine: answered.put(serving._engines[engine].recv(9)))
    thread = threading.Thread(target=serving.serve)
    thread.start()
    try:
        lost.close()
        following.send(b"following")
        socket.send_fds(owner, [b"engine"], [theirs.fileno()])
        for _ in range(3):
            living.send(b"living")
            assert answered.get(timeout=SOON) == b"living"
        assert list(serving._engines) == [livings_end.fileno()]
        worker.kill()
        assert answered.get(timeout=SOON) == b"following"
        assert not serving._workers
    finally:
        worker.kill()
        owner.close()
        thread.join(SOON)
        worker.returncode = -signal.SIGKILL
    assert not thread.is_alive()
    for end in (owners_end, living, livings_end, following, theirs, *serving._engines.values()):
        end.close()


def test_a_fork_server_does_not_wait_for_a_status_that_a_debugger_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = subprocess.Popen(["sleep", "60"])
    pidfd, (reported, note) = os.pidfd_open(worker.pid), os.pipe()
    child = process.AdoptedChild(worker.pid, os.dup(pidfd), reported, "worker")
    serving = fork_server._ForkServer(ours)
    serving._workers[pidfd] = fork_server._Worker(worker.pid, pidfd, note, fork_server._NOBODY)
    serving._poll.register(pidfd, select.POLLIN)
    worker.kill()
    asked: list[int] = []

    def held(pid: int, options: int) -> tuple[int, int]:
        asked.append(options)
        return 0, 0

    with monkeypatch.context() as debugged:
        debugged.setattr(os, "waitpid", held)
        owner.close()
        assert process.is_readable(pidfd, SOON)
        assert serving.serve() is None
    assert asked == [os.WNOHANG]
    assert child.wait_blocking(SOON) == -signal.SIGKILL
    child.close()
    worker.wait()
    ours.close()


async def test_a_fork_server_that_died_is_started_again_for_the_next_engine() -> None:
    with fork_server_of(MODULE) as fork_server:
        first = fork_server.pid
        source = WorkerSource(MODULE, (), fork_server.connect().detach(), fork_server.pid)
        async with started(source):
            os.kill(first, signal.SIGKILL)
        async with started(source) as (endpoint, _):
            assert (await facts_of(endpoint))["parent"] == source.own_fork_server, "until then an engine has its own"
        source.close()
        source = WorkerSource(MODULE, (), fork_server.connect().detach(), fork_server.pid)
        async with started(source) as (endpoint, _):
            assert (await facts_of(endpoint))["parent"] == fork_server.pid != first
        source.close()


async def test_a_dead_worker_whose_fork_server_cannot_tell_counts_as_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_TOLD_SECONDS", 0.05)
    with source_of(MODULE) as source:
        async with started(source) as (_, child):
            fork_server = source.own_fork_server
            assert fork_server is not None
            os.kill(fork_server, signal.SIGSTOP)
            assert child.wait_blocking(0.05) is None
            child.terminate()
            assert await child.wait() == -signal.SIGKILL
            os.kill(fork_server, signal.SIGCONT)
