"""What the tests of decoding share: decoders, and jobs that do not end."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from stentor.server.audio.decode import AudioDecoder, Decoded
from stentor.server.config.limits import AudioLimits
from stentor.server.sandbox.killable_child import KillableChild
from stentor.tests.server.audio.hostile import (
    silent_opus,
)
from stentor.tests.server.audio.voices import tone
from stentor.tests.server.harness import until
from stentor.tests.support.whole_audio import encode_whole

LONG = silent_opus(450) + bytes(3 << 20)
"""Takes half a second to decode, and is large."""


Use = Callable[[AudioDecoder], Awaitable[object]]


@asynccontextmanager
async def decoding(**limits: float) -> AsyncIterator[AudioDecoder]:
    decoder = AudioDecoder(AudioLimits(**limits))  # type: ignore[arg-type]
    try:
        yield decoder
    finally:
        decoder.close()


def run(use: Use, **limits: float) -> None:
    async def body() -> None:
        async with decoding(**limits) as decoder:
            await use(decoder)

    asyncio.run(body())


def child_of(decoder: AudioDecoder) -> KillableChild:
    """Of its one process."""
    (worker,) = decoder._pool._workers
    return worker.process


async def standing(decoder: AudioDecoder) -> asyncio.Future[Decoded]:
    """A sound whose decoding has begun and does not go on: its one process is stopped, until it is killed."""
    await decoder.decode(encode_whole(tone(1), "wav", 16_000))
    os.kill(decoder.pids[0], signal.SIGSTOP)
    running = asyncio.ensure_future(decoder.decode(LONG))
    await until(lambda: child_of(decoder)._busy)
    return running


@contextmanager
def in_time(decoder: AudioDecoder) -> Iterator[None]:
    """The process survives the block. The kernel ends it where a sound, or half a minute of one, takes it 1.7 seconds
    of the processor: see the test of a file that is all headers."""
    before = decoder.pids
    yield
    assert decoder.pids == before


async def loop_busy(work: Coroutine[Any, Any, object]) -> float:
    """CPU seconds that the loop did one thing, at most, until ``work`` was done."""
    task = asyncio.ensure_future(work)
    worst = 0.0
    while not task.done():
        began = time.thread_time()
        await asyncio.sleep(0.002)
        worst = max(worst, time.thread_time() - began)
    return worst
