"""The engine process: starts its worker, then runs the engine loop until it is told to end or its owner is gone."""

import contextlib
import gc
import logging
import sys

import anyio

from stentor.protocols.actors import EngineReady, Failed, Progress, Shutdown, StartEngine, StartWorker, WorkerReady
from stentor.protocols.codec import decode_engine, decode_engine_worker, encoder
from stentor.protocols.config import EngineConfig

from .channel import ChannelError, ChannelPair, Endpoint, PeerDied
from .groups import first_cause, one_line
from .logs import set_up_logging
from .loop import EngineLoop, WorkerLost
from .process import Child, become_child, spawn
from .scheduler import Scheduler

logger = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 5.0
_STARTING = "starting the worker"
_COLLECTIONS = (5_000, 100, 1_000_000)
"""Objects, young collections and middle ones that bring the next collection on. A full one would walk whatever waits,
and stop a step for as long as several take; nothing here needs it, for requests leave no cycles behind."""

WORKER_ENVIRONMENT = {
    # compute threads must give the cores back soon after a step: the server and this process need them
    "GOMP_SPINCOUNT": "10000",
}


class _ToldToEnd(Exception):
    """The client wants no engine any more."""


async def run(client: Endpoint) -> int:
    """Serves one client; returns the exit code. Raises :class:`PeerDied` when the client is gone."""
    first, *rest = map(decode_engine.decode, await client.receive())
    match first:
        case StartEngine(config=config) if not rest:
            pass
        case Shutdown():
            return 0
        case StartEngine() if all(isinstance(message, Shutdown) for message in rest):
            return 0
        case other:
            raise RuntimeError(f"expected StartEngine alone first, got {type(other).__name__} and {len(rest)} more")
    set_up_logging(config.worker.log_level, config.worker.log_format, "engine")
    try:
        return await _run_worker(client, config)
    except _ToldToEnd:
        return 0
    except WorkerLost as lost:
        why = str(lost)
    except PeerDied:
        raise
    except Exception as error:
        logger.exception("the engine failed")
        cause = first_cause(error)
        why = f"the engine failed: {type(cause).__name__}: {one_line(cause)}"
    await client.send(encoder.encode(Failed(why)))
    return 1


async def _run_worker(client: Endpoint, config: EngineConfig) -> int:
    """Starts the worker, serves with it, ends it. Raises :class:`PeerDied` when the client is gone."""
    pair = ChannelPair.create()
    try:
        child = spawn(config.worker_module, pair.child_fds, env_extra=WORKER_ENVIRONMENT)
    except OSError as error:
        pair.parent.close()
        raise WorkerLost(f"cannot start the worker process: {one_line(error)}") from error
    grace = 0.0  # while it loads it does not listen, and has nothing to lose
    try:
        pair.parent.watch(child.pid, child.pidfd)
        ready = await _start_worker(client, pair.parent, child, config)
        grace = _SHUTDOWN_SECONDS
        await _serve(client, pair.parent, child, config, ready)
        return 0
    finally:
        with anyio.CancelScope(shield=True):
            await _end_worker(pair.parent, child, grace)


async def _serve(client: Endpoint, worker: Endpoint, child: Child, config: EngineConfig, ready: WorkerReady) -> None:
    scheduler = Scheduler(
        num_blocks=ready.num_blocks,
        block_size=ready.limits.block_size,
        max_num_seqs=ready.limits.max_num_seqs,
        max_num_batched_tokens=ready.limits.max_num_batched_tokens,
        max_mixed_prefill_tokens=ready.limits.max_mixed_prefill_tokens,
        max_model_len=ready.max_model_len,
        config=config.scheduler,
    )
    await client.send(
        encoder.encode(
            EngineReady(ready.num_blocks, ready.limits.block_size, ready.max_model_len, ready.memory, ready.notes)
        )
    )
    # what lives until the end need not be walked again: a full collection costs milliseconds in mid-step
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    await EngineLoop(client, worker, child, scheduler).run()


async def _start_worker(client: Endpoint, worker: Endpoint, child: Child, config: EngineConfig) -> WorkerReady:
    """Listens to both sides until the worker is ready.

    Raises :class:`WorkerLost`, :class:`_ToldToEnd`, and :class:`PeerDied` when the client is gone.
    """
    failure: BaseException
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_await_shutdown, client)
            ready = await _await_worker(client, worker, child, StartWorker(config.worker))
            tasks.cancel_scope.cancel()
        return ready
    except* (WorkerLost, PeerDied, _ToldToEnd) as group:
        failure = first_cause(group)
    raise failure


async def _await_shutdown(client: Endpoint) -> None:
    while True:
        for frame in await client.receive():
            match decode_engine.decode(frame):
                case Shutdown():
                    raise _ToldToEnd
                case other:
                    raise RuntimeError(f"{type(other).__name__} came before the engine was ready")


async def _await_worker(client: Endpoint, worker: Endpoint, child: Child, start: StartWorker) -> WorkerReady:
    """Passes progress on until the worker is ready; its own start is the first phase."""
    await client.send(encoder.encode(Progress(_STARTING, 0, 1)))
    starting = True
    with contextlib.suppress(PeerDied):  # told by the receiving side, once it has read what the worker still sent
        await worker.send(encoder.encode(start))
    while True:
        try:
            frames = await worker.receive()
        except PeerDied:
            await child.wait()
            raise WorkerLost(f"the worker process was lost while starting: {child.description}") from None
        if starting:
            starting = False
            await client.send(encoder.encode(Progress(_STARTING, 1, 1)))
        for frame in frames:
            match decode_engine_worker.decode(frame):
                case WorkerReady() as ready:
                    return ready
                case Progress():
                    await client.send(frame)
                case Failed(message=why):
                    raise WorkerLost(why)
                case other:
                    raise RuntimeError(f"{type(other).__name__} came before the worker was ready")


async def _end_worker(worker: Endpoint, child: Child, grace: float) -> None:
    """Ends the worker, by force ``grace`` seconds after it was told to."""
    with contextlib.suppress(ChannelError):
        worker.try_send(encoder.encode(Shutdown()))
    # a worker that waits for room in a ring that nobody empties any more must wake up and end
    worker.close()
    with anyio.move_on_after(grace):
        await child.wait()
    child.close()


def main() -> int:
    inherited = become_child("stentor-engine")
    client = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        return anyio.run(run, client, backend_options={"use_uvloop": True})
    except PeerDied:
        # the server is gone: nobody is left to tell
        return 0


if __name__ == "__main__":
    sys.exit(main())
