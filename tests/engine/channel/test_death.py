"""The other side dies: noticed at once, and never before what it had sent was received."""

import threading

import anyio
import pytest

from stentor.engine.channel import Endpoint, PeerClosed, PeerDied, bells
from stentor.engine.channel import endpoint as endpoint_module
from stentor.engine.processes.process import Child
from stentor.tests.engine.channel.harness import count_wakes, other_side


@pytest.mark.anyio
async def test_a_waiting_receiver_is_woken_by_a_kill_and_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = count_wakes(monkeypatch)
    with other_side("echo_blocking") as (endpoint, child):
        await endpoint.send(b"up?")
        assert await endpoint.receive() == [b"up?"]
        wakes.clear()
        with anyio.fail_after(60):  # nobody else would ever wake it
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_expect_death, endpoint)
                await anyio.wait_all_tasks_blocked()
                assert wakes == []
                child.kill()
        assert wakes == ["_on_exit"]
        with pytest.raises(PeerDied, match=str(child.pid)):
            await endpoint.receive()
        with pytest.raises(PeerDied):
            await endpoint.send(b"anyone?")
        with pytest.raises(PeerDied):
            endpoint.try_send(b"anyone?")


async def _expect_death(endpoint: Endpoint) -> None:
    with pytest.raises(PeerDied):
        await endpoint.receive()


def test_a_blocked_receiver_is_woken_by_a_kill_and_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float | None] = []

    def sleep_on(bell: int | None, pidfd: int, timeout: float | None) -> tuple[bool, bool]:
        slept.append(timeout)
        return bells.sleep_on(bell, pidfd, timeout)

    with other_side("echo_blocking") as (endpoint, child):
        endpoint.send_blocking(b"up?")
        assert endpoint.receive_blocking() == [b"up?"]
        monkeypatch.setattr(endpoint_module, "sleep_on", sleep_on)
        _kill_soon(child)
        with pytest.raises(PeerDied):
            endpoint.receive_blocking()
        assert slept == [None], "once, and until something happens"
        with pytest.raises(PeerDied):
            endpoint.send_blocking(b"anyone?")
        with pytest.raises(PeerDied):
            endpoint.try_receive()


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
            with anyio.fail_after(60):
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
        with anyio.fail_after(60), pytest.raises(PeerDied):
            await endpoint.receive()


def test_frames_published_before_a_kill_are_delivered_before_the_error_when_blocking() -> None:
    with other_side("three_then_sigkill") as (endpoint, child):
        assert child.wait_blocking(60) == -9
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
        with anyio.fail_after(60):
            assert await endpoint.receive() == [b"last words"]
            with pytest.raises(PeerClosed):
                await endpoint.receive()
        assert child.returncode is None


def _kill_soon(child: Child) -> None:
    """From another thread, in a moment."""
    threading.Timer(0.1, child.kill).start()
