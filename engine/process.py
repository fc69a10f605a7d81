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
"""

import argparse
import contextlib
import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import anyio

from .channel.region import require_linux

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
STATUS: Final = struct.Struct("q")
"""How a process ended, as its parent tells it to whoever watches it."""


_TOLD_SECONDS: Final = 1.0
"""For which the end of a dead process is awaited from its parent, which may have been stopped."""


class Inherited(NamedTuple):
    """What a child was given by its owner."""

    fds: tuple[int, ...]
    parent_pid: int
    arguments: tuple[str, ...]


class Child:
    """A child process. Its owner must :meth:`wait` for it (or :meth:`stop` it) and :meth:`close` it."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._popen: subprocess.Popen[bytes] | None = process
        self._begin(process.pid, os.pidfd_open(process.pid), name)

    def _begin(self, pid: int, pidfd: int, name: str) -> None:
        self.name = name
        self.pid = pid
        self.pidfd = pidfd
        """Readable once the process is dead; valid until :meth:`close`."""
        self._status: int | None = None
        self._closed = False

    @property
    def returncode(self) -> int | None:
        """None while it runs, the exit status, or minus the signal that killed it."""
        return self._reap(os.WNOHANG)

    @property
    def description(self) -> str:
        """How it ended, for people: "killed by SIGKILL", "exited with 1"; "running" before that."""
        return describe_exit(self.returncode)

    async def wait(self) -> int:
        """Wait for the end and reap; returns :attr:`returncode`."""
        if self.returncode is None:
            pidfd = os.dup(self.pidfd)  # a loop takes one waiter per descriptor; here any number of tasks may wait
            try:
                await anyio.wait_readable(pidfd)
            finally:
                os.close(pidfd)
        return self._wait()

    def wait_blocking(self, timeout: float | None = None) -> int | None:
        """The same for a process without a loop; None when ``timeout`` seconds pass first."""
        if timeout is not None and self.returncode is None and not _readable(self.pidfd, timeout):
            return None
        return self._wait()

    def terminate(self) -> None:
        """Send SIGTERM, if it still runs."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        self._signal(signal.SIGKILL)

    async def stop(self, grace: float) -> int:
        """Ask to end, kill after ``grace`` seconds, reap; returns :attr:`returncode`.

        Cancelled, it kills at once.
        """
        try:
            self.terminate()
            with anyio.move_on_after(grace):
                return await self.wait()
        finally:
            self.kill()
            with anyio.CancelScope(shield=True):
                await self.wait()
        return self._wait()

    def close(self) -> None:
        """Kill it if it still runs, block until it is dead, reap it and give the pidfd back. May be called again."""
        if self._closed:
            return
        self.kill()
        self._wait()
        self._closed = True
        os.close(self.pidfd)

    def _wait(self) -> int:
        status = self._reap(0)
        assert status is not None
        return status

    def _reap(self, how: int) -> int | None:
        """Its status where it has ended, which is awaited unless ``how`` says otherwise; it is asked for once."""
        if self._status is None:
            # by pid: a loop that watched the pidfd has made it one that does not wait
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | how)
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


class Foster(Child):
    """Another process's child, which is ours to end: its parent reaps it and tells how it ended."""

    def __init__(self, pid: int, pidfd: int, told: int, name: str) -> None:
        """``told``: a pipe for :data:`STATUS`, written once the process has been reaped. Both become ours to close."""
        self._popen = None
        self._told = told
        self._begin(pid, pidfd, name)

    def close(self) -> None:
        if not self._closed:
            super().close()
            os.close(self._told)

    def _reap(self, how: int) -> int | None:
        if self._status is None and _readable(self.pidfd, 0 if how == os.WNOHANG else None):
            self._status = -signal.SIGKILL  # of a parent that died: the kernel kills its children then
            if _readable(self._told, _TOLD_SECONDS) and (told := os.read(self._told, STATUS.size)):
                (self._status,) = STATUS.unpack(told)
        return self._status


def spawn(
    module: str,
    fds: Sequence[int],
    *,
    kept_fds: Sequence[int] = (),
    arguments: Sequence[str] = (),
    env_extra: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Child:
    """Run ``python -P -m module`` as a child that inherits ``fds`` under the same numbers.

    It inherits ``kept_fds`` too. ``arguments`` follow on its command line; ``env_extra`` adds to the environment;
    ``name`` is for messages. From a thread that outlives the child (see the module's docstring).
    """
    require_linux()
    command = [sys.executable, "-P", "-m", module]
    command += ["--parent-pid", str(os.getpid()), "--channel-fds", ",".join(map(str, fds)), *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=(*fds, *kept_fds),
        env={**os.environ, **(env_extra or {})},
        start_new_session=True,
    )
    try:
        return Child(process, module if name is None else name)
    except BaseException:
        process.kill()
        process.wait()
        raise


def become_child(name: str, argv: Sequence[str] | None = None) -> Inherited:
    """Tie this process to the one that spawned it, and read what it was given from the command line.

    ``name`` (at most 15 bytes are kept) is what ``top`` and ``ps`` show. Ends the process at once
    when the parent is gone already. One that a nursery forked is tied to that (:mod:`.nursery`).
    """
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--channel-fds", type=_descriptors, required=True)
    parser.add_argument("--nursery-pid", type=int)
    known, rest = parser.parse_known_args(argv)
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != (known.nursery_pid or known.parent_pid):
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


def _readable(fd: int, seconds: float | None) -> bool:
    """Whether it is, or becomes so in time; None waits for ever."""
    found = select.poll()
    found.register(fd, select.POLLIN)
    return bool(found.poll(None if seconds is None else seconds * 1000))


def _descriptors(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def _prctl(libc: ctypes.CDLL, option: int, argument: ctypes.c_ulong | ctypes.c_char_p) -> None:
    if libc.prctl(option, argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")
