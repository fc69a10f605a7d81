import asyncio
import logging

import pytest

from stentor.server.common.task_scope import TaskScope

pytestmark = pytest.mark.anyio


async def _fail(words: str = "broken") -> None:
    raise ValueError(words)


async def _stay() -> None:
    await asyncio.Event().wait()


async def test_whoever_leaves_a_scope_leaves_no_task() -> None:
    ended = []

    async def work() -> None:
        try:
            await _stay()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async with TaskScope("things") as tasks:
        tasks.start(work())
        tasks.submit(work())
        await asyncio.sleep(0)
        assert len(tasks) == 2
    assert ended == [True, True]
    assert len(tasks) == 0


async def test_what_breaks_in_a_task_that_nobody_awaits_is_logged_and_ends_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with TaskScope("things") as tasks:
        tasks.start(_fail())
        other = tasks.submit(asyncio.sleep(0, "done"))
        assert await other == "done"
    (record,) = caplog.records
    assert record.getMessage() == "things: a task failed"
    trace = record.__dict__["trace"]
    assert "ValueError" in trace
    assert "broken" not in trace  # which may be a client's words


async def test_what_breaks_in_a_task_that_is_awaited_is_raised_there_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with TaskScope("things") as tasks:
        task = tasks.submit(_fail())
        with pytest.raises(ValueError, match="broken"):
            await task
    assert not caplog.records


async def test_a_task_that_does_not_end_is_not_waited_for_any_longer_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    let_go = asyncio.Event()

    async def stubborn() -> None:
        try:
            await _stay()
        except asyncio.CancelledError:
            await let_go.wait()

    tasks = TaskScope("things", close_seconds=0.0)
    tasks.start(stubborn())
    await asyncio.sleep(0)
    with caplog.at_level(logging.ERROR):
        await tasks.aclose()
    assert [record.getMessage() for record in caplog.records] == [
        "things: 1 tasks do not end, 0 s after they were cancelled"
    ]
    let_go.set()
    while tasks:
        await asyncio.sleep(0)


async def test_a_scope_that_is_closed_starts_nothing() -> None:
    tasks = TaskScope("things")
    await tasks.aclose()
    await tasks.aclose()
    with pytest.raises(RuntimeError, match="things: no more of them are started"):
        tasks.start(_stay())


async def test_a_task_may_close_the_scope_that_it_is_in() -> None:
    tasks = TaskScope("things")

    async def closing() -> str:
        await tasks.aclose()
        return "done"

    other = tasks.submit(_stay())
    assert await tasks.submit(closing()) == "done"
    assert other.cancelled()
