"""An engine client over real engine and worker processes that compute nothing."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from stentor.engine.client.client import EngineClient
from stentor.engine.client.stream import RequestStream
from stentor.protocols.ipc.actors import Finished, SequenceTokens
from stentor.protocols.ipc.config import EngineConfig, RecoveryConfig, WorkerConfig

DEFAULTS = RecoveryConfig()


def odd_config(manner: str, recovery: RecoveryConfig = DEFAULTS) -> EngineConfig:
    """An engine whose worker behaves as :mod:`.odd_worker` says of ``manner``."""
    worker = WorkerConfig(
        manner,
        max_num_seqs=64,
        max_num_batched_tokens=256,
        max_mixed_prefill_tokens=256,
        max_prefill_chunk=256,
        block_size=16,
    )
    return EngineConfig(worker, recovery=recovery, worker_module="stentor.tests.engine.odd_worker")


@asynccontextmanager
async def running(manner: str, recovery: RecoveryConfig = DEFAULTS) -> AsyncIterator[EngineClient]:
    """A client whose ``run`` lasts as long as the block, and no longer."""
    client = EngineClient(odd_config(manner, recovery))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.run)
        try:
            yield client
        finally:
            tasks.cancel_scope.cancel()


def delivered(streams: Sequence[RequestStream]) -> int:
    """Tokens that streams have got which have not ended."""
    return sum(len(tokens) for stream in streams for tokens in stream._open.values())


async def read_all(stream: RequestStream) -> tuple[dict[int, list[int]], dict[int, Finished]]:
    """Tokens and terminal message of each sequence; fails on a second terminal message or anything after it."""
    tokens: dict[int, list[int]] = {}
    ends: dict[int, Finished] = {}
    async for events in stream:
        for event in events:
            if isinstance(event, SequenceTokens):
                assert event.index not in ends, "tokens after the end"
                tokens.setdefault(event.index, []).extend(event.tokens)
            elif isinstance(event, Finished):
                assert event.index not in ends, "two terminal messages"
                ends[event.index] = event
    return tokens, ends
