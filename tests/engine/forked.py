"""Engines whose workers are forked from one process that has imported torch, once for all tests of this process."""

import atexit
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import anyio

from stentor.engine.client.client import EngineClient
from stentor.engine.processes.fork_server_owner import ForkServer
from stentor.engine.processes.launch import launch_engine
from stentor.loadtest.processes import named
from stentor.protocols.ipc.config import EngineConfig

Victim = Literal["worker", "engine"]


@cache
def fork_server() -> ForkServer:
    """Of real workers. An engine that is given none starts its own, which takes 2 s of CPU."""
    server = ForkServer("stentor.engine.worker.process")
    atexit.register(server.close)
    return server


def client_of(config: EngineConfig, weights_fds: Sequence[int] = (), lease_fd: int | None = None) -> EngineClient:
    """Of an engine that has been launched already; :meth:`EngineClient.run` serves it, and ends it."""
    return EngineClient(config, process=launch_engine(config, weights_fds, fork_server(), lease_fd))


@asynccontextmanager
async def served(client: EngineClient, seconds: float = 90) -> AsyncIterator[EngineClient]:
    """The client once its engine is ready. The engine ends with the block, which may take ``seconds``."""
    with anyio.fail_after(seconds):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run)
            await client.wait_started()
            try:
                yield client
            finally:
                tasks.cancel_scope.cancel()


def kill(client: EngineClient, victim: Victim) -> None:
    pid = worker_of(client) if victim == "worker" else client.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def told_of_losses(client: EngineClient, *, workers: int | None = None, engines: int = 0) -> None:
    """Wait until the client counts so many: of a loss it learns later than of answers that were complete before.

    ``workers``: None if they do not matter.
    """
    with anyio.fail_after(60):
        while client.engine_restarts < engines or client.stats.worker_restarts < (workers or 0):
            await anyio.sleep(0.001)
    assert client.engine_restarts == engines
    assert workers in (None, client.stats.worker_restarts)


def worker_of(client: EngineClient) -> int | None:
    """The worker of its engine, which holds a descriptor of that process; None while there is none."""
    return next(iter(workers_of(client)), None)


def workers_of(client: EngineClient) -> list[int]:
    """All of them, in the order in which they were started, which is that of their ranks."""
    watched: set[str] = set()
    for info in Path(f"/proc/{client.pid}/fdinfo").glob("*"):
        try:
            watched |= {line.split()[1] for line in info.read_text().splitlines() if line.startswith("Pid:")}
        except FileNotFoundError:  # closed meanwhile
            continue
    return sorted(pid for pid in named(fork_server().pid, "stentor-worker") if str(pid) in watched)
