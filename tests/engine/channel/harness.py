"""Starts the other side of a channel, and sees to it that nothing of it stays."""

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stentor.engine.channel import ChannelPair, Endpoint
from stentor.engine.channel.bells import LoopBell, LoopBells
from stentor.engine.processes.process import Child, spawn
from stentor.tests.engine.channel.child_programs import MODULE


@contextmanager
def other_side(program: str, *, capacity: int = 1 << 16) -> Iterator[tuple[Endpoint, Child]]:
    """A child process that runs ``program`` of :mod:`.child_programs`, and our end of a channel to it."""
    pair = ChannelPair.create(capacity)
    with pair.parent as endpoint:
        child = spawn(MODULE, pair.child_fds, arguments=[program])
        try:
            endpoint.watch(child.pid, child.pidfd)
            yield endpoint, child
        finally:
            child.close()


@contextmanager
def both_ends(capacity: int = 1 << 16) -> Iterator[tuple[Endpoint, Endpoint]]:
    """Two ends in this one process, each taking the process itself for its peer."""
    pair = ChannelPair.create(capacity)
    with pair.parent as parent, Endpoint.attach([os.dup(fd) for fd in pair.child_fds], os.getpid()) as child:
        parent.watch(os.getpid())
        yield parent, child


def count_wakes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lists what loops are told from now on: that a bell rang, or that a peer exited."""
    wakes: list[str] = []
    for kind, name in ((LoopBell, "_on_ring"), (LoopBells, "_on_exit")):
        inner = getattr(kind, name)

        def counted(self: LoopBell | LoopBells, name: str = name, inner: Callable[..., None] = inner) -> None:
            wakes.append(name)
            inner(self)

        monkeypatch.setattr(kind, name, counted)
    return wakes


def ends_within(pidfd: int, seconds: float) -> bool:
    """Whether the process of ``pidfd`` is dead, or dies within ``seconds``."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
