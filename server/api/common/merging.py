"""The generations of several prompts of one request, as one stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec

from ...common.task_scope import TaskScope
from ...http.sse import Batches

T = TypeVar("T")


class _End(msgspec.Struct, frozen=True):
    """A source has ended; with an error or without."""

    error: Exception | None


async def merge(sources: Sequence[Batches[T]]) -> AsyncGenerator[list[tuple[int, T]], None]:
    """Yields items as they come, each with the number of its source.

    Every source is closed when this generator is. Raises the error of the first failing source.
    """
    # Bounded: a source is not read while as many items wait as there are sources.
    queue: asyncio.Queue[tuple[int, T] | _End] = asyncio.Queue(len(sources))
    async with TaskScope("generations of one request") as tasks:
        for number, source in enumerate(sources):
            tasks.start(_forward(number, source, queue))
        remaining = len(sources)
        while remaining:
            arrived = [await queue.get()]
            while not queue.empty():
                arrived.append(queue.get_nowait())
            ends = [one for one in arrived if isinstance(one, _End)]
            if items := [one for one in arrived if not isinstance(one, _End)]:
                yield items
            for end in ends:
                if end.error is not None:
                    raise end.error
            remaining -= len(ends)


async def _forward(number: int, source: Batches[T], queue: asyncio.Queue[tuple[int, T] | _End]) -> None:
    error = None
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put((number, item))
    except Exception as failure:
        error = failure
    await queue.put(_End(error))
