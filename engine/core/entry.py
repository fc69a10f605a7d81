"""The engine process: starts its worker, then runs the engine loop until it is shut down or its owner is gone."""

import argparse
import gc
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import anyio
import msgspec

from stentor.protocols.ipc.actors import NO_STATS, Failed, Ping, Progress, Shutdown, StartEngine, WorkerReady
from stentor.protocols.ipc.cache_groups import CacheKind
from stentor.protocols.ipc.codec import decode_engine, encoder
from stentor.protocols.ipc.config import EngineConfig, Weights, WorkerConfig, process_name

from ..channel import Endpoint, PeerDied
from ..processes.exception_groups import first_cause, one_line
from ..processes.logs import set_up_logging
from ..processes.process import become_child
from ..sharing.co_tenants import CoTenants
from .event_publisher import EventPublisher, EventsUnavailable
from .loop import EngineLoop, engine_ready
from .scheduler import Scheduler
from .worker_group import WorkerGroup
from .worker_life import OnProgress, WorkerLost
from .worker_source import WorkerSource

logger = logging.getLogger(__name__)


class WorkerKeeper:
    """Starts workers, and holds each successor to the limits of the first: live requests were accepted under those."""

    def __init__(
        self,
        source: WorkerSource,
        config: WorkerConfig,
        patience: float = 1.0,
    ) -> None:
        self._source = source
        self._config = config
        self._loaded = config.weights
        """The weights of the last worker that was ready."""
        self._patience = patience
        self._first: WorkerReady | None = None
        self._last: WorkerGroup | None = None

    async def start(self, on_progress: OnProgress) -> tuple[WorkerGroup, WorkerReady]:
        """Start a worker group that is ready; the caller must end it.

        Raises :class:`WorkerLost`, after ending what was started. If a worker could not capture a CUDA graph, all later
        ones run without graphs.
        """
        if self._last is not None and self._last.graphs_failed:
            self._give_graphs_up(self._last.verdict)
        try:
            self._last, ready = await self._start(on_progress)
        except WorkerLost as lost:
            if not lost.graphs or lost.final:
                raise
            self._give_graphs_up(str(lost))
            self._last, ready = await self._start(on_progress)
        self._loaded = self._config.weights
        return self._last, ready

    def use_weights(self, weights: Weights) -> None:
        """The next worker loads these weights. To be called while there is no worker."""
        self._config = self._config.with_weights(weights)

    def revert_weights(self) -> None:
        """The next worker loads the weights of the last one that was ready."""
        self.use_weights(self._loaded)

    def discard_weights(self) -> None:
        """The next worker reads its weights from their files. To be called while there is no worker."""
        self._source.discard_weights()

    def _give_graphs_up(self, why: str | None) -> None:
        if self._config.cuda_graphs:
            self._config = msgspec.structs.replace(self._config, cuda_graphs=False)
            logger.warning("%s; the engine goes on without CUDA graphs", why)

    async def _start(self, on_progress: OnProgress) -> tuple[WorkerGroup, WorkerReady]:
        group = await WorkerGroup.spawn(self._source, self._config.group_size, self._patience)
        try:
            # The configuration stays the same but for graphs: a worker finds what its predecessor cached by it.
            ready = await group.start(self._config, on_progress)
            first = self._first = self._first or ready
            if ready.limits != first.limits or ready.max_model_len < first.max_model_len:
                raise WorkerLost(
                    f"the new worker takes sequences of {ready.max_model_len} tokens in steps of {ready.limits}; "
                    f"the first one took {first.max_model_len} in {first.limits}"
                )
            if _kinds(ready) != _kinds(first):
                raise WorkerLost(f"the new worker keeps {ready.groups}; the first one kept {first.groups}")
        except BaseException as error:
            # A worker does not listen while it loads, and has nothing to lose.
            dead = await group.end(0.0)
            if not dead and isinstance(error, WorkerLost) and not error.stuck:
                raise WorkerLost(str(error), stuck=True) from error
            raise
        return group, ready


def _kinds(ready: WorkerReady) -> list[tuple[CacheKind, int]]:
    """The properties of cache groups that block tables and plans rely on."""
    return [(group.kind, group.window) for group in ready.groups]


_SHUTDOWN_SECONDS = 5.0
_COLLECTIONS = (5_000, 100, 1_000_000)
"""Thresholds of the three generations of the garbage collector. A full collection would walk all waiting requests and
delay a step by the time of several. None is needed: requests leave no reference cycles."""


class EndRequested(Exception):
    """The client asked for the engine's end."""


class _LoopFailed(Exception):
    """The loop failed by a bug of its own (``__cause__``). A new engine may succeed."""


