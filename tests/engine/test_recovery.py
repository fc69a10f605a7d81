"""Engines die at any moment, and no stream loses a token, gets one twice, or ends otherwise than it would have."""

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.client import client as client_module
from stentor.engine.client.errors import EngineAsleep
from stentor.engine.core.crash_bisector import DEATHS_TO_CONVICT
from stentor.engine.processes.process import REAPED_AT_ONCE
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.recovery_world import World, running, settle
from stentor.tests.engine.scripted_engine import NONSENSE, expected
from stentor.tests.examples import examples

# ---- any order of events


NAMES = [
    "read",
    "die",
    "die at once",
    "fail",
    "babble",
    "refuse",
    "stall",
    "ready",
    "settle",
    "pause",
    "resume",
    "sleep",
    "wake",
    "reset",
]
OPTIONAL = st.sampled_from([None, 2])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 3), st.integers(1, 12), OPTIONAL, OPTIONAL),
        st.tuples(st.just("work"), st.integers(1, 4)),
        st.tuples(st.just("step"), st.integers(0, 7)),
        st.tuples(st.just("abort"), st.integers(0, 5), st.integers(-1, 2)),
        st.tuples(st.sampled_from(NAMES)),
    ),
    min_size=10,
    max_size=60,
)


async def _act(world: World, tasks: anyio.abc.TaskGroup, action: tuple[Any, ...]) -> None:
    engine = world.engines.now
    match action:
        case ("submit", n, max_tokens, logprobs, prompt_logprobs):
            params = SamplingParams(max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
            world.submit(tasks, params, n)
        case ("work", steps):
            if not world.serves:
                engine.get_ready()
            for _ in range(steps):
                await world.step()
        case ("step", mask):
            engine.step(lambda rid: bool(mask >> (rid % 3) & 1))
        case ("abort", place, index):
            if world.readers:
                reader = world.readers[-1 - place % len(world.readers)]
                if index < len(reader.submit.seeds):
                    reader.abort(index)
        case ("read",):
            engine.read()
        case ("die",):
            engine.die()
            await world.replaced(len(world.engines.all) + 1, or_asleep=True)
        case ("die at once",):
            engine.die()
        case ("fail",):
            engine.fail(final=False)
        case ("babble",):
            engine.send_frame(NONSENSE)
        case ("refuse",):
            world.engines.refusals = 2
        case ("stall",):
            engine.stall()
        case ("ready",):
            engine.get_ready()
        case ("settle",):
            await settle()
        case ("pause",):
            tasks.start_soon(world.client.controls.pause)
        case ("resume",):
            tasks.start_soon(world.client.controls.resume)
        case ("sleep",):
            tasks.start_soon(world.client.controls.sleep)
        case ("wake",):
            tasks.start_soon(world.client.controls.wake)
        case ("reset",):
            tasks.start_soon(world.client.controls.reset_prefix_cache)


async def _play(actions: list[tuple[Any, ...]]) -> None:
    async with running() as (world, tasks):
        world.engines.any_order = True
        world.engines.now.any_order = True
        for action in actions:
            await _act(world, tasks, action)
        tasks.start_soon(world.client.controls.wake)
        tasks.start_soon(world.client.controls.resume)
        await world.finish()
        for reader in world.readers:
            reader.check(blamed=reader.failed)
            assert not reader.failed or world.deaths_alone(reader.submit.rid) >= DEATHS_TO_CONVICT
        assert len(world.client._journal) == 0
        assert world.client.failure is None
        assert all(engine.closed for engine in world.engines.all[:-1])
        assert world.client.engine_restarts >= len(world.engines.all) - 1
    assert world.engines.now.closed


@settings(deadline=None, max_examples=examples(200))
@given(ACTIONS)
def test_each_stream_gets_exactly_its_tokens_whatever_dies_when(actions: list[tuple[Any, ...]]) -> None:
    anyio.run(_play, actions)


pytestmark = pytest.mark.anyio


async def test_what_an_engine_had_sent_is_read_before_the_next_goes_on() -> None:
    async with running() as (world, tasks):
        reader = world.submit(tasks, n=2)
        await settle()
        engine = world.engines.now
        engine.read()
        engine.step()
        engine.step()
        engine.die()
        await world.replaced(2)
        world.engines.now.get_ready()
        await settle()
        world.engines.now.read()
        (request,) = world.engines.now.requests.values()
        resumed = request.submit.resumed
        assert resumed is not None
        assert (resumed.outputs, resumed.ended, resumed.prompt_done) == (
            [expected(reader.submit, index)[0][:2] for index in range(2)],
            [],
            True,
        )
        await world.finish()
        reader.check()


async def test_requests_that_come_while_no_engine_is_there_wait_for_the_next() -> None:
    async with running() as (world, tasks):
        before = world.submit(tasks)
        await world.step()
        world.engines.now.die()
        await world.replaced(2)
        assert world.client.stalled == "the engine process was lost: killed by SIGKILL"
        later = world.submit(tasks)
        await settle()
        assert not later.tokens
        world.engines.now.get_ready()
        await settle()
        assert world.client.stalled is None
        await world.finish()
        before.check()
        later.check()


async def test_an_abort_ends_at_once_while_no_engine_is_there() -> None:
    async with running() as (world, tasks):
        readers = [world.submit(tasks, n=2) for _ in range(3)]
        await world.step()
        world.engines.now.die()
        await world.replaced(2)
        readers[0].abort(-1)
        readers[1].abort(0)
        late = world.submit(tasks)
        late.abort(-1)
        await settle()
        assert [sorted(reader.ends) for reader in readers] == [[0, 1], [0], []]
        assert late.ends[0].reason == "abort"
        world.engines.now.get_ready()
        await world.step()
        assert sorted(world.engines.now.requests) == [1, 2]
        assert list(world.engines.now.requests[1].given) == [1]
        await world.finish()
        for reader in readers:
            reader.check()


async def test_an_abort_that_the_dead_engine_never_heeded_is_heeded_without_it() -> None:
    async with running() as (world, tasks):
        given_up, half = world.submit(tasks), world.submit(tasks, n=2)
        await world.step()
        given_up.abort(-1)
        half.abort(1)
        await settle()
        assert not given_up.ends
        world.engines.now.die()
        await world.replaced(2)
        await settle()
        assert given_up.ends[0].reason == half.ends[1].reason == "abort"
        world.engines.now.get_ready()
        await world.step()
        assert list(world.engines.now.requests) == [half.submit.rid]
        await world.finish()
        half.check()


async def test_tokens_are_kept_until_their_sequence_ends_and_no_longer() -> None:
    async with running() as (world, tasks):
        reader = world.submit(tasks, n=2)
        lengths = sorted(len(expected(reader.submit, index)[0]) for index in range(2))
        assert lengths[0] < lengths[1]
        for _ in range(lengths[0]):
            await world.step()
        (stream,) = world.client._journal
        assert [len(tokens) for tokens in stream._open.values()] == [lengths[0]]
        await world.finish()
        assert not stream._open


async def test_a_pause_lasts_over_the_death_of_its_engine_and_no_token_is_lost_or_repeated() -> None:
    async with running() as (world, tasks):
        before = world.submit(tasks, n=2)
        await world.step()
        await world.step()
        tasks.start_soon(world.client.controls.pause)
        await world.step()
        assert world.engines.now.paused
        delivered = {index: len(tokens) for index, tokens in before.tokens.items()}
        world.engines.now.die()
        await world.replaced(2)
        world.engines.now.get_ready()
        later = world.submit(tasks)
        await world.step()
        assert world.engines.now.controls == ["pause"], "it is told before it gets a request"
        await world.step()
        assert delivered == {index: len(tokens) for index, tokens in before.tokens.items()}
        assert not later.tokens
        tasks.start_soon(world.client.controls.resume)
        await world.finish()
        before.check()
        later.check()


@pytest.mark.parametrize(("discard", "told"), [(False, "sleep"), (True, "discard")])
async def test_an_engine_that_is_lost_asleep_has_no_successor_until_the_wake(
    discard: bool, told: str, tmp_path: Path
) -> None:
    prepared = tmp_path / "weights"
    prepared.write_bytes(b"weights")
    with prepared.open("r+b") as weights:
        async with running() as (world, tasks):
            world.engines.weights.append(weights.fileno())
            kept = world.submit(tasks)
            await world.step()
            await world.step()
            recoveries: list[str] = []
            world.client.watch_recoveries(lambda process, _seconds: recoveries.append(process))
            tasks.start_soon(world.client.controls.pause)
            tasks.start_soon(partial(world.client.controls.sleep, discard=discard))
            await world.step()
            assert world.engines.now.controls == ["pause", told]
            world.engines.now.die()
            await settle()
            assert (len(world.engines.all), world.client.stalled) == (1, None), "a sleep is no outage"
            assert (prepared.stat().st_size == 0) == discard, "the engine that was to do it may be dead"
            late = world.submit(tasks)
            with anyio.fail_after(60):
                await world.client.controls.sleep(discard=True)
            assert prepared.stat().st_size == 0
            answered = False

            async def wake() -> None:
                nonlocal answered
                await world.client.controls.wake()
                await world.client.controls.resume()
                answered = True

            tasks.start_soon(wake)
            await world.replaced(2)
            assert not answered
            world.engines.now.get_ready()
            await world.step()
            assert world.engines.now.controls[:2] == ["pause", "wake"]
            await world.finish()
            kept.check()
            late.check()
            assert (answered, recoveries) == (True, [])
            world.engines.now.die()
            await world.replaced(3)


async def test_a_sleep_ends_the_engine_that_starts_in_place_of_a_lost_one_and_no_death_is_counted() -> None:
    async with running(max_deaths=2) as (world, tasks):
        kept = world.submit(tasks)
        await world.step()
        await world.step()
        world.engines.now.die()
        await world.replaced(2)
        await settle()
        assert world.client.stalled is not None
        with anyio.fail_after(60):
            await world.client.controls.sleep()
        assert world.engines.now.dead
        assert len(world.engines.all) == 2
        stalled: str | None = world.client.stalled
        assert stalled is None, "a sleep is no outage"
        tasks.start_soon(world.client.controls.wake)
        await world.replaced(3)
        world.engines.now.get_ready()
        await world.finish()
        kept.check()
        assert world.client.failure is None


async def test_a_sleep_after_the_loss_of_a_worker_ends_the_outage() -> None:
    async with running() as (world, tasks):
        tasks.start_soon(world.client.controls.sleep)
        world.engines.now.stall()
        await settle()
        assert world.client.stalled is None
        tasks.start_soon(world.client.controls.wake)
        await settle()
        world.engines.now.stall()
        await settle()
        assert world.client.stalled is not None
        tasks.start_soon(world.client.controls.sleep)
        await world.step()
        assert world.client.stalled is None


async def test_a_sleep_that_follows_a_wake_at_once_starts_no_engine() -> None:
    async with running() as (world, tasks):
        tasks.start_soon(world.client.controls.sleep)
        await world.step()
        world.engines.now.die()
        await settle()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as operators:
                operators.start_soon(world.client.controls.wake)
                operators.start_soon(world.client.controls.sleep)
        await settle()
        assert len(world.engines.all) == 1


async def test_a_wake_is_let_go_once_the_client_has_ended_asleep() -> None:
    async with running() as (world, tasks):
        tasks.start_soon(world.client.controls.sleep)
        await world.step()
        world.engines.now.die()
        await settle()
    with anyio.fail_after(60):
        await world.client.controls.wake()


async def test_a_sleep_that_loses_its_engine_is_over_since_no_other_starts() -> None:
    async with running() as (world, _tasks):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as operators:
                operators.start_soon(world.client.controls.sleep)
                await settle()
                world.engines.now.die()
        await settle()
        assert len(world.engines.all) == 1


async def test_a_wake_that_loses_its_engine_is_answered_by_the_next() -> None:
    async with running() as (world, tasks):
        answered: list[str | None] = []

        async def ask() -> None:
            await world.client.controls.wake()
            answered.append(world.client.stalled)

        tasks.start_soon(ask)
        await settle()
        world.engines.now.die()
        await world.replaced(2)
        tasks.start_soon(ask)  # also where none is ready
        await settle()
        assert answered == []
        world.engines.now.get_ready()
        await world.step()
        assert answered == [None, None]


async def test_an_adapter_is_not_waited_for_while_no_worker_can_load_it() -> None:
    adapter = AdapterRef(1, "one", "one", "/nowhere")
    async with running() as (world, tasks):
        refused: list[bool] = []

        async def load() -> None:
            with pytest.raises(EngineAsleep):
                await world.client.load_adapter(adapter)
            refused.append(True)

        tasks.start_soon(load)
        await settle()
        assert not refused
        tasks.start_soon(world.client.controls.sleep)
        await settle()
        assert len(refused) == 1
        await load()


async def test_whoever_sleeps_is_let_go_when_its_engine_is_given_up() -> None:
    async with running() as (world, _tasks):
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(world.client.controls.sleep)
            await settle()
            world.engines.now.fail(final=True)
        await world.client.controls.wake()
        assert world.client.failure is not None


async def test_whoever_waits_for_a_control_is_let_go_when_its_engine_dies() -> None:
    async with running() as (world, tasks):
        world.submit(tasks)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(world.client.controls.pause)
            waiting.start_soon(world.client.controls.reset_prefix_cache)
            await settle()
            world.engines.now.die()
        await world.replaced(2)
        with anyio.fail_after(60):
            await world.client.controls.reset_prefix_cache()
            await world.client.controls.resume()
        await world.finish()


# ---- what a dead engine left


@pytest.mark.anyio
async def test_many_orphans_are_reaped_in_a_thread_so_many_at_a_time_while_streams_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    gate, done = threading.Event(), asyncio.Event()
    left = [REAPED_AT_ONCE, REAPED_AT_ONCE, 3]

    def reap() -> int:
        assert threading.get_ident() != here
        assert gate.wait(60)
        reaped = left.pop(0)
        if not left:
            loop.call_soon_threadsafe(done.set)
        return reaped

    monkeypatch.setattr(client_module, "reap_orphans", reap)
    with anyio.fail_after(60):
        async with running() as (world, tasks):
            reader = world.submit(tasks)
            await world.finish()
            reader.check()
            gate.set()
            await done.wait()
