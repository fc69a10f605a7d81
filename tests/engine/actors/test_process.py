"""Child processes: what they are given, how they end, and that none outlives its owner."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque

import anyio
import pytest

import stentor
import stentor.engine
from stentor.engine.channel import ChannelPair, PeerDied
from stentor.engine.processes import process as process_module
from stentor.engine.processes.process import REAPED_AT_ONCE, AdoptedChild, Child, describe_exit, spawn
from stentor.tests.engine.channel.child_programs import MODULE
from stentor.tests.engine.channel.harness import ends_within, other_side
from stentor.tests.engine.unkillable import Unkillable, unkillable
from stentor.tests.support.descriptors import open_descriptors

SOON = 60.0


def test_a_child_is_tied_named_and_given_only_what_was_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stentor.__path__[0])  # where the folder kernels would shadow another package's name
    pair = ChannelPair.create()
    kept_back = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(kept_back, True)
    with pair.parent as endpoint:
        child = spawn(MODULE, pair.child_fds, arguments=["describe", "--more"], env_extra={"CHANNEL_TEST_EXTRA": "7"})
        endpoint.watch(child.pid, child.pidfd)
        [text] = endpoint.receive_blocking(SOON)
        facts = dict(line.split("=", 1) for line in text.decode().splitlines())
        descriptors = os.listdir(f"/proc/{child.pid}/fd")
        child.close()
    os.close(kept_back)
    assert facts == {
        "comm": "stentor-test",
        "own session": "True",
        "stdin": "/dev/null",
        "extra": "7",
        "arguments": "describe --more",
        "inheritable": "[]",
        "parent": str(os.getpid()),
        "package": stentor.engine.__path__[0],
        "sees the folder kernels": "False",
        "torch": "False",
    }
    assert str(kept_back) not in descriptors


@pytest.mark.anyio
async def test_ends_are_told_in_words() -> None:
    with other_side("exit_with_seven") as (_, child):
        assert await child.wait() == 7
        assert child.description == "exited with 7"
    with other_side("echo_blocking") as (endpoint, child):
        await endpoint.send(b"up?")
        await endpoint.receive()
        assert child.description == "running"
        child.terminate()
        assert await child.wait() == -signal.SIGTERM
        assert child.description == "killed by SIGTERM"
        child.kill()  # too late, and harmless
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-200) == "killed by signal 200"


@pytest.mark.anyio
async def test_several_tasks_may_wait_for_one_child() -> None:
    with other_side("echo_blocking") as (_, child):
        ends: list[int] = []

        async def wait() -> None:
            ends.append(await child.wait())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            child.kill()
        assert ends == [-9, -9]


@pytest.mark.anyio
async def test_a_child_that_ignores_the_request_to_end_is_killed_after_the_grace() -> None:
    with other_side("ignore_sigterm") as (endpoint, child):
        assert await endpoint.receive() == [b"here"]
        began = time.monotonic()
        assert await child.stop(0.1) == -signal.SIGKILL
        assert time.monotonic() - began >= 0.1


@pytest.mark.anyio
async def test_stopping_waits_no_longer_than_the_child_needs() -> None:
    with other_side("read_nothing") as (endpoint, child):
        assert await endpoint.receive() == [b"here"]
        with anyio.fail_after(SOON):
            assert await child.stop(3600) == -signal.SIGTERM


@pytest.mark.anyio
async def test_a_cancelled_stop_leaves_no_child() -> None:
    with other_side("ignore_sigterm") as (endpoint, child):
        assert await endpoint.receive() == [b"here"]
        with anyio.move_on_after(0.05) as scope:
            await child.stop(3600)
        assert scope.cancelled_caught
        assert child.returncode == -signal.SIGKILL


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["aclose", "close", "stop", "kill_and_wait"])
async def test_a_child_that_does_not_die_is_given_up_and_said_to_be(how: str, caplog: pytest.LogCaptureFixture) -> None:
    with unkillable(Unkillable) as child:
        with anyio.fail_after(SOON):
            match how:
                case "aclose":
                    assert not await child.aclose()
                case "close":
                    assert not child.close()
                case "stop":
                    assert await child.stop(0.0) is None
                case _:
                    assert not await child.kill_and_wait()
            assert not await child.aclose(3600.0), "it is not waited for again"
        assert child.given_up
        assert (child.returncode, child.description) == (None, "killed, and does not die")
        assert caplog.messages == [f"the worker (pid {child.pid}) was killed and does not die; it is left behind"]


@pytest.mark.anyio
async def test_a_child_is_waited_for_from_its_first_kill_on() -> None:
    with unkillable(Unkillable) as child:
        child.dying_seconds = 3600.0
        child.kill()
        assert child._killed_at is not None
        child._killed_at -= 3600.0
        with anyio.fail_after(SOON):
            assert not await child.aclose(3600.0)


def test_a_child_that_was_left_behind_is_reaped_once_it_has_died() -> None:
    with unkillable(Unkillable) as child:
        child.close()
        child.let_die()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with other_side("read_nothing"):
            assert all(left.pid != child.pid for left in process_module._left_behind)
        with pytest.raises(ChildProcessError):
            os.waitpid(child.pid, os.WNOHANG)


def test_of_many_that_were_left_behind_a_spawn_looks_at_some_and_the_next_at_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    class Undying:
        def __init__(self, number: int) -> None:
            self.number = number

        def poll(self) -> None:
            looked.append(self.number)

    monkeypatch.setattr(process_module, "_left_behind", deque(map(Undying, range(1000))))
    for _ in range(2):
        with other_side("read_nothing"):
            pass
    assert looked == [*range(2 * REAPED_AT_ONCE)]
    assert len(process_module._left_behind) == 1000


def test_a_process_that_cannot_be_watched_is_killed_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(pid: int) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(process_module, "_left_behind", deque())
    with monkeypatch.context() as short:
        short.setattr(os, "pidfd_open", no_descriptor)
        short.setattr(subprocess.Popen, "wait", None)
        with pytest.raises(OSError, match="too many"):
            spawn(MODULE, ())
    [left] = process_module._left_behind
    os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
    with other_side("read_nothing"):
        assert left.returncode == -signal.SIGKILL


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["wait", "aclose", "close", "wait_blocking"])
async def test_a_dead_child_whose_status_a_debugger_holds_counts_as_killed_and_is_reaped_later(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(["sleep", "60"])
    child = Child(process, "worker")
    asked: list[int] = []

    def held(kind: int, pid: int, options: int) -> None:
        asked.append(options)

    with monkeypatch.context() as debugged:
        debugged.setattr(os, "waitid", held)
        child.kill()
        match how:
            case "wait":
                assert await child.wait() == -signal.SIGKILL
            case "aclose":
                assert await child.aclose()
            case "close":
                assert child.close()
            case _:
                assert child.wait_blocking(SOON) == -signal.SIGKILL
        assert child.close()
        assert child.description == "killed by SIGKILL"
    assert all(options & os.WNOHANG for options in asked)
    with other_side("read_nothing"):
        assert process.returncode == -signal.SIGKILL


@pytest.mark.anyio
async def test_a_parent_that_does_not_tell_how_a_child_ended_holds_no_loop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent is a fork server that was stopped."""
    process = subprocess.Popen(["sleep", "60"])
    read_end, note = os.pipe()
    child = AdoptedChild(process.pid, os.pidfd_open(process.pid), read_end, "worker")
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    waits: list[float] = []
    is_readable = process_module.is_readable

    def noted(fd: int, seconds: float) -> bool:
        waits.append(seconds)
        return is_readable(fd, 0)

    monkeypatch.setattr(process_module, "is_readable", noted)
    assert child.returncode is None, "its parent may still say"
    child._patience = 0.01
    assert await child.wait() == -signal.SIGKILL
    assert await child.aclose()
    assert not [seconds for seconds in waits if seconds], "none of these blocks"
    os.close(note)
    process.wait()