async def run(
    client: Endpoint,
    weights_fds: Sequence[int] = (),
    fork_server_fd: int | None = None,
    fork_server_pid: int | None = None,
    lease_fd: int | None = None,
    arena_fd: int | None = None,
) -> int:
    """Serve one client; returns the exit code. Raises :class:`PeerDied` if the client is gone.

    Args:
        weights_fds: memory files for prepared weights, one a rank.
        fork_server_fd: socket to a fork server, if there is one.
        fork_server_pid: its pid.
        lease_fd: the lease on a device that several models share, if there is one.
        arena_fd: memory file of the requests' media, if there is one.
    """
    first, *rest = map(decode_engine.decode, await client.receive())
    rest = [message for message in rest if not isinstance(message, Ping)]  # the next one is answered
    match first:
        case StartEngine(config=config) if not rest:
            pass
        case Shutdown():
            return 0
        case StartEngine() if all(isinstance(message, Shutdown) for message in rest):
            return 0
        case other:
            raise RuntimeError(f"expected StartEngine alone first, got {type(other).__name__} and {len(rest)} more")
    named = process_name("engine", config.worker.name)
    set_up_logging(config.worker.log_level, config.worker.log_format, named)
    source = WorkerSource(config.worker_module, weights_fds, fork_server_fd, fork_server_pid, lease_fd, arena_fd)
    co_tenants = None if lease_fd is None else CoTenants(lease_fd, config.worker.lease_member)
    events: EventPublisher | None = None
    final = True
    try:
        if (published := config.scheduler.kv_events) is not None:
            events = EventPublisher(published, config.worker.replica)
        return await _run_worker(client, config, source, co_tenants, events)
    except EndRequested:
        return 0
    except WorkerLost as lost:
        why, final = str(lost), lost.final
    except EventsUnavailable as error:
        why = str(error)
    except PeerDied:
        raise
    except Exception as error:
        logger.exception("the engine failed")
        final = not isinstance(error, _LoopFailed)
        cause = first_cause(error if final else error.__cause__ or error)
        why = f"the engine failed: {type(cause).__name__}: {one_line(cause)}"
    finally:
        source.close()
        if events is not None:
            events.close()
    await client.send(encoder.encode(Failed(why, final)))
    return 1


async def _run_worker(
    client: Endpoint,
    config: EngineConfig,
    source: WorkerSource,
    co_tenants: CoTenants | None,
    events: EventPublisher | None,
) -> int:
    """Start the first worker, serve, end the last worker. Raises :class:`PeerDied` if the client is gone."""
    keeper = WorkerKeeper(source, config.worker, config.recovery.start_patience)
    worker, ready = await _start_worker(client, keeper)
    loop: EngineLoop | None = None
    try:
        scheduler = Scheduler(ready, config)
        loop = EngineLoop(client, worker, keeper, scheduler, config.recovery, co_tenants=co_tenants, events=events)
        await client.send(encoder.encode(engine_ready(ready)))
        # Objects that live until the end need no further walks: a full collection costs milliseconds within a step.
        gc.freeze()
        gc.set_threshold(*_COLLECTIONS)
        await _serve(loop)
        return 0
    finally:
        await (worker if loop is None else loop.worker).end(_SHUTDOWN_SECONDS)


async def _serve(loop: EngineLoop) -> None:
    """Run the loop. Raises :class:`_LoopFailed` for any error other than a lost worker or client."""
    try:
        await loop.run()
    except (WorkerLost, PeerDied):
        raise
    except Exception as error:
        raise _LoopFailed from error


async def _start_worker(client: Endpoint, keeper: WorkerKeeper) -> tuple[WorkerGroup, WorkerReady]:
    """Start the first worker, and meanwhile listen to the client.

    Raises :class:`WorkerLost`, :class:`EndRequested`, and :class:`PeerDied` if the client is gone.
    """

    async def pass_on(progress: Progress) -> None:
        await client.send(encoder.encode(progress))

    started: list[tuple[WorkerGroup, WorkerReady]] = []
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_await_shutdown, client)
            started.append(await keeper.start(pass_on))
            tasks.cancel_scope.cancel()
    except* (WorkerLost, PeerDied, EndRequested) as group:
        failure = first_cause(group)
    if failure is not None:
        for worker, _ in started:
            await worker.end(0.0)
        raise failure
    return started[0]


async def _await_shutdown(client: Endpoint) -> None:
    while True:
        for frame in await client.receive():
            match decode_engine.decode(frame):
                case Shutdown():
                    raise EndRequested
                case Ping():
                    client.try_send(encoder.encode(NO_STATS))
                case other:
                    raise RuntimeError(f"{type(other).__name__} came before the engine was ready")


class _Descriptors(NamedTuple):
    """Descriptors from the command line, named as in :func:`run`; None if absent."""

    weights_fds: list[int]
    fork_server_fd: int | None
    fork_server_pid: int | None
    lease_fd: int | None
    arena_fd: int | None

    @classmethod
    def read(cls, arguments: tuple[str, ...]) -> "_Descriptors":
        parser = argparse.ArgumentParser(prog="stentor-engine", allow_abbrev=False)
        parser.add_argument("--weights-fd", type=int, action="append", default=[], dest="weights_fds")
        parser.add_argument("--fork-server-fd", type=int)
        parser.add_argument("--forks-from", type=int, dest="fork_server_pid")
        parser.add_argument("--lease-fd", type=int)
        parser.add_argument("--arena-fd", type=int)
        given = cls(**vars(parser.parse_args(arguments)))
        for fd in (*given.weights_fds, given.fork_server_fd, given.lease_fd, given.arena_fd):
            if fd is not None:
                os.set_inheritable(fd, False)
        return given


def main() -> int:
    inherited = become_child("stentor-engine")
    client = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        return anyio.run(
            partial(run, client, *_Descriptors.read(inherited.arguments)), backend_options={"use_uvloop": True}
        )
    except PeerDied:
        # the server is gone: nobody is left to tell
        return 0


if __name__ == "__main__":
    sys.exit(main())
