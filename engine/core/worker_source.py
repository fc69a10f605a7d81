"""Gets workers for the engine from a fork server, which has imported torch and forks ready processes.

Importing torch takes a worker a second or more; a forked one is spared that. The first waits for the rest of the fork
server's imports. The engine first asks the fork server whose socket it was given. Without one, or if it is lost, the
engine starts one of its own. If that fails too, a worker is spawned directly, which only takes longer.
"""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from ..processes.fork_server_owner import WORKER_ENVIRONMENT, ForkServer, ForkServerLink, ForkServerLost
from ..processes.process import Child, spawn

logger = logging.getLogger(__name__)

WEIGHTS_OPTION: Final = "--weights-fd"
LEASE_OPTION: Final = "--lease-fd"
ARENA_OPTION: Final = "--arena-fd"
MEETING_OPTION: Final = "--meeting-fd"


class WorkerSource:
    """Starts workers that run ``module``, one at a time. Its owner must :meth:`close` it."""

    def __init__(
        self,
        module: str,
        weights_fds: Sequence[int] = (),
        fork_server_fd: int | None = None,
        fork_server_pid: int | None = None,
        lease_fd: int | None = None,
        arena_fd: int | None = None,
    ) -> None:
        """
        Args:
            module: has a ``main``, and perhaps a ``preload``; see :mod:`..processes.fork_server`.
            weights_fds: memory files for prepared weights, one a rank; not closed here. Empty: none.
            fork_server_fd: socket to a fork server, closed by this object. None: there is none.
            fork_server_pid: its pid. None only without one.
            lease_fd: the lease on a device that several models share; not closed here. None: there is none.
            arena_fd: memory file of media; not closed here. None: requests bring none.
        """
        self._module = module
        given = {LEASE_OPTION: lease_fd, ARENA_OPTION: arena_fd}
        self._kept = {option: fd for option, fd in given.items() if fd is not None}
        """Descriptors that each worker inherits, by option."""
        self._weights = tuple(weights_fds)
        self._own: ForkServer | None = None
        self._link: ForkServerLink | None = None
        if fork_server_fd is not None and fork_server_pid is not None:
            self._link = ForkServerLink(socket.socket(fileno=fork_server_fd), fork_server_pid)

    @property
    def own_fork_server(self) -> int | None:
        """The pid of this engine's own fork server; None if it has none."""
        return None if self._own is None else self._own.pid

    async def start(self, fds: tuple[int, ...], rank: int = 0, meeting_fd: int | None = None) -> Child:
        """Start a worker. The first takes as long as the fork server's imports.

        Call it in the main thread. Raises OSError.

        Args:
            fds: the worker's descriptors of its channel.
            rank: index of the worker in its group.
            meeting_fd: file by which the members of a group find each other; None for a single worker.
        """
        kept = dict(self._kept)
        if rank < len(self._weights):
            kept[WEIGHTS_OPTION] = self._weights[rank]
        if meeting_fd is not None:
            kept[MEETING_OPTION] = meeting_fd
        had_forked = self._link is not None and self._link.has_forked
        child = await self._fork(fds, kept)
        if child is None and had_forked:
            child = await self._fork(fds, kept)
        return self._spawn(fds, kept) if child is None else child

    def discard_weights(self) -> None:
        """Empties the memory files of prepared weights; no worker may be alive, for it maps them."""
        for fd in self._weights:
            os.ftruncate(fd, 0)

    def close(self) -> None:
        """End the forked workers and this engine's own fork server. May be called again."""
        self._unlink()
        if self._own is not None:
            self._own.close()
            self._own = None

    def _unlink(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _fork(self, fds: tuple[int, ...], kept: Mapping[str, int]) -> Child | None:
        """Fork a worker; None if the fork server fails, which is then closed."""
        is_new = self._own is None
        try:
            if self._own is None and self._link is None:
                self._own = ForkServer(self._module)
            if self._own is not None and self._link is None:
                self._link = ForkServerLink(self._own.connect(), self._own.pid)
            assert self._link is not None
            return await self._link.fork((*fds, *kept.values()), tuple(kept), self._module)
        except (ForkServerLost, OSError) as error:
            logger.warning("%s; the next worker takes longer to start", error)
            self.close()
            return None
        except BaseException:
            self._unlink()  # an answer that nobody awaits would be taken for the next one's
            if not is_new:
                self.close()  # a new fork server goes on with its imports, for the next worker
            raise

    def _spawn(self, fds: tuple[int, ...], kept: Mapping[str, int]) -> Child:
        arguments = [part for option, fd in kept.items() for part in (option, str(fd))]
        kept_fds = tuple(kept.values())
        return spawn(self._module, fds, kept_fds=kept_fds, arguments=arguments, env_extra=WORKER_ENVIRONMENT)
