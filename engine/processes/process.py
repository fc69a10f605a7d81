"""Child processes: started so that nothing outlives its owner, watched through a pidfd.

::

    child = spawn("stentor.engine.worker", pair.child_fds)     # in the owner
    inherited = become_child("stentor-worker")                 # first thing in the child's main()

The kernel kills a child when its owner dies, whatever killed the owner: ``become_child`` asks for
SIGKILL as the parent-death signal, so server → engine → worker fall one after the other. The signal
is sent when the *thread* that spawned the child ends: spawn from the main thread, or from one that
lives as long as the child shall. Until ``become_child`` has run a child is on its own: call it
before anything slow, above all before importing torch.

A child runs in a session of its own, so that Ctrl-C in the terminal reaches the server alone, which
then ends the others in order. It inherits stdout, stderr and the environment (it must find the same
``stentor``), and no descriptor but those passed.

A process that the kernel holds in a call (a driver, a file system that is gone) does not die when it is killed. Nobody
waits for that without a bound: after :data:`DYING_SECONDS` it is given up, and left behind. One that has died is asked
for its status and not waited for: a debugger may hold the status for as long as it likes.
"""

import argparse
import contextlib
import ctypes
import logging
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from ..channel.region import require_linux

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
STATUS: Final = struct.Struct("q")
"""How a process ended, as its parent tells it to whoever watches it."""

DYING_SECONDS: Final = 30.0
"""From a kill to the end: a process that holds tens of gigabytes, or memory of a device, takes some of them."""
_TOLD_SECONDS: Final = 1.0
"""For which the end of a dead process is awaited from its parent, which may have been stopped."""
REAPED_AT_ONCE: Final = 64
"""Processes that one call reaps, or looks at, at most."""
_left_behind: Final[deque[subprocess.Popen[bytes]]] = deque()
"""Children that are not waited for any more; those that can be reaped by then are, with the spawns that follow."""


class Inherited(NamedTuple):
    """What a child was given by its owner."""

    fds: tuple[int, ...]
    parent_pid: int
    arguments: tuple[str, ...]


