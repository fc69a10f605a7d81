"""Starts an engine process. Imports little, so that it can run before its owner's other imports."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from stentor.protocols.ipc.actors import Shutdown, StartEngine
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.config import EngineConfig

from ..channel import ChannelError, ChannelPair, Endpoint
from ..channel.arena import Arena
from .fork_server_owner import ForkServer
from .process import Child, spawn


class EngineProcess(NamedTuple):
    """An engine that has got its configuration. Its owner must :meth:`aclose` it, or :meth:`close` it without an event
    loop."""

    endpoint: Endpoint
    child: Child
    arena: Arena
    """The memory of its requests' media; later engines use the same."""
    began: float
    """``time.monotonic()`` when it was started."""
    again: Callable[[EngineConfig], "EngineProcess"]
    """Starts another with the same arguments, but for the configuration."""
    weights_fds: Sequence[int] = ()
    """Memory files of prepared weights, not closed by it."""

    async def aclose(self, grace: float = 0.0) -> bool:
        """End it, by force after ``grace`` seconds; False if it does not die.

        May be called again.
        """
        self.endpoint.close()
        return await self.child.aclose(grace)

    async def shut_down(self, grace: float) -> None:
        """Ask it to end, and end it by force after ``grace`` seconds."""
        with contextlib.suppress(ChannelError):
            self.endpoint.try_send(encoder.encode(Shutdown()))
        # closing wakes an engine that waits for space in a ring that nobody reads any more
        await self.aclose(grace)

    def discard_weights(self) -> None:
        """Empty the memory files of prepared weights. To be called once it is dead, and its workers with it."""
        for fd in self.weights_fds:
            os.ftruncate(fd, 0)

    def close(self) -> None:
        """End it by force, blocking."""
        self.endpoint.close()
        self.child.close()


def launch_engine(
    config: EngineConfig,
    weights_fds: Sequence[int] = (),
    fork_server: ForkServer | None = None,
    lease_fd: int | None = None,
    arena: Arena | None = None,
) -> EngineProcess:
    """Start an engine, which starts its worker at once. Raises :class:`..channel.ChannelError` and OSError.

    The caller keeps all arguments open for as long as engines are started.

    Args:
        weights_fds: memory files in which workers keep prepared weights for their successors, one a rank.
        fork_server: forks workers without their imports.
        lease_fd: the lease of a device that other models use too.
        arena: that of an earlier engine; None: a new one.
    """
    began = time.monotonic()
    arena = Arena() if arena is None else arena
    with contextlib.ExitStack() as given:
        named = {"--lease-fd": lease_fd, "--arena-fd": arena.fd}
        kept = {option: fd for option, fd in named.items() if fd is not None}
        arguments: list[str] = []
        if fork_server is not None:
            kept["--fork-server-fd"] = given.enter_context(fork_server.connect()).fileno()
            arguments += ("--forks-from", str(fork_server.pid))
        pairs = [*(("--weights-fd", fd) for fd in weights_fds), *kept.items()]
        arguments += (part for option, fd in pairs for part in (option, str(fd)))
        pair = ChannelPair.create()
        try:
            child = spawn(
                "stentor.engine.core.entry", pair.child_fds, kept_fds=[fd for _, fd in pairs], arguments=arguments
            )
        except BaseException:
            pair.parent.close()
            raise
    process = EngineProcess(
        pair.parent,
        child,
        arena,
        began,
        partial(launch_engine, weights_fds=weights_fds, fork_server=fork_server, lease_fd=lease_fd, arena=arena),
        weights_fds,
    )
    try:
        pair.parent.watch(child.pid, child.pidfd)
        pair.parent.try_send(encoder.encode(StartEngine(config)))
    except BaseException:
        process.close()
        raise
    return process
