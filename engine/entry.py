"""The engine process: starts its worker, then runs the engine loop until it is told to end or its owner is gone."""

import contextlib
import gc
import logging
import sys

import anyio

from stentor.protocols.actors import EngineReady, Failed, Progress, Shutdown, StartEngine, StartWorker, WorkerReady
from stentor.protocols.codec import decode_engine, decode_engine_worker, encoder
from stentor.protocols.config import EngineConfig

from .channel import ChannelPair, Endpoint, PeerDied
from .logs import set_up_logging
from .loop import EngineLoop, WorkerLost
from .process import Child, become_child, spawn
from .scheduler import Scheduler

logger = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 5.0

WORKER_ENVIRONMENT = {
    # compute threads must give the cores back soon after a step: the server and this process need them
    "GOMP_SPINCOUNT": "10000",
}


async def run(client: Endpoint) -> int:
    """Serves one client; returns the exit code."""
    frames = await client.receive()
    match decode_engine.decode(frames[0]):
        case StartEngine(config=config):
            pass
        case Shutdown():
            return 0
        case other:
            raise RuntimeError(f"expected StartEngine first, got {type(other).__name__}")
    set_up_logging(config.worker.log_level, config.worker.log_format, "engine")
    pair = ChannelPair.create()
    child = spawn(config.worker_module, pair.child_fds, env_extra=WORKER_ENVIRONMENT)
    pair.parent.watch(child.pid, child.pidfd)
    try:
        return await _serve(client, pair.parent, child, config)
    finally:
        with anyio.CancelScope(shield=True):
            await _end_worker(pair.parent, child)


async def _serve(client: Endpoint, worker: Endpoint, child: Child, config: EngineConfig) -> int:
    await worker.send(encoder.encode(StartWorker(config.worker)))
    try:
        ready = await _await_worker(client, worker)
    except WorkerLost as lost:
        await client.send(encoder.encode(Failed(str(lost))))
        return 1
    except PeerDied:
        await child.wait()
        await client.send(encoder.encode(Failed(f"the worker process was lost while starting: {child.description}")))
        return 1
    scheduler = Scheduler(
        num_blocks=ready.num_blocks,
        block_size=config.worker.block_size,
        max_num_seqs=config.worker.max_num_seqs,
        max_num_batched_tokens=config.worker.max_num_batched_tokens,
        max_model_len=ready.max_model_len,
        config=config.scheduler,
    )
    await client.send(
        encoder.encode(
            EngineReady(ready.num_blocks, config.worker.block_size, ready.max_model_len, ready.memory, ready.notes)
        )
    )
    # what lives until the end need not be walked again: a full collection costs milliseconds in mid-step
    gc.freeze()
    try:
        await EngineLoop(client, worker, child, scheduler).run()
    except WorkerLost as lost:
        await client.send(encoder.encode(Failed(str(lost))))
        return 1
    return 0


async def _await_worker(client: Endpoint, worker: Endpoint) -> WorkerReady:
    """Passes progress on until the worker is ready."""
    while True:
        for frame in await worker.receive():
            match decode_engine_worker.decode(frame):
                case WorkerReady() as ready:
                    return ready
                case Progress():
                    await client.send(frame)
                case Failed(message=why):
                    raise WorkerLost(why)
                case other:
                    raise RuntimeError(f"{type(other).__name__} came before the worker was ready")


async def _end_worker(worker: Endpoint, child: Child) -> None:
    with contextlib.suppress(PeerDied):
        worker.try_send(encoder.encode(Shutdown()))
    with anyio.move_on_after(_SHUTDOWN_SECONDS):
        await child.wait()
    child.close()
    worker.close()


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