class Child:
    """A child process. Its owner must :meth:`aclose` it, or :meth:`close` it where no event loop waits meanwhile."""

    dying_seconds = DYING_SECONDS
    """After which it is given up."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._popen: subprocess.Popen[bytes] | None = process
        self._begin(process.pid, os.pidfd_open(process.pid), name)

    def _begin(self, pid: int, pidfd: int, name: str) -> None:
        self.name = name
        self.pid = pid
        self.pidfd = pidfd
        """Readable once the process is dead; valid until :meth:`close`."""
        self.given_up = False
        """Whether the process does not die."""
        self._status: int | None = None
        self._killed_at: float | None = None
        self._closed = False

    @property
    def returncode(self) -> int | None:
        """None while it runs, the exit status, or minus the signal that killed it; None for one that was given up."""
        return None if self.given_up else self._reap()

    @property
    def description(self) -> str:
        """How it ended, for people: "killed by SIGKILL", "exited with 1"; "running" before that."""
        return "killed, and does not die" if self.given_up else describe_exit(self.returncode)

    @property
    def cpu_seconds(self) -> float:
        """That it has had, by the clock that is numbered by it (clock_getcpuclockid(3)); 0 where it has ended."""
        try:
            return time.clock_gettime(~self.pid << 3 | 2)
        except OSError:
            return 0.0

    async def wait(self) -> int:
        """Wait for the end, however long that takes, and reap; returns :attr:`returncode`. Not once it is closed."""
        if self.returncode is None:
            await _until_readable(self.pidfd)
            await self._wait_for_status()
        return self._wait()

    def wait_blocking(self, timeout: float) -> int | None:
        """The same for a process without a loop; None when ``timeout`` seconds pass first."""
        if self.returncode is None and not is_readable(self.pidfd, timeout):
            return None
        return self._wait()

    def terminate(self) -> None:
        """Send SIGTERM, if it still runs."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        if self._killed_at is None:
            self._killed_at = time.monotonic()
        self._signal(signal.SIGKILL)

    async def stop(self, grace: float) -> int | None:
        """Ask to end, kill after ``grace`` seconds, reap; returns :attr:`returncode`.

        Cancelled, it kills at once.
        """
        try:
            self.terminate()
            with anyio.move_on_after(grace):
                return await self.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await self.kill_and_wait()
        return self.returncode

    async def kill_and_wait(self) -> bool:
        """Kill it if it still runs, and wait until it is dead.

        False where it is not, :attr:`dying_seconds` after it was first killed: then it is given up.
        """
        if self._closed:
            return not self.given_up
        self.kill()
        if not self.given_up:
            with anyio.move_on_after(self._dying_left):
                await self.wait()
            if not is_readable(self.pidfd, 0):
                self._give_up()
        return not self.given_up

    async def aclose(self, grace: float = 0.0) -> bool:
        """End it, by force after ``grace`` seconds, reap it and give the pidfd back; False where it was given up.

        Cancelled, it is ended all the same. May be called again.
        """
        with anyio.CancelScope(shield=True):
            if grace and self._killed_at is None and not self._closed:
                with anyio.move_on_after(grace):
                    await self.wait()
            await self.kill_and_wait()
        return self.close(0.0)

    def close(self, seconds: float | None = None) -> bool:
        """The same, by force, blocking; ``seconds`` are those after which it is given up, where they are fewer."""
        if self._closed:
            return not self.given_up
        self.kill()
        left = self._dying_left if seconds is None else min(seconds, self._dying_left)
        if not self.given_up and not is_readable(self.pidfd, left):
            self._give_up()
        if not self.given_up:
            self._wait()
        elif self._popen is not None:
            _left_behind.append(self._popen)
        self._closed = True
        os.close(self.pidfd)
        return not self.given_up

    @property
    def _dying_left(self) -> float:
        """Seconds; the process has been killed."""
        assert self._killed_at is not None
        return max(0.0, self._killed_at + self.dying_seconds - time.monotonic())

    def _give_up(self) -> None:
        self.given_up = True
        logger.error("%s (pid %d) was killed and does not die; it is left behind", self.name, self.pid)

    async def _wait_for_status(self) -> None:
        """The process is dead: until its status can be read without waiting for it."""

    def _wait(self) -> int:
        """The process is dead: its status, or that of a kill where somebody else holds it."""
        status = self._reap()
        if status is None:
            status = self._status = -signal.SIGKILL
            if self._popen is not None:
                _left_behind.append(self._popen)
        return status

    def _reap(self) -> int | None:
        """Its status, where that can be had now; it is asked for once."""
        if self._status is None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG)
            if found is None:
                return None
            self._status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            if self._popen is not None:
                self._popen.returncode = self._status  # it must not ask again
        return self._status

    def _signal(self, number: signal.Signals) -> None:
        if not self._closed and self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


class AdoptedChild(Child):
    """Another process's child, which is ours to end: its parent reaps it and tells how it ended."""

    def __init__(self, pid: int, pidfd: int, status_fd: int, name: str) -> None:
        """``told``: a pipe for :data:`STATUS`, written once the process has been reaped. Both become ours to close."""
        self._popen = None
        self._status_fd = status_fd
        self._patience = _TOLD_SECONDS
        """With its parent, once the process is dead."""
        self._begin(pid, pidfd, name)

    def close(self, seconds: float | None = None) -> bool:
        if not self._closed:
            super().close(seconds)
            os.close(self._status_fd)
        return not self.given_up

    async def _wait_for_status(self) -> None:
        try:
            with anyio.move_on_after(self._patience):
                await _until_readable(self._status_fd)
        finally:
            self._patience = 0.0

    def _wait(self) -> int:
        if self._status is None:
            is_readable(self._status_fd, self._patience)
            self._patience = 0.0
        return super()._wait()

    def _reap(self) -> int | None:
        if self._status is None and is_readable(self.pidfd, 0):
            known = is_readable(self._status_fd, 0)
            if not known and self._patience:
                return None  # as good as running, until its parent says more or is not waited for any longer
            self._status = -signal.SIGKILL  # of a parent that died: the kernel kills its children then
            if known and (status := os.read(self._status_fd, STATUS.size)):
                (self._status,) = STATUS.unpack(status)
        return self._status


