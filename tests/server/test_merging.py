import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from stentor.server.api.common.merging import merge

pytestmark = pytest.mark.anyio


class Source:
    def __init__(self, items: int, *, fails: bool = False, hangs: bool = False) -> None:
        self.closed = False
        self.read = 0
        self._items, self._fails, self._hangs = items, fails, hangs

    async def run(self) -> AsyncGenerator[int, None]:
        try:
            for item in range(self._items):
                await asyncio.sleep(0)
                self.read += 1
                yield item
            if self._hangs:
                await asyncio.Event().wait()
            if self._fails:
                raise RuntimeError("broken")
        finally:
            self.closed = True


async def test_every_item_of_every_source_arrives_in_its_sources_order() -> None:
    sources = [Source(items) for items in (0, 1, 7, 30)]
    seen: dict[int, list[int]] = {}
    async for items in merge([source.run() for source in sources]):
        for number, item in items:
            seen.setdefault(number, []).append(item)
    assert seen == {1: [0], 2: list(range(7)), 3: list(range(30))}
    assert all(source.closed for source in sources)


async def test_closing_in_the_middle_closes_every_source() -> None:
    sources = [Source(100), Source(1, hangs=True)]
    async with aclosing(merge([source.run() for source in sources])) as merged:
        await anext(merged)
    assert all(source.closed for source in sources)


async def test_a_failing_source_fails_the_whole_with_its_own_error() -> None:
    sources = [Source(3, fails=True), Source(1, hangs=True)]
    with pytest.raises(RuntimeError, match="broken"):
        async for _ in merge([source.run() for source in sources]):
            pass
    assert all(source.closed for source in sources)


async def test_a_source_is_not_read_far_ahead_of_the_reader() -> None:
    source = Source(1000)
    async with aclosing(merge([source.run()])) as merged:
        await anext(merged)
        for _ in range(50):
            await asyncio.sleep(0)
        assert source.read <= 4
