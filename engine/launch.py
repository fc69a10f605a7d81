"""Starts an engine process. Light, so that it can come before whatever else its owner imports."""

import time
from typing import NamedTuple

from stentor.protocols.actors import StartEngine
from stentor.protocols.codec import encoder
from stentor.protocols.config import EngineConfig

from .channel import ChannelPair, Endpoint
from .process import Child, spawn


class EngineProcess(NamedTuple):
    """An engine that has been told what to serve. Its owner must :meth:`close` it."""

    endpoint: Endpoint
    child: Child
    began: float
    """``time.monotonic()`` when it was started."""

    def close(self) -> None:
        """End it, by force if it still runs, and block until it is dead. May be called again."""
        self.endpoint.close()
        self.child.close()


def launch_engine(config: EngineConfig) -> EngineProcess:
    """Start an engine, which starts its worker at once. Raises :class:`.channel.ChannelError` and OSError."""
    began = time.monotonic()
    pair = ChannelPair.create()
    try:
        child = spawn("stentor.engine.entry", pair.child_fds)
    except BaseException:
        pair.parent.close()
        raise
    process = EngineProcess(pair.parent, child, began)
    try:
        pair.parent.watch(child.pid, child.pidfd)
        pair.parent.try_send(encoder.encode(StartEngine(config)))
    except BaseException:
        process.close()
        raise
    return process
