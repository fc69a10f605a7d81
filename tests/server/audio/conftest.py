"""A decoder for the tests that leave its process alive: another one takes 0.3 s of the processor."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from stentor.server.audio.decode import AudioDecoder


@pytest.fixture(scope="module")
def run_shared() -> Iterator[Callable[[Callable[[AudioDecoder], Awaitable[object]]], None]]:
    """Runs what is done with it, within the limits of a server that was told none."""
    decoder = AudioDecoder()

    async def body(use: Callable[[AudioDecoder], Awaitable[object]]) -> None:
        await use(decoder)

    with asyncio.Runner() as runner:
        yield lambda use: runner.run(body(use))
        decoder.close()
