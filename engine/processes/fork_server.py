"""The fork server process: has imported what a worker needs, and forks one when an engine asks for it.

It runs no operation of torch, starts no thread and touches no device, for none of that survives a fork; where it
finds a second thread it refuses. Its objects are left alone (``gc.freeze``), so that its workers share their memory.

It belongs to the server, which starts it beside the first engine and hands it a socket to each engine, so that an
engine that follows another need not wait for imports either. The workers are its children: it kills those of an engine
whose socket closes, the kernel kills them all when it dies itself, and it dies with its owner. How a worker ended it
writes into a pipe whose other end the engine has (:class:`.process.AdoptedChild`).

::

    owner → fork server    a socket for an engine (SCM_RIGHTS)
    engine → fork server   Request, with the descriptors that the worker gets
    fork server → engine   Born, with a pidfd and the pipe; or Refused

The module of the worker has a ``main``, and a ``preload`` where there is something to import before a fork.
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

from .process import DYING_SECONDS, STATUS, become_child

MAX_FDS: Final = 16
MAX_MESSAGE: Final = 4096
_NOBODY: Final = -1


class Request(msgspec.Struct, frozen=True):
    """Fork a worker. With it come the descriptors of its channel, then one for each name in ``options``."""

    engine: int
    """The pid of who asks."""
    options: tuple[str, ...] = ()
    """What the worker's command line has, each followed by the number of its descriptor."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    pid: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    why: str


encode: Final = msgspec.json.Encoder().encode
answers: Final[msgspec.json.Decoder[Forked | Refused]] = msgspec.json.Decoder(Forked | Refused)
_requests: Final = msgspec.json.Decoder(Request)


class _Worker(NamedTuple):
    pid: int
    pidfd: int
    note: int
    """Where its end is told."""
    engine: int
    """The descriptor of its engine's socket; :data:`_NOBODY`, where that is gone."""
    dying_until: float = 0.0
    """By ``time.monotonic()``: until when no new engine is served, once it has been killed."""


class _Life(NamedTuple):
    """What the process that was just forked begins with."""

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
    """Waits for its owner, for engines and for the ends of workers."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._engines: dict[int, socket.socket] = {}
        self._workers: dict[int, _Worker] = {}
        """By pidfd."""
        self._poll = select.poll()
        self._poll.register(owner, select.POLLIN)

    def serve(self) -> _Life | None:
        """Until the owner is gone. In a new worker, what it begins with."""
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
            # an engine follows one that died, whose workers are gone by then
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
        with contextlib.suppress(OSError):  # it is gone, which the next round sees
            socket.send_fds(connection, [encode(answer)], given if isinstance(answer, Forked) else [])
        for fd in (*fds, *(each for each in given if each not in self._workers)):
            os.close(fd)
        return None

    def _leave(self, *others: int) -> None:
        """In a worker: gives back all that is the fork server's."""
        self._owner.close()
        for connection in self._engines.values():
            connection.close()
        for fd in (*others, *(fd for worker in self._workers.values() for fd in (worker.pidfd, worker.note))):
            os.close(fd)

    def _forget(self, engine: int) -> None:
        """The engine is gone, and its workers with it: the one that follows finds what they held given back.

        It waits for one that does not die until :data:`DYING_SECONDS` have passed; engines that live do not.
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
        """Seconds for which workers that were killed are waited for."""
        return max(0.0, max((each.dying_until for each in self._workers.values()), default=0.0) - time.monotonic())

    def _reap(self, pidfd: int) -> None:
        """Takes the end of one that is dead, and tells it to whoever has the other end of the pipe."""
        worker = self._workers.pop(pidfd)
        found, status = os.waitpid(worker.pid, os.WNOHANG)
        with contextlib.suppress(BrokenPipeError):
            if found:  # else a debugger holds it, and whoever has the other end takes it for killed
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