def spawn(
    module: str,
    fds: Sequence[int],
    *,
    kept_fds: Sequence[int] = (),
    arguments: Sequence[str] = (),
    env_extra: Mapping[str, str] | None = None,
    without: str = "",
    name: str | None = None,
) -> Child:
    """Run ``python -P -m module`` as a child that inherits ``fds`` under the same numbers.

    It inherits ``kept_fds`` too. ``arguments`` follow on its command line; ``env_extra`` adds to the environment,
    of which it does not get what begins with ``without``; ``name`` is for messages. From a thread that outlives the
    child (see the module's docstring).
    """
    require_linux()
    _reap_left_behind()
    command = [sys.executable, "-P", "-m", module]
    command += ["--parent-pid", str(os.getpid()), "--channel-fds", ",".join(map(str, fds)), *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=(*fds, *kept_fds),
        env={**_environment(without), **(env_extra or {})},
        start_new_session=True,
    )
    try:
        return Child(process, module if name is None else name)
    except BaseException:
        process.kill()
        _left_behind.append(process)
        raise


def _environment(without: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not (without and name.startswith(without))}


def _reap_left_behind() -> None:
    """Those that have waited longest are looked at first. From any thread."""
    with contextlib.suppress(IndexError):  # another thread looks at the last
        for _ in range(min(len(_left_behind), REAPED_AT_ONCE)):
            process = _left_behind.popleft()
            if process.poll() is None:
                _left_behind.append(process)


def become_child(name: str, argv: Sequence[str] | None = None) -> Inherited:
    """Tie this process to the one that spawned it, and read what it was given from the command line.

    ``name`` (at most 15 bytes are kept) is what ``top`` and ``ps`` show. Ends the process at once
    when the parent is gone already. One that a fork server forked is tied to that (:mod:`.fork_server`).
    """
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--channel-fds", type=_descriptors, required=True)
    parser.add_argument("--fork-server-pid", type=int)
    known, rest = parser.parse_known_args(argv)
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != (known.fork_server_pid or known.parent_pid):
        os._exit(1)  # it died before the kernel knew whom to tell
    _prctl(libc, PR_SET_NAME, ctypes.c_char_p(name.encode()))
    for fd in known.channel_fds:
        os.set_inheritable(fd, False)
    return Inherited(known.channel_fds, known.parent_pid, tuple(rest))


def describe_exit(returncode: int | None) -> str:
    """How a process ended, for people."""
    if returncode is None:
        return "running"
    if returncode >= 0:
        return f"exited with {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def is_readable(fd: int, seconds: float) -> bool:
    """Whether it is, or becomes so in time."""
    found = select.poll()
    found.register(fd, select.POLLIN)
    return bool(found.poll(seconds * 1000))


async def _until_readable(fd: int) -> None:
    """However long that takes."""
    ours = os.dup(fd)  # a loop takes one waiter per descriptor; here any number of tasks may wait
    try:
        await anyio.wait_readable(ours)
    finally:
        os.close(ours)


def _descriptors(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def _prctl(libc: ctypes.CDLL, option: int, argument: ctypes.c_ulong | ctypes.c_char_p) -> None:
    if libc.prctl(option, argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


# Workers whose parent died, and that are ours to bury.
#
# The kernel kills them with the engine or the fork server that began them. Where this process is the first of a
# container, it is also their new parent, and they stay in its table until it asks how they ended.
_WORKER: Final = "stentor-worker"
"""What a process is called that this one never starts itself."""


_reaping: Final = threading.Lock()
"""A pid that one thread has reaped may be another process by the time that a second one asks for it."""


def reap_orphans(most: int = REAPED_AT_ONCE) -> int:
    """Reaps those that are dead, at most so many; how many. Reads a file for each child: to be called in a thread."""
    reaped = 0
    with _reaping:
        for pid in _children():
            if reaped == most:
                break
            with contextlib.suppress(OSError):
                name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
                if name == _WORKER and rest.split()[0] == "Z":
                    reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped


def _children() -> list[int]:
    """None where the kernel does not say."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
