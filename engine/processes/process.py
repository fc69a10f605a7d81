"""Child processes: none outlives its owner, and each is watched through a pidfd.

::

    child = spawn("stentor.engine.worker.process", pair.child_fds)  # in the owner
    inherited = become_child("stentor-worker")                      # first thing in the child's main()

The kernel kills a child when its owner dies for any reason: ``become_child`` requests SIGKILL as the parent-death
signal, so server → engine → worker end one after the other. The signal is sent when the *thread* that spawned the child
ends: spawn from the main thread, or from one that lives as long as the child. A child is not protected before
``become_child`` has run: call it before anything slow, above all before importing torch.

A child runs in its own session, so Ctrl-C in the terminal reaches only the server, which then ends the others in order.
It inherits stdout, stderr and the environment (it must find the same ``stentor``), and only the descriptors passed.

A killed process does not die while the kernel holds it in a call (a driver, a file system that is gone). After
:data:`DYING_SECONDS` it is given up and left behind. The status of a dead process is asked for without waiting, since a
debugger may hold it for any time.
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
"""Format in which a parent reports to a watcher how a process ended."""

DYING_SECONDS: Final = 30.0
"""From a kill to the end: a process with tens of gigabytes, or with device memory, takes seconds."""
_TOLD_SECONDS: Final = 1.0
"""How long to wait for the parent's report about a dead process; the parent may be stopped."""
REAPED_AT_ONCE: Final = 64
"""Most processes that one call examines or reaps."""
_left_behind: Final[deque[subprocess.Popen[bytes]]] = deque()
"""Children that are no longer waited for; later spawns reap those that have died."""


class Inherited(NamedTuple):
    """Descriptors and arguments that a child got from its owner."""

    fds: tuple[int, ...]
    parent_pid: int
    arguments: tuple[str, ...]


class Child:
    """A child process. Its owner must :meth:`aclose` it, or :meth:`close` it outside of an event loop."""

    dying_seconds = DYING_SECONDS
    """Seconds after a kill until the process is given up."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._popen: subprocess.Popen[bytes] | None = process
        self._begin(process.pid, os.pidfd_open(process.pid), name)

    def _begin(self, pid: int, pidfd: int, name: str) -> None:
        self.name = name
        self.pid = pid
        self.pidfd = pidfd
        """Readable once the process is dead; valid until :meth:`close`."""
        self.given_up = False
        """Whether it was killed and did not die."""
        self._status: int | None = None
        self._killed_at: float | None = None
        self._closed = False

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the signal that killed it; None while it runs and if it was given up."""
        return None if self.given_up else self._reap()

    @property
    def description(self) -> str:
        """How it ended, for people: "killed by SIGKILL", "exited with 1"; "running" if it has not."""
        return "killed, and does not die" if self.given_up else describe_exit(self.returncode)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds that the process has used; 0 once it has ended."""
        return cpu_seconds_of(self.pid)

    async def wait(self) -> int:
        """Wait for the end without a limit, and reap; returns :attr:`returncode`. Not after :meth:`close`."""
        if self.returncode is None:
            await _until_readable(self.pidfd)
            await self._wait_for_status()
        return self._wait()

    def wait_blocking(self, timeout: float) -> int | None:
        """Wait for the end without an event loop; None after ``timeout`` seconds."""
        if self.returncode is None and not is_readable(self.pidfd, timeout):
            return None
        return self._wait()

    def terminate(self) -> None:
        """Send SIGTERM if it runs."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL if it runs."""
        if self._killed_at is None:
            self._killed_at = time.monotonic()
        self._signal(signal.SIGKILL)

    async def stop(self, grace: float) -> int | None:
        """Send SIGTERM, kill after ``grace`` seconds, reap; returns :attr:`returncode`.

        If cancelled, it kills at once.
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
        """Kill it if it runs, and wait until it is dead.

        Returns False, and gives it up, if it is alive :attr:`dying_seconds` after the first kill.
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
        """End it, by force after ``grace`` seconds, reap it and close the pidfd; False if it was given up.

        It is ended even if the call is cancelled. May be called again.
        """
        with anyio.CancelScope(shield=True):
            if grace and self._killed_at is None and not self._closed:
                with anyio.move_on_after(grace):
                    await self.wait()
            await self.kill_and_wait()
        return self.close(0.0)

    def close(self, seconds: float | None = None) -> bool:
        """End the process by force, blocking. ``seconds`` may shorten the time until it is given up."""
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
        """Seconds until it is given up. It must have been killed."""
        assert self._killed_at is not None
        return max(0.0, self._killed_at + self.dying_seconds - time.monotonic())

    def _give_up(self) -> None:
        self.given_up = True
        logger.error("%s (pid %d) was killed and does not die; it is left behind", self.name, self.pid)

    async def _wait_for_status(self) -> None:
        """Wait until the status of the dead process can be read without blocking."""

    def _wait(self) -> int:
        """The status of the dead process; that of a kill if another process holds it."""
        status = self._reap()
        if status is None:
            status = self._status = -signal.SIGKILL
            if self._popen is not None:
                _left_behind.append(self._popen)
        return status

    def _reap(self) -> int | None:
        """Its status if it is available now, else None; asked for only once."""
        if self._status is None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG)
            if found is None:
                return None
            self._status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            if self._popen is not None:
                self._popen.returncode = self._status  # else it would ask again
        return self._status

    def _signal(self, number: signal.Signals) -> None:
        if not self._closed and self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


