"""Several generations read as one, for requests with several prompts."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[list[tuple[int, T]], None]:
    """Yields what has come since the last step, each item with the number of its source.

    Every source is closed when this generator is, which must happen in the task that iterates it.
    Raises what the first failing source raises.
    """
    failures: list[Exception] = []
    # One item a source may wait: a source is not read further before its last item was taken.
    sender, receiver = anyio.create_memory_object_stream[tuple[int, T]](len(sources))
    async with anyio.create_task_group() as tasks, receiver:
        async with sender:
            for number, source in enumerate(sources):
                tasks.start_soon(_forward, number, source, sender.clone(), failures)
        try:
            async for first in receiver:
                items = [first]
                while True:
                    try:
                        items.append(receiver.receive_nowait())
                    except (anyio.WouldBlock, anyio.EndOfStream):
                        break
                yield items
                if failures:
                    break
        finally:
            tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]


async def _forward(
    number: int,
    source: AsyncGenerator[T, None],
    sender: MemoryObjectSendStream[tuple[int, T]],
    failures: list[Exception],
) -> None:
    async with sender, aclosing(source):
        try:
            async for item in source:
                await sender.send((number, item))
        except Exception as error:
            # Told by the reader, so that it is not wrapped into a group.
            failures.append(error)
