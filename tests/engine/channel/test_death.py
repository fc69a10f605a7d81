"""The other side dies: noticed at once, and never before what it had sent was received."""

import threading
import time
from collections.abc import Iterator

import anyio
import pytest

from stentor.engine.channel import Endpoint, PeerClosed, PeerDied
from stentor.engine.processes.process import Child
from stentor.tests.engine.channel.harness import count_wakes, other_side

AT_ONCE = 0.1
"""Seconds; a busy machine gets a few tries, because load only ever adds to the time."""

TRIES = 4


@pytest.mark.anyio
async def test_a_waiting_receiver_learns_of_a_kill_at_once() -> None:
    fastest = 9.0
    for _ in range(TRIES):
        with other_side("echo_blocking") as (endpoint, child):
            await endpoint.send(b"up?")
            assert await endpoint.receive() == [b"up?"]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_expect_death, endpoint)
                await anyio.wait_all_tasks_blocked()
                began = time.monotonic()
                child.kill()
            fastest = min(fastest, time.monotonic() - began)
            with pytest.raises(PeerDied, match=str(child.pid)):
                await endpoint.receive()
            with pytest.raises(PeerDied):
                await endpoint.send(b"anyone?")
            with pytest.raises(PeerDied):
                endpoint.try_send(b"anyone?")
        if fastest < AT_ONCE:
            break
    assert fastest < AT_ONCE


async def _expect_death(endpoint: Endpoint) -> None:
    with pytest.raises(PeerDied):
        await endpoint.receive()


def test_a_blocked_receiver_learns_of_a_kill_at_once() -> None:
    fastest = 9.0
    for _ in range(TRIES):
        with other_side("echo_blocking") as (endpoint, child):
            endpoint.send_blocking(b"up?")
            assert endpoint.receive_blocking() == [b"up?"]
            killed_at = _kill_soon(child)
            with pytest.raises(PeerDied):
                endpoint.receive_blocking()
            fastest = min(fastest, time.monotonic() - next(killed_at))
            with pytest.raises(PeerDied):
                endpoint.send_blocking(b"anyone?")
            with pytest.raises(PeerDied):
                endpoint.try_receive()
        if fastest < AT_ONCE:
            break
    assert fastest < AT_ONCE


@pytest.mark.anyio
async def test_a_sender_that_waits_on_a_full_ring_learns_of_a_kill_at_once() -> None:
    with other_side("read_nothing", capacity=1 << 12) as (endpoint, child):
        assert await endpoint.receive() == [b"here"]
        while endpoint.try_send(b"x" * 100):
            pass

        async def send() -> None:
            with pytest.raises(PeerDied):
                await endpoint.send(b"x" * 100)

        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(5):
                tasks.start_soon(send)
                tasks.start_soon(send)
                await anyio.wait_all_tasks_blocked()
                child.kill()


def test_a_blocked_sender_on_a_full_ring_learns_of_a_kill() -> None:
    with other_side("read_nothing", capacity=1 << 12) as (endpoint, child):
        assert endpoint.receive_blocking() == [b"here"]
        _kill_soon(child)
        with pytest.raises(PeerDied):
            endpoint.send_blocking(b"x" * 100_000)


@pytest.mark.anyio
async def test_frames_published_before_a_kill_are_delivered_before_the_error() -> None:
    with other_side("three_then_sigkill") as (endpoint, child):
        assert await child.wait() == -9
        assert await endpoint.receive() == [b"0", b"1", b"2"]
        with anyio.fail_after(5), pytest.raises(PeerDied):
            await endpoint.receive()


def test_frames_published_before_a_kill_are_delivered_before_the_error_when_blocking() -> None:
    with other_side("three_then_sigkill") as (endpoint, child):
        assert child.wait_blocking(20) == -9
        assert endpoint.try_receive() == [b"0", b"1", b"2"]
        with pytest.raises(PeerDied):
            endpoint.try_receive()
        with pytest.raises(PeerDied):
            endpoint.receive_blocking(1)


@pytest.mark.anyio
async def test_a_dead_peer_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = count_wakes(monkeypatch)
    with other_side("three_then_sigkill") as (endpoint, child):
        await child.wait()
        assert len(await endpoint.receive()) == 3
        with pytest.raises(PeerDied):
            await endpoint.receive()
        await anyio.sleep(0.05)
        assert wakes.count("_on_exit") == 1
        assert wakes.count("_on_ring") <= 3


@pytest.mark.anyio
async def test_a_peer_that_closes_but_lives_is_told_apart() -> None:
    with other_side("last_words_then_close") as (endpoint, child):
        with anyio.fail_after(20):
            assert await endpoint.receive() == [b"last words"]
            with pytest.raises(PeerClosed):
                await endpoint.receive()
        assert child.returncode is None


def _kill_soon(child: Child) -> Iterator[float]:
    """Kill ``child`` from another thread in a moment; yields when that was."""
    when: list[float] = []

    def kill() -> None:
        time.sleep(0.1)
        when.append(time.monotonic())
        child.kill()

    thread = threading.Thread(target=kill)
    thread.start()

    def told() -> Iterator[float]:
        thread.join()
        yield when[0]

    return told()
