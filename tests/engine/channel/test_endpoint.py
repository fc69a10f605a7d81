"""Endpoints between two real processes, and the waiting rules within one."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import anyio
import pytest

from stentor.engine.channel import (
    ChannelClosed,
    ChannelError,
    ChannelPair,
    CorruptChannel,
    Endpoint,
    FrameTooLarge,
    PeerClosed,
)
from stentor.engine.channel.atomics import Atomics, LibraryAtomics, machine_atomics
from stentor.engine.channel.region import require_linux
from stentor.tests.engine.channel.harness import both_ends, count_wakes, other_side
from stentor.tests.support.descriptors import open_descriptors

ROUNDS = 3000


def frame_of(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number * 37 % 700)


def test_three_thousand_messages_go_there_and_back_blocking() -> None:
    with other_side("echo_blocking", capacity=1 << 12) as (endpoint, _):
        for number in range(ROUNDS):
            endpoint.send_blocking(frame_of(number))
            assert endpoint.receive_blocking() == [frame_of(number)]


@pytest.mark.anyio
async def test_three_thousand_messages_go_there_and_back_in_a_loop(
    anyio_backend: tuple[str, dict[str, bool]],
) -> None:
    program = "echo_uvloop" if anyio_backend[1]["use_uvloop"] else "echo_asyncio"
    with other_side(program, capacity=1 << 12) as (endpoint, _):
        for number in range(ROUNDS):
            await endpoint.send(frame_of(number))
            assert await endpoint.receive() == [frame_of(number)]


@pytest.mark.anyio
async def test_a_stream_through_a_tiny_ring_waits_for_room_and_loses_nothing() -> None:
    """Sender and receiver both outrun a ring of 256 bytes, and sleep and wake all the time."""
    with other_side("echo_blocking", capacity=256) as (endpoint, _):
        received: list[bytes] = []

        async def send_all() -> None:
            for number in range(3000):
                await endpoint.send(frame_of(number))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_all)
            while len(received) < 3000:
                received += await endpoint.receive()
        assert received == [frame_of(number) for number in range(3000)]


@pytest.mark.anyio
async def test_a_frame_much_larger_than_the_ring_goes_there_and_back() -> None:
    large = os.urandom(3_000_001)
    with other_side("echo_blocking", capacity=1 << 16) as (endpoint, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(endpoint.send, large)
            assert await endpoint.receive() == [large]
        with pytest.raises(FrameTooLarge):
            await endpoint.send(bytes((64 << 20) + 1))
        await endpoint.send(b"still fine")
        assert await endpoint.receive() == [b"still fine"]


@pytest.mark.anyio
async def test_a_full_ring_exerts_back_pressure_until_the_reader_reads() -> None:
    with both_ends(capacity=64) as (left, right):
        assert left.try_send(b"x" * 24)
        assert left.try_send(b"y" * 24)
        assert not left.try_send(b"")
        with anyio.move_on_after(0.05) as waited:
            await left.send(b"z")
        assert waited.cancelled_caught
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.send, b"late")
            await anyio.wait_all_tasks_blocked()
            assert await right.receive() == [b"x" * 24, b"y" * 24]
            assert await right.receive() == [b"late"]


@pytest.mark.anyio
async def test_concurrent_senders_take_turns_and_keep_their_own_order() -> None:
    with both_ends(capacity=256) as (left, right):

        async def send_some(name: int) -> None:
            for number in range(50):
                await left.send(b"%d %d " % (name, number) + b"x" * (900 if number % 7 == 0 else 20))

        received: list[tuple[int, int]] = []
        async with anyio.create_task_group() as tasks:
            for name in range(4):
                tasks.start_soon(send_some, name)
            while len(received) < 200:
                for frame in await right.receive():
                    sender, number, _ = frame.split(b" ")
                    received.append((int(sender), int(number)))
        for name in range(4):
            assert [number for sender, number in received if sender == name] == list(range(50))


@pytest.mark.anyio
async def test_a_cancelled_send_of_a_large_frame_leaves_the_channel_usable() -> None:
    with both_ends(capacity=256) as (left, right):
        with anyio.move_on_after(0.05) as scope:
            await left.send(b"x" * 10_000)
        assert scope.cancelled_caught
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.send, b"next")
            assert await right.receive() == [b"next"]


@pytest.mark.anyio
async def test_a_cancelled_receive_loses_nothing() -> None:
    """The receiver is cancelled again and again, while it waits and while it lets others run."""
    received: list[bytes] = []

    async def receive_all() -> None:
        while True:
            received.extend(await right.receive())

    with both_ends() as (left, right):
        for number in range(300):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive_all)
                for _ in range(number % 4):
                    await anyio.sleep(0)
                await left.send(b"%d" % number)
                for _ in range(number % 3):
                    await anyio.sleep(0)
                tasks.cancel_scope.cancel()
        received += right.try_receive()
    assert received == [b"%d" % number for number in range(300)]


@pytest.mark.anyio
async def test_a_receiver_that_never_has_to_wait_lets_other_tasks_run() -> None:
    with both_ends() as (left, right):
        ran = 0

        async def count() -> None:
            nonlocal ran
            while True:
                ran += 1
                await anyio.sleep(0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            for _ in range(100):
                assert left.try_send(b"x")
                await right.receive()
            tasks.cancel_scope.cancel()
        assert ran >= 40


@pytest.mark.anyio
async def test_two_tasks_may_not_receive_at_once() -> None:
    with both_ends() as (_, right):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_receive_until_closed, right)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ChannelError, match="another task"):
                await right.receive()
            right.close()


async def _receive_until_closed(endpoint: Endpoint) -> None:
    with pytest.raises(ChannelClosed):
        await endpoint.receive()


@pytest.mark.anyio
async def test_closing_wakes_our_own_waiters_and_tells_the_peer() -> None:
    with both_ends(capacity=64) as (left, right):
        assert left.try_send(b"x" * 24)
        assert left.try_send(b"y" * 24)

        async def send_until_closed() -> None:
            with pytest.raises(ChannelClosed):
                await left.send(b"z")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_receive_until_closed, left)
            tasks.start_soon(send_until_closed)
            tasks.start_soon(send_until_closed)
            await anyio.wait_all_tasks_blocked()
            left.close()
            left.close()
        assert await right.receive() == [b"x" * 24, b"y" * 24]
        with pytest.raises(PeerClosed, match="closed the channel"):
            await right.receive()
        with pytest.raises(PeerClosed):
            await right.send(b"anyone?")
        with pytest.raises(ChannelClosed):
            left.try_send(b"z")
        with pytest.raises(ChannelClosed):
            left.try_receive()
        with pytest.raises(ChannelClosed):
            left.receive_blocking(0)


def test_a_blocking_receive_returns_empty_after_its_timeout() -> None:
    with both_ends() as (left, right):
        began = time.monotonic()
        assert right.receive_blocking(0.05) == []
        assert time.monotonic() - began >= 0.05
        assert right.receive_blocking(0) == []
        assert right.try_receive() == []
        assert left.try_send(b"now")
        assert right.receive_blocking(0) == [b"now"]


def test_waiting_for_a_peer_that_nobody_named_is_refused() -> None:
    with ChannelPair.create().parent as endpoint, pytest.raises(ChannelError, match=r"watch\(\)"):
        endpoint.receive_blocking(1)


@pytest.mark.anyio
async def test_a_stopped_peer_is_waited_for_and_goes_on_where_it_was() -> None:
    with other_side("echo_blocking", capacity=1 << 12) as (endpoint, child):
        await endpoint.send(b"up?")
        assert await endpoint.receive() == [b"up?"]
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        sent = 0
        while endpoint.try_send(b"%d" % sent):
            sent += 1
        with anyio.move_on_after(0.1) as scope:
            await endpoint.receive()
        assert scope.cancelled_caught
        os.kill(child.pid, signal.SIGCONT)
        received: list[bytes] = []
        while len(received) < sent:
            received += await endpoint.receive()
        assert received == [b"%d" % number for number in range(sent)]


@pytest.mark.anyio
async def test_a_task_that_waits_is_woken_once_a_frame_and_not_between(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = count_wakes(monkeypatch)
    with both_ends() as (left, right):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(right.receive)
            await anyio.wait_all_tasks_blocked()
            await anyio.sleep(0.05)
            assert wakes == []
            assert left.try_send(b"x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(right.receive)
            await anyio.wait_all_tasks_blocked()
            await anyio.sleep(0.05)
            assert wakes == ["_on_ring"]
            tasks.cancel_scope.cancel()


def test_a_process_that_waits_sleeps_once() -> None:
    with other_side("count_sleeps") as (endpoint, _):
        assert endpoint.receive_blocking() == [b"waiting"]
        time.sleep(0.05)
        endpoint.send_blocking(b"enough")
        assert endpoint.receive_blocking() == [b"1"]


def test_threads_that_close_nothing_see_every_frame_of_a_blocking_pair() -> None:
    """The blocking face within one process: one thread a side, over a ring that is always full."""
    with both_ends(capacity=128) as (left, right):
        received: list[bytes] = []

        def drain() -> None:
            while len(received) < 2000:
                received.extend(right.receive_blocking(10))

        thread = threading.Thread(target=drain)
        thread.start()
        for number in range(2000):
            left.send_blocking(b"%d" % number)
        thread.join(60)
        assert received == [b"%d" % number for number in range(2000)]


def test_every_descriptor_is_kept_from_other_programs_and_given_back() -> None:
    before = open_descriptors()
    pair = ChannelPair.create()
    assert not any(os.get_inheritable(fd) for fd in pair.child_fds)
    passed = [os.dup(fd) for fd in pair.child_fds]
    for fd in passed:
        os.set_inheritable(fd, True)
    child = Endpoint.attach(passed, os.getpid())
    assert not any(os.get_inheritable(fd) for fd in passed)
    child.close()
    pair.parent.close()
    assert not open_descriptors() - before


@pytest.mark.anyio
async def test_a_loop_keeps_no_descriptor_of_a_closed_endpoint() -> None:
    await anyio.sleep(0)
    before = open_descriptors()
    for _ in range(5):
        with both_ends() as (left, right):
            await left.send(b"x")
            assert await right.receive() == [b"x"]
            with anyio.move_on_after(0.001):
                await right.receive()
        await anyio.sleep(0)  # uvloop closes its polls a turn later
    assert not open_descriptors() - before


def test_nothing_has_a_name_and_the_memory_cannot_be_shrunk() -> None:
    listed = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    with both_ends() as (left, right):
        memfd = left._fds[0]
        assert "memfd:" in os.readlink(f"/proc/self/fd/{memfd}")
        with pytest.raises(PermissionError):
            os.ftruncate(memfd, 0)
        with pytest.raises(PermissionError):
            os.ftruncate(memfd, 1 << 30)
        assert left.try_send(b"x")
        assert right.try_receive() == [b"x"]
        assert (os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []) == listed


@pytest.mark.parametrize("size", [0, 100, 4096, 4096 + 2 * 1000, 4096 + 2 * 1024])
def test_memory_that_is_no_channel_is_refused(size: int) -> None:
    memfd = os.memfd_create("something else")
    os.ftruncate(memfd, size)
    bells = [os.eventfd(0) for _ in range(4)]
    with pytest.raises(CorruptChannel, match="no channel memory"):
        Endpoint.attach([memfd, *bells], os.getpid())
    for fd in (memfd, *bells):
        os.close(fd)


@pytest.mark.parametrize("capacity", [0, 32, 1000, -4096, 1 << 31])
def test_a_capacity_that_no_ring_can_have_is_refused(capacity: int) -> None:
    with pytest.raises(ChannelError, match="power of two"):
        ChannelPair.create(capacity)


def test_other_systems_are_told_in_one_line() -> None:
    with pytest.raises(ChannelError, match=r"Linux only.*'darwin'$"):
        require_linux("darwin")
    require_linux(sys.platform)


@pytest.mark.parametrize("made", [machine_atomics, LibraryAtomics])
def test_injected_atomics_carry_every_position(made: Callable[[], Atomics]) -> None:
    stored: list[tuple[int, int]] = []

    class Noting:
        inner: Atomics = made()
        load = inner.load

        def store(self, words: memoryview, index: int, value: int, /) -> None:
            stored.append((index, value))
            self.inner.store(words, index, value)

    pair = ChannelPair.create(atomics=Noting())
    with pair.parent as endpoint, contextlib.suppress(ChannelError):
        assert endpoint.try_send(b"x")
        assert stored == [(64 // 8, 16)]
