"""Children that run under one supervisor, with restarts whose delays take no time."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from stentor.engine.processes.restart_policy import RestartPolicy, Restarts
from stentor.engine.processes.supervisor import ChildFailed, PermanentFailure, Supervisor


class Slept:
    """A sleep that takes no time."""

    def __init__(self) -> None:
        self.spans: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.spans.append(seconds)
        await anyio.sleep(0)


def failing(times: int) -> Callable[[], Awaitable[None]]:
    """A child that fails so many times, then ends well."""
    left = iter(range(times))

    async def child() -> None:
        await anyio.sleep(0)
        if next(left, None) is not None:
            raise OSError("broken")

    return child


@pytest.mark.anyio
async def test_a_child_that_is_never_restarted_takes_the_others_down_with_it() -> None:
    ended: list[str] = []

    async def sibling() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("sibling")

    async def child() -> None:
        await anyio.sleep(0)
        raise OSError("broken")

    supervisor = Supervisor()

    async def supervise() -> None:
        async with supervisor:
            supervisor.start("sibling", sibling)
            supervisor.start("child", child)

    with pytest.raises(ExceptionGroup) as raised:
        await supervise()
    [failure] = raised.value.exceptions
    assert isinstance(failure, ChildFailed)
    assert str(failure) == "child failed and is not started again"
    assert isinstance(failure.__cause__, OSError)
    assert ended == ["sibling"]


@pytest.mark.anyio
async def test_a_child_is_started_again_after_the_delays_of_its_restarts_until_it_is_done() -> None:
    sleep, restarts = Slept(), Restarts(RestartPolicy(9, first_delay=0.5, max_delay=3.0))
    async with Supervisor(sleep=sleep) as supervisor:
        supervisor.start("child", failing(5), restarts)
    assert sleep.spans == [0.0, 0.5, 1.0, 2.0, 3.0]
    assert restarts.total == 5


@pytest.mark.anyio
async def test_a_child_is_given_up_after_too_many_failures_in_a_row() -> None:
    sleep, restarts = Slept(), Restarts(RestartPolicy(3))
    with pytest.raises(ExceptionGroup) as raised:
        async with Supervisor(sleep=sleep) as supervisor:
            supervisor.start("child", failing(100), restarts)
    [failure] = raised.value.exceptions
    assert isinstance(failure, ChildFailed)
    assert failure.failures == 3
    assert "failed 3 times in a row" in str(failure)
    assert isinstance(failure.__cause__, OSError)
    assert sleep.spans == [0.0, 0.1]


@pytest.mark.anyio
async def test_what_a_child_says_of_its_progress_counts_with_its_next_failure() -> None:
    sleep, restarts = Slept(), Restarts(RestartPolicy(3))
    lives = 0

    async def child() -> None:
        nonlocal lives
        lives += 1
        if lives in (3, 5):
            restarts.progressed()
        if lives == 6:
            restarts.excuse()
        raise OSError("broken")

    with pytest.raises(ExceptionGroup):
        async with Supervisor(sleep=sleep) as supervisor:
            supervisor.start("child", child, restarts)
    assert sleep.spans == [0.0, 0.1, 0.0, 0.1, 0.0, 0.0, 0.1]


@pytest.mark.anyio
async def test_a_hopeless_child_is_not_started_again() -> None:
    sleep, restarts = Slept(), Restarts(RestartPolicy(5))

    async def child() -> None:
        await anyio.sleep(0)
        raise PermanentFailure("there is no such model")

    with pytest.raises(ExceptionGroup) as raised:
        async with Supervisor(sleep=sleep) as supervisor:
            supervisor.start("child", child, restarts)
    [failure] = raised.value.exceptions
    assert str(failure) == "child failed and is not started again"
    assert isinstance(failure.__cause__, PermanentFailure)
    assert (restarts.total, sleep.spans) == (0, [])


@pytest.mark.anyio
async def test_cancelling_ends_every_child_also_while_it_waits_for_its_next_start() -> None:
    ended: list[str] = []

    async def until_cancelled(what: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(what)

    with anyio.fail_after(60):
        async with Supervisor(sleep=lambda _: until_cancelled("backing off")) as supervisor:
            supervisor.start("broken", failing(1), Restarts(RestartPolicy(2)))
            supervisor.start("running", lambda: until_cancelled("running"))
            await anyio.wait_all_tasks_blocked()
            supervisor.cancel()
    assert sorted(ended) == ["backing off", "running"]


@pytest.mark.anyio
async def test_two_children_of_one_name_are_refused() -> None:
    async with Supervisor() as supervisor:
        supervisor.start("child", anyio.sleep_forever)
        with pytest.raises(ValueError, match="already supervised"):
            supervisor.start("child", anyio.sleep_forever)
        supervisor.cancel()
