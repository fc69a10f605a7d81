"""When engines are given up, and which are replaced though they live."""

from collections.abc import Callable

import anyio
import pytest

from stentor.engine.client import outages
from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.core.crash_bisector import PROOF_TOKENS
from stentor.protocols.ipc.actors import Finished
from stentor.tests.engine.recovery_world import World, die, running, settle

pytestmark = pytest.mark.anyio


# ---- when it is given up


async def test_it_is_given_up_after_deaths_in_a_row_without_progress() -> None:
    async with running(max_deaths=5) as (world, tasks):
        await world.step()
        await die(world, 4)
        assert world.client.failure is None
        world.engines.now.die()
        await settle()
        assert world.slept == [0.0, 0.1, 0.2, 0.4]
        assert len(world.engines.all) == 5
        why = "the engine was lost 5 times in a row without progress between; at last the engine process was lost: "
        assert world.client.failure == why + "killed by SIGKILL"
        assert world.client.stalled is None
        with pytest.raises(EngineUnavailable, match="5 times in a row"):
            world.submit(tasks)


async def test_what_waits_when_it_is_given_up_ends_with_an_error() -> None:
    async with running(max_deaths=2) as (world, tasks):
        reader = world.submit(tasks, n=2)
        await world.step()
        await die(world, 1)
        world.engines.now.die()
        await settle()
        assert world.client.failure is not None
        assert {end.reason for end in reader.ends.values()} == {"error"}
        assert sorted(reader.ends) == [0, 1]


async def test_progress_of_all_that_were_in_flight_begins_the_row_anew() -> None:
    async with running(max_deaths=3) as (world, tasks):
        for _ in range(3):
            world.submit(tasks, n=3)
            await settle()
            await die(world, 2)
            await world.finish()
        assert world.client.failure is None
        assert world.slept == [0.0, 0.1] * 3


async def test_tokens_of_some_who_were_in_flight_do_not_hide_that_engines_die_of_another() -> None:
    async with running(max_deaths=2) as (world, tasks):
        world.submit(tasks), world.submit(tasks)
        await settle()
        await die(world, 1)
        for _ in range(PROOF_TOKENS):
            await world.step(lambda rid: rid == 0)
        world.engines.now.die()
        await settle()
        assert "2 times in a row" in (world.client.failure or "")


async def test_an_engine_that_cannot_be_started_again_counts_as_dead() -> None:
    async with running(max_deaths=3) as (world, _tasks):
        world.engines.refusals = 5
        world.engines.now.die()
        await settle()
        assert "3 times in a row" in (world.client.failure or "")
        assert "cannot start the engine process: [Errno 11]" in (world.client.failure or "")


async def test_an_engine_that_says_it_is_of_no_use_is_not_replaced() -> None:
    async with running() as (world, tasks):
        reader = world.submit(tasks)
        world.engines.now.fail(final=True)
        world.engines.now.die()
        await settle()
        assert world.client.failure == "the engine failed: KeyError: 7"
        assert reader.ends[0].message == "the engine failed: KeyError: 7"
        assert len(world.engines.all) == 1


async def test_an_engine_that_was_never_ready_is_not_replaced() -> None:
    world = World()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.client.run)
        world.engines.now.die()
        with anyio.fail_after(60):
            with pytest.raises(EngineUnavailable, match="the engine process was lost: killed by SIGKILL"):
                await world.client.wait_started()
    assert len(world.engines.all) == 1


async def test_with_a_limit_of_one_the_first_death_is_the_last() -> None:
    async with running(max_deaths=1) as (world, tasks):
        reader = world.submit(tasks)
        await world.step()
        world.engines.now.die()
        await settle()
        assert world.client.failure == "the engine process was lost: killed by SIGKILL"
        assert reader.ends[0].reason == "error"