def test_a_wait_with_a_timeout_gives_up() -> None:
    with other_side("read_nothing") as (_, child):
        assert child.wait_blocking(0.01) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_whole_tree_dies_with_its_root_and_leaves_nothing(number: signal.Signals) -> None:
    """Server, engine and worker: when the first is killed the others fall, and no name stays."""
    shm = _listing("/dev/shm")
    with other_side("own_a_tree") as (endpoint, root):
        [pids] = endpoint.receive_blocking(SOON)
        watched = [os.pidfd_open(int(pid)) for pid in pids.split()]
        try:
            assert len(watched) == 2
            assert not any(ends_within(pidfd, 0) for pidfd in watched)
            os.kill(root.pid, number)
            assert all(ends_within(pidfd, SOON) for pidfd in watched)
        finally:
            for pidfd in watched:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
        with pytest.raises(PeerDied):
            endpoint.receive_blocking()
    assert _listing("/dev/shm") == shm


def test_a_child_stopped_by_a_debugger_still_dies_with_its_owner() -> None:
    with other_side("own_a_worker") as (endpoint, owner):
        [pid] = endpoint.receive_blocking(SOON)
        worker = os.pidfd_open(int(pid))
        try:
            signal.pidfd_send_signal(worker, signal.SIGSTOP)
            owner.kill()
            assert ends_within(worker, SOON)
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)


def test_a_child_whose_parent_is_gone_before_it_is_tied_ends_at_once() -> None:
    """The parent died between fork and prctl: the child sees a parent that is not the one it was told of."""
    command = [sys.executable, "-P", "-m", MODULE, "--parent-pid", "1", "--channel-fds", "", "echo_blocking"]
    result = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (1, b"", b"")


def test_children_started_and_ended_leave_no_descriptor() -> None:
    before = open_descriptors()
    for _ in range(3):
        with other_side("exit_with_seven") as (_, child):
            child.wait_blocking(SOON)
        child.close()
    assert not open_descriptors() - before


def _listing(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
