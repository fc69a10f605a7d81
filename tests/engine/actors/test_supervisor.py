"""Restart policies, by a clock and a sleep that the tests move by hand."""

import math
from collections.abc import Awaitable, Callable

import anyio
import pytest

from stentor.engine.processes.supervisor import (
    ChildFailed,
    ChildStatus,
    PermanentFailure,
    Phase,
    Restart,
    RestartPolicy,
    Supervisor,
)


class ManualTime:
    """A clock that only sleeping, or a child that says so, moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await anyio.sleep(0)


def failing(time: ManualTime, lives: list[float]) -> Callable[[], Awaitable[None]]:
    """A child that lives for each of ``lives`` seconds and fails, then ends well."""
    left = iter(lives)

    async def child() -> None:
        life = next(left, None)
        await anyio.sleep(0)
        if life is not None:
            time.now += life
            raise OSError(f"after {life}")

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
    assert supervisor.children["child"].phase is Phase.GIVEN_UP


@pytest.mark.anyio
async def test_a_restarted_child_starts_at_once_then_waits_longer_after_each_failure_up_to_a_limit() -> None:
    time = ManualTime()
    policy = RestartPolicy(Restart.ON_FAILURE, max_failures=9, first_delay=0.5, delay_factor=3.0, max_delay=10.0)
    phases: list[Phase] = []

    def report(status: ChildStatus) -> None:
        phases.append(status.phase)

    async with Supervisor(clock=time.clock, sleep=time.sleep, report=report) as supervisor:
        status = supervisor.start("child", failing(time, [1.0] * 5), policy)
    assert time.slept == [0.0, 0.5, 1.5, 4.5, 10.0]
    assert status.starts == 6
    assert phases == [Phase.RUNNING, Phase.BACKING_OFF] * 5 + [Phase.RUNNING, Phase.DONE]
    assert isinstance(status.last_error, OSError)


@pytest.mark.anyio
async def test_a_child_is_given_up_after_too_many_failures_in_a_row() -> None:
    time = ManualTime()
    policy = RestartPolicy(Restart.ON_FAILURE, max_failures=3)
    with pytest.raises(ExceptionGroup) as raised:
        async with Supervisor(clock=time.clock, sleep=time.sleep) as supervisor:
            status = supervisor.start("child", failing(time, [0.0] * 100), policy)
    [failure] = raised.value.exceptions
    assert isinstance(failure, ChildFailed)
    assert failure.failures == 3
    assert "failed 3 times in a row" in str(failure)
    assert status.starts == 3
    assert time.slept == [0.0, 0.1]


@pytest.mark.anyio
async def test_a_long_life_ends_the_row_of_failures() -> None:
    time = ManualTime()
    policy = RestartPolicy(Restart.ON_FAILURE, max_failures=3, first_delay=1.0, healthy_after=60.0)
    lives = [0.0, 0.0, 60.0, 0.0, 59.0]
    with pytest.raises(ExceptionGroup):
        async with Supervisor(clock=time.clock, sleep=time.sleep) as supervisor:
            status = supervisor.start("child", failing(time, lives), policy)
    assert time.slept == [0.0, 1.0, 0.0, 1.0]
    assert status.starts == 5


@pytest.mark.anyio
async def test_progress_ends_the_row_of_failures_however_short_the_life() -> None:
    time = ManualTime()
    policy = RestartPolicy(Restart.ON_FAILURE, max_failures=3, first_delay=1.0)
    lives = 0

    async def child() -> None:
        nonlocal lives
        await anyio.sleep(0)
        lives += 1
        if lives in (3, 5):
            supervisor.children["child"].progressed()
        raise OSError("broken")

    with pytest.raises(ExceptionGroup) as raised:
        async with Supervisor(clock=time.clock, sleep=time.sleep) as supervisor:
            supervisor.start("child", child, policy)
    [failure] = raised.value.exceptions
    assert isinstance(failure, ChildFailed)
    assert failure.failures == 3
    assert lives == 7
    assert time.slept == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.anyio
async def test_a_failure_that_is_excused_does_not_count() -> None:
    supervisor = Supervisor(sleep=ManualTime().sleep)
    starts = 0

    async def child() -> None:
        nonlocal starts
        starts += 1
        if 1 < starts < 6:
            supervisor.children["child"].excuse()
        raise OSError("broken")

    with pytest.raises(ExceptionGroup):
        async with supervisor:
            supervisor.start("child", child, RestartPolicy(Restart.ON_FAILURE, max_failures=3))
    assert starts == 3 + 4


@pytest.mark.anyio
async def test_a_hopeless_child_is_not_started_again() -> None:
    time = ManualTime()

    async def child() -> None:
        await anyio.sleep(0)
        raise PermanentFailure("there is no such model")

    with pytest.raises(ExceptionGroup) as raised:
        async with Supervisor(clock=time.clock, sleep=time.sleep) as supervisor:
            status = supervisor.start("child", child, RestartPolicy(Restart.ON_FAILURE))
    [failure] = raised.value.exceptions
    assert isinstance(failure.__cause__, PermanentFailure)
    assert (status.starts, time.slept) == (1, [])


@pytest.mark.anyio
async def test_a_child_that_is_done_is_not_restarted() -> None:
    time = ManualTime()
    async with Supervisor(clock=time.clock, sleep=time.sleep) as supervisor:
        status = supervisor.start("child", failing(time, []), RestartPolicy(Restart.ON_FAILURE))
    assert (status.phase, status.starts, time.slept) == (Phase.DONE, 1, [])


@pytest.mark.anyio
async def test_cancelling_ends_every_child_also_while_it_backs_off() -> None:
    async def broken() -> None:
        raise OSError("broken")

    with anyio.fail_after(60):
        async with Supervisor() as supervisor:
            policy = RestartPolicy(Restart.ON_FAILURE, first_delay=1e6, max_delay=math.inf)
            backing_off = supervisor.start("broken", broken, policy)
            running = supervisor.start("running", anyio.sleep_forever)
            await anyio.wait_all_tasks_blocked()
            assert backing_off.phase is Phase.BACKING_OFF
            assert running.phase is Phase.RUNNING
            supervisor.cancel()


@pytest.mark.anyio
async def test_two_children_of_one_name_are_refused() -> None:
    async with Supervisor() as supervisor:
        supervisor.start("child", anyio.sleep_forever)
        with pytest.raises(ValueError, match="already supervised"):
            supervisor.start("child", anyio.sleep_forever)
        supervisor.cancel()


def test_delays_stay_finite_however_many_failures() -> None:
    policy = RestartPolicy(first_delay=0.1, delay_factor=10.0, max_delay=7.0)
    assert [policy.delay(failures) for failures in (1, 2, 3, 4, 10**9)] == [0.0, 0.1, 1.0, 7.0, 7.0]