async def test_a_server_that_ends_meanwhile_ends_what_waits() -> None:
    async with running() as (world, tasks):
        reader = world.submit(tasks)
        await world.step()
        world.engines.now.die()
        await world.replaced(2)
        tasks.cancel_scope.cancel()
    (event,) = [event async for events in reader.stream for event in events if isinstance(event, Finished)]
    assert (event.reason, event.message) == ("error", "the server is shutting down")
    assert world.engines.now.closed


# ---- an engine that lives and does nothing


async def _for(seconds: float, turn: Callable[[], None]) -> None:
    with anyio.move_on_after(seconds):
        while True:
            turn()
            await anyio.sleep(0.002)


async def test_an_engine_that_hangs_is_killed_and_replaced() -> None:
    async with running(hang_seconds=0.2) as (world, tasks):
        reader = world.submit(tasks)
        await world.step()
        with anyio.fail_after(60):
            while len(world.engines.all) == 1:
                await anyio.sleep(0.01)
        assert world.client.stalled == "the engine process hung: it was killed"
        assert world.client.stats.watchdog_kills == 1
        await world.finish()
        reader.check()


async def test_an_engine_that_hangs_while_it_starts_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "START_SECONDS", 0.1)
    async with running(hang_seconds=0.1) as (world, tasks):
        reader = world.submit(tasks)
        await world.step()
        world.engines.now.die()
        await world.replaced(2)
        with anyio.fail_after(60):
            while len(world.engines.all) == 2:
                await anyio.sleep(0.01)
        assert world.client.stats.watchdog_kills == 1
        await world.finish()
        reader.check()


async def test_an_engine_whose_start_takes_long_but_that_answers_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "START_SECONDS", 0.1)
    async with running(hang_seconds=0.1) as (world, tasks):
        reader = world.submit(tasks)
        world.engines.now.die()
        await world.replaced(2)
        await _for(0.4, lambda: world.engines.now.read())
        assert len(world.engines.all) == 2
        await world.finish()
        reader.check()


async def test_an_engine_that_is_slow_but_turns_is_left_alone() -> None:
    async with running(hang_seconds=0.2) as (world, tasks):
        reader = world.submit(tasks)
        await _for(0.6, lambda: world.engines.now.read())
        assert len(world.engines.all) == 1
        assert not reader.tokens
        await world.finish()
        reader.check()


async def test_an_engine_without_requests_is_not_asked_and_may_be_silent() -> None:
    async with running(hang_seconds=0.1) as (world, tasks):
        await anyio.sleep(0.3)
        assert world.engines.now._inbox == []
        reader = world.submit(tasks)
        await world.finish()
        reader.check()
        await anyio.sleep(0.3)
        assert len(world.engines.all) == 1


@pytest.mark.parametrize("end", ["hangs", "breaks off"])
async def test_an_engine_that_cannot_be_killed_stalls_at_once_and_is_given_up_and_not_replaced(end: str) -> None:
    why = "the engine process hung: it was killed" if end == "hangs" else "the engine failed: KeyError: 7"
    async with running(hang_seconds=0.05 if end == "hangs" else 0.0) as (world, tasks):
        engine = world.engines.now
        engine.undying = True
        reader = world.submit(tasks)
        await world.step()
        if end == "breaks off":
            engine.fail(final=False)
        with anyio.fail_after(60):
            while world.client.stalled is None:
                await anyio.sleep(0.001)
        assert world.client.stalled == why
        assert world.client.failure is None
        assert not reader.ends, "it is waited for"
        late = world.submit(tasks)
        await settle()
        engine.given_up.set()
        await settle()
        assert world.client.failure == f"{why}; the process does not die"
        assert [each.ends[0].reason for each in (reader, late)] == ["error", "error"]
        with pytest.raises(EngineUnavailable, match="does not die"):
            world.submit(tasks)
        assert len(world.engines.all) == 1


async def test_a_server_that_ends_waits_for_an_engine_that_cannot_be_killed_no_longer_than_that() -> None:
    async with running() as (world, tasks):
        world.engines.now.undying = True
        world.engines.now.given_up.set()
        with anyio.fail_after(60):
            tasks.cancel_scope.cancel()
    assert world.client.failure == "the server is shutting down"
