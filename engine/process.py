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
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import anyio

from .channel.region import require_linux

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15


class Inherited(NamedTuple):
    """What a child was given by its owner."""

    fds: tuple[int, ...]
    parent_pid: int
    arguments: tuple[str, ...]


class Child:
    """A child process. Its owner must :meth:`wait` for it (or :meth:`stop` it) and :meth:`close` it."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._process = process
        self.name = name
        self.pid: Final = process.pid
        self.pidfd: Final = os.pidfd_open(process.pid)
        """Readable once the process is dead; valid until :meth:`close`."""
        self._closed = False

    @property
    def returncode(self) -> int | None:
        """None while it runs, the exit status, or minus the signal that killed it."""
        return self._process.poll()

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
        return self._process.wait()

    def wait_blocking(self, timeout: float | None = None) -> int | None:
        """The same for a process without a loop; None when ``timeout`` seconds pass first."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

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
        return self._process.wait()

    def close(self) -> None:
        """Kill it if it still runs, block until it is dead, reap it and give the pidfd back. May be called again."""
        if self._closed:
            return
        self.kill()
        self._process.wait()
        self._closed = True
        os.close(self.pidfd)

    def _signal(self, number: signal.Signals) -> None:
        if not self._closed and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


def spawn(
    module: str,
    fds: Sequence[int],
    *,
    arguments: Sequence[str] = (),
    env_extra: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Child:
    """Run ``python -P -m module`` as a child that inherits ``fds`` under the same numbers.

    ``arguments`` follow on its command line; ``env_extra`` adds to the environment; ``name`` is for
    messages. From a thread that outlives the child (see the module's docstring).
    """
    require_linux()
    command = [sys.executable, "-P", "-m", module]
    command += ["--parent-pid", str(os.getpid()), "--channel-fds", ",".join(map(str, fds)), *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=tuple(fds),
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
    when the parent is gone already.
    """
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--channel-fds", type=_descriptors, required=True)
    known, rest = parser.parse_known_args(argv)
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != known.parent_pid:
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


def _descriptors(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def _prctl(libc: ctypes.CDLL, option: int, argument: ctypes.c_ulong | ctypes.c_char_p) -> None:
    if libc.prctl(option, argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")
