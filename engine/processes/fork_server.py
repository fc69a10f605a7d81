"""The fork server process: it has imported what a worker needs, and forks one when an engine asks.

It runs no torch operation, starts no thread and touches no device, since none of that survives a fork; it refuses to
fork if it finds a second thread. Its objects are frozen (``gc.freeze``), so that workers share their memory.

The server owns it: starts it beside the first engine and hands each engine a socket to it, so that a later engine need
not wait for imports either. Workers are its children. It kills those of an engine whose socket closes; the kernel kills
all of them when it dies, and it dies with its owner. It writes a worker's exit status into a pipe whose other end the
engine has (:class:`.process.AdoptedChild`).

::

    owner → fork server    a socket for an engine (SCM_RIGHTS)
    engine → fork server   Request, with the descriptors that the worker gets
    fork server → engine   Forked, with a pidfd and the pipe; or Refused

The worker's module has a ``main``, and a ``preload`` if it has something to import before a fork.
"""

import argparse
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from stentor.protocols.common.encoding import encode

from .process import DYING_SECONDS, STATUS, become_child

MAX_FDS: Final = 16
MAX_MESSAGE: Final = 4096
_NOBODY: Final = -1


class Request(msgspec.Struct, frozen=True):
    """Fork a worker. The message carries its channel's descriptors, then one for each name in ``options``."""

    engine: int
    """The pid of the sender."""
    options: tuple[str, ...] = ()
    """Options on the worker's command line, each followed by its descriptor's number."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    pid: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    why: str


answers: Final[msgspec.json.Decoder[Forked | Refused]] = msgspec.json.Decoder(Forked | Refused)
_requests: Final = msgspec.json.Decoder(Request)


class _Worker(NamedTuple):
    pid: int
    pidfd: int
    note: int
    """Write end of the pipe for its exit status."""
    engine: int
    """The descriptor of its engine's socket; :data:`_NOBODY` if that is closed."""
    dying_until: float = 0.0
    """Once killed: the ``time.monotonic()`` until which new engines wait for its death."""


class _Life(NamedTuple):
    """The arguments of a process that was just forked."""

    request: Request
    fds: tuple[int, ...]
    fork_server: int

    @property
    def arguments(self) -> list[str]:
        channel = len(self.fds) - len(self.request.options)
        named = zip(self.request.options, self.fds[channel:], strict=True)
        return [
            *("--parent-pid", str(self.request.engine), "--channel-fds", ",".join(map(str, self.fds[:channel]))),
            *("--fork-server-pid", str(self.fork_server)),
            *(part for option, fd in named for part in (option, str(fd))),
        ]


class _ForkServer:
    """Serves its owner, the engines and the ends of workers."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._engines: dict[int, socket.socket] = {}
        self._workers: dict[int, _Worker] = {}
        """By pidfd."""
        self._poll = select.poll()
        self._poll.register(owner, select.POLLIN)

    def serve(self) -> _Life | None:
        """Serve until the owner is gone, then return None. Returns in each forked worker too, with its arguments."""
        while True:
            left = self._dying_left
            self._poll.modify(self._owner, 0 if left else select.POLLIN)
            ready = dict(self._poll.poll(left * 1000 if left else None))
            for pidfd in ready.keys() & self._workers.keys():
                self._reap(pidfd)
            for fd in ready.keys() & self._engines.keys():
                if ready[fd] & (select.POLLHUP | select.POLLERR):
                    self._forget(fd)
            for fd in ready.keys() & self._engines.keys():
                if (life := self._answer(fd)) is not None:
                    return life
            # accept a new engine only after the workers of a lost one are dead
            seen = ready.get(self._owner.fileno(), 0)
            if seen & select.POLLHUP or (seen and not self._dying_left):
                message, fds, _, _ = socket.recv_fds(self._owner, MAX_MESSAGE, 1)
                if not message:
                    return None
                for fd in fds:
                    self._engines[fd] = socket.socket(fileno=fd)
                    self._poll.register(fd, select.POLLIN)

    def _answer(self, engine: int) -> _Life | None:
        connection = self._engines[engine]
        message, fds, _, _ = socket.recv_fds(connection, MAX_MESSAGE, MAX_FDS)
        if not message:
            self._forget(engine)
            return None
        if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
            answer: Forked | Refused = Refused(f"the fork server has {threads} threads")
            given: list[int] = []
        else:
            fork_server = os.getpid()
            status_fd, note = os.pipe()
            try:
                pid = os.fork()
            except OSError as error:
                answer, given = Refused(f"cannot fork: {error.strerror}"), [status_fd, note]
            else:
                if pid == 0:
                    self._leave(status_fd, note)
                    return _Life(_requests.decode(message), tuple(fds), fork_server)
                pidfd = os.pidfd_open(pid)
                self._workers[pidfd] = _Worker(pid, pidfd, note, engine)
                self._poll.register(pidfd, select.POLLIN)
                answer, given = Forked(pid), [pidfd, status_fd]
        with contextlib.suppress(OSError):  # the engine is gone, which the next round notices
            socket.send_fds(connection, [encode(answer)], given if isinstance(answer, Forked) else [])
        for fd in (*fds, *(each for each in given if each not in self._workers)):
            os.close(fd)
        return None

    def _leave(self, *others: int) -> None:
        """In a worker: close everything of the fork server."""
        self._owner.close()
        for connection in self._engines.values():
            connection.close()
        for fd in (*others, *(fd for worker in self._workers.values() for fd in (worker.pidfd, worker.note))):
            os.close(fd)

    def _forget(self, engine: int) -> None:
        """Kill the workers of an engine that is gone, so that the next one finds their resources free.

        The next engine waits for a worker that does not die, for at most :data:`DYING_SECONDS`; living engines do not.
        """
        until = time.monotonic() + DYING_SECONDS
        for worker in [each for each in self._workers.values() if each.engine == engine]:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
            self._workers[worker.pidfd] = worker._replace(engine=_NOBODY, dying_until=until)
        self._poll.unregister(engine)
        self._engines.pop(engine).close()

    @property
    def _dying_left(self) -> float:
        """Seconds for which new engines wait for killed workers."""
        return max(0.0, max((each.dying_until for each in self._workers.values()), default=0.0) - time.monotonic())

    def _reap(self, pidfd: int) -> None:
        """Reap a dead worker and report its status through its pipe."""
        worker = self._workers.pop(pidfd)
        found, status = os.waitpid(worker.pid, os.WNOHANG)
        with contextlib.suppress(BrokenPipeError):
            if found:  # else a debugger holds the status, and the reader takes the worker for killed
                os.write(worker.note, STATUS.pack(os.waitstatus_to_exitcode(status)))
        self._poll.unregister(pidfd)
        os.close(worker.note)
        os.close(pidfd)


def main() -> int:
    inherited = become_child("stentor-forksrv")
    parser = argparse.ArgumentParser(prog="stentor-forksrv", allow_abbrev=False)
    parser.add_argument("--module", required=True)
    name: str = parser.parse_args(inherited.arguments).module
    gc.disable()
    module = importlib.import_module(name)
    if hasattr(module, "preload"):
        module.preload()
    gc.freeze()
    (fd,) = inherited.fds
    life = _ForkServer(socket.socket(fileno=fd)).serve()
    if life is None:
        return 0
    gc.enable()
    os.setsid()
    sys.argv = [name, *life.arguments]
    status: int = module.main()
    return status


if __name__ == "__main__":
    sys.exit(main())