class AdoptedChild(Child):
    """A process forked by another, which reaps it and reports how it ended; this process ends it."""

    def __init__(self, pid: int, pidfd: int, status_fd: int, name: str) -> None:
        """``status_fd``: a pipe that gets :data:`STATUS` once the process is reaped. :meth:`close` closes both
        descriptors."""
        self._popen = None
        self._status_fd = status_fd
        self._patience = _TOLD_SECONDS
        """Seconds to wait for the parent's report once the process is dead."""
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
                return None  # counts as running until its parent reports or the wait is over
            self._status = -signal.SIGKILL  # the parent died: the kernel kills its children then
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

    Call it in a thread that outlives the child (see the module's docstring).

    Args:
        kept_fds: further descriptors to inherit.
        arguments: end of its command line.
        env_extra: additions to the environment.
        without: prefix of environment variables that it does not get; "": it gets all.
        name: for messages.
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
    """Reap the children left behind, longest waiting first. Callable from any thread."""
    with contextlib.suppress(IndexError):  # another thread took the last one
        for _ in range(min(len(_left_behind), REAPED_AT_ONCE)):
            process = _left_behind.popleft()
            if process.poll() is None:
                _left_behind.append(process)


def become_child(name: str) -> Inherited:
    """Tie this process to the one that spawned it, and read the command line.

    ``name`` (at most 15 bytes) is what ``top`` and ``ps`` show. Exits at once if the parent is gone. A process forked
    by a fork server is tied to that instead (:mod:`.fork_server`).
    """
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--channel-fds", type=_descriptors, required=True)
    parser.add_argument("--fork-server-pid", type=int)
    known, rest = parser.parse_known_args()
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != (known.fork_server_pid or known.parent_pid):
        os._exit(1)  # the parent died before the death signal was set
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


def cpu_seconds_of(pid: int) -> float:
    """CPU time of a process, by the clock that is numbered by it (clock_getcpuclockid(3)); 0 if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def is_readable(fd: int, seconds: float) -> bool:
    """Whether the descriptor is readable within ``seconds``."""
    found = select.poll()
    found.register(fd, select.POLLIN)
    return bool(found.poll(seconds * 1000))


async def _until_readable(fd: int) -> None:
    """Wait without a limit until the descriptor is readable."""
    ours = os.dup(fd)  # a loop takes one waiter per descriptor; a duplicate allows any number of tasks to wait
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


# Orphaned workers that this process must reap.
#
# The kernel kills workers with the engine or the fork server that started them. If this process is the init process of
# a container, it becomes their parent, and they stay in its process table until it reaps them.
_WORKER: Final = "stentor-worker"
"""Process name of a worker; this process never starts one directly."""


_reaping: Final = threading.Lock()
"""Prevents a second thread from waiting for a pid that was reaped and reused."""


def reap_orphans(most: int = REAPED_AT_ONCE) -> int:
    """Reap up to ``most`` dead workers; returns how many. Reads a file for each child: call it in a thread."""
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
    """The pids of all children; empty if the kernel does not list them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
