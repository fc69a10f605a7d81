"""The fork server from outside: for its owner, and for an engine that has a socket to it."""

import contextlib
import errno
import os
import signal
import socket
from functools import partial
from typing import Final

import anyio

from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.flag import OPTION_PREFIX

from .fork_server import MAX_MESSAGE, Forked, Refused, Request, answers
from .process import AdoptedChild, Child, cpu_seconds_of, spawn

WORKER_ENVIRONMENT: Final = {
    # compute threads must free the cores soon after a step, for the server and this process
    "GOMP_SPINCOUNT": "10000",
    # numpy's threads would not survive a fork, and nothing here multiplies with numpy
    "OPENBLAS_NUM_THREADS": "1",
}

_FORK_SECONDS = 5.0
"""Longest answer of a fork server that has forked before; beyond, it hangs."""
_FIRST_SECONDS: Final = 60.0
"""Longest silence before the first answer, in CPU time that it got: it imports, or waits for a killed worker's death
(:data:`.process.DYING_SECONDS`)."""
_LOOK_SECONDS: Final = 1.0
_BORN_WITH: Final = 2
_CLOSE_SECONDS: Final = 5.0
"""Short, since it holds nothing that takes long to free."""


class ForkServerLost(Exception):
    """The fork server ended or does not answer."""


class ForkServer:
    """A fork server for workers of ``module``; restarts it if it has died. Use it in the main thread."""

    def __init__(self, module: str) -> None:
        """Raises OSError."""
        self.module = module
        self._control, self._process = self._started()

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self) -> socket.socket:
        """A socket on which one engine asks for workers. Raises OSError."""
        if self._process.returncode is not None:
            self.close()
            self._control, self._process = self._started()
        ours, theirs = _pair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"engine"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    def close(self) -> None:
        """End it and its workers; blocks for a few seconds at most. May be called again."""
        self._control.close()
        self._process.close(_CLOSE_SECONDS)

    def _started(self) -> tuple[socket.socket, Child]:
        ours, theirs = _pair()
        try:
            with theirs:
                arguments = ("--module", self.module)
                child = spawn(
                    "stentor.engine.processes.fork_server",
                    (theirs.fileno(),),
                    arguments=arguments,
                    env_extra=WORKER_ENVIRONMENT,
                    without=OPTION_PREFIX,
                )
        except BaseException:
            ours.close()
            raise
        return ours, child


class ForkServerLink:
    """An engine's socket to a fork server."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        """Takes ownership of the socket. ``pid``: the fork server's."""
        self._connection = connection
        self._connection.setblocking(False)
        self._pid = pid
        self.has_forked = False

    async def fork(self, fds: tuple[int, ...], options: tuple[str, ...], name: str) -> Child:
        """Fork a worker with ``fds``, the last of which belong to ``options``. Waits for the fork server's imports.

        Raises :class:`ForkServerLost`, and OSError if it cannot fork.
        """
        try:
            socket.send_fds(self._connection, [encode(Request(os.getpid(), options))], fds)
            if self.has_forked:
                with anyio.fail_after(_FORK_SECONDS):
                    await anyio.wait_readable(self._connection)
            else:
                await self._await_first_answer()
            message, given, _, _ = socket.recv_fds(self._connection, MAX_MESSAGE, _BORN_WITH)
        except TimeoutError:
            raise ForkServerLost("the fork server of workers does not answer") from None
        except (BrokenPipeError, ConnectionResetError):
            message, given = b"", []
        if not message:
            raise ForkServerLost("the fork server of workers was lost")
        match answers.decode(message):
            case Refused(why):
                raise OSError(errno.EAGAIN, why)
            case Forked(pid):
                self.has_forked = True
                pidfd, status_fd = given
                return AdoptedChild(pid, pidfd, status_fd, name)

    async def _await_first_answer(self) -> None:
        """Raises TimeoutError once a fork server that hangs has been killed: its owner replaces only a dead one."""
        from .silence import Silence  # late: the command, which only starts a fork server, needs none of it

        silence = Silence(partial(cpu_seconds_of, self._pid), 2 * _LOOK_SECONDS)
        while silence.seconds < _FIRST_SECONDS:
            with anyio.move_on_after(min(_LOOK_SECONDS, _FIRST_SECONDS)):
                await anyio.wait_readable(self._connection)
                return
            silence.look()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        raise TimeoutError

    def close(self) -> None:
        """Close the socket; the fork server then kills this engine's workers. May be called again."""
        self._connection.close()


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
