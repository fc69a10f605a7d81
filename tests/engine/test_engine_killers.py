"""A request that ends the engines that get it is found by the client, and fails alone."""

import math
from collections.abc import Callable

import anyio
import pytest

from stentor.engine.channel import pieces
from stentor.engine.client import trials
from stentor.engine.core.crash_bisector import DEATHS_TO_CONVICT, DEATHS_TO_SUSPECT, PROOF_TOKENS
from stentor.protocols.ipc.actors import ResumedPart
from stentor.protocols.ipc.codec import decode_engine
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.recovery_world import World, die, running, settle

pytestmark = pytest.mark.anyio

Kills = Callable[[set[int]], bool]


async def play(world: World, kills: Kills, turns: int = 400) -> int:
    """Engines that read, die of what ``kills`` says of the requests they have, and otherwise give a token to each that
    does not kill alone. Ends with every stream; returns how many died."""
    deaths = 0
    for _ in range(turns):
        await settle()
        if all(len(reader.ends) == len(reader.submit.seeds) for reader in world.readers):
            return deaths
        engine = world.engines.now
        if world.client.stalled is not None:
            engine.get_ready()
            await settle()
        engine.read()
        if kills(set(engine.requests)):
            deaths += 1
            engine.die()
            await world.replaced(len(world.engines.all) + 1)
        else:
            engine.step(lambda rid: not kills({rid}))
    raise AssertionError("a stream does not end")


@pytest.mark.parametrize(("count", "killer"), [(1, 0), (2, 1), (5, 0), (9, 4), (40, 33)])
async def test_whoever_ends_engines_fails_alone_after_few_deaths_and_all_others_get_their_tokens(
    count: int, killer: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(max_deaths=5) as (world, tasks):
        world.engines.any_order = world.engines.now.any_order = True
        for _ in range(count):
            world.submit(tasks, n=2)
        deaths = await play(world, lambda rids: killer in rids)
        for reader in world.readers:
            reader.check(blamed=reader.submit.rid == killer)
        assert all("ended the engine process" in (end.message or "") for end in world.readers[killer].ends.values())
        assert deaths <= DEATHS_TO_SUSPECT + math.ceil(math.log2(count)) + DEATHS_TO_CONVICT
        assert world.client.failure is None
        assert world.client.stats.poisoned == 1
        assert [record.message for record in caplog.records].count("a request was failed: its engines died of it") == 1


async def test_it_is_found_though_others_gain_tokens_between_the_deaths() -> None:
    async with running(max_deaths=5) as (world, tasks):
        world.engines.any_order = world.engines.now.any_order = True
        for _ in range(4):
            world.submit(tasks)
        await world.step()
        killer = world.submit(tasks).submit.rid
        survived = 0

        def kills(rids: set[int]) -> bool:
            """Only where others have gained one token since, if there are others."""
            nonlocal survived
            if killer not in rids or rids == {killer}:
                return killer in rids
            survived += 1
            return survived % 2 == 0

        await play(world, kills)
        for reader in world.readers:
            reader.check(blamed=reader.submit.rid == killer)


async def test_two_that_end_engines_are_found_one_after_the_other() -> None:
    async with running(max_deaths=5) as (world, tasks):
        world.engines.any_order = world.engines.now.any_order = True
        for _ in range(12):
            world.submit(tasks)
        await play(world, lambda rids: bool(rids & {3, 10}))
        for reader in world.readers:
            reader.check(blamed=reader.submit.rid in (3, 10))
        assert world.client.stats.poisoned == 2


async def test_who_comes_during_a_search_waits_for_its_end_and_is_counted() -> None:
    async with running(max_deaths=5) as (world, tasks):
        world.submit(tasks), world.submit(tasks)
        await settle()
        await die(world, 2)
        late = world.submit(tasks, n=3)
        given_up = world.submit(tasks)
        await world.step()
        assert len(world.engines.now.requests) == 1
        assert world.client.stats.waiting == 1 + 3 + 1
        given_up.abort(-1)
        await settle()
        assert given_up.ends[0].reason == "abort", "nobody else need be asked"
        world.engines.now.any_order = world.engines.any_order = True
        for _ in range(PROOF_TOKENS):
            await world.step()
        assert not late.tokens
        await world.finish()
        for reader in world.readers:
            reader.check()


async def test_the_next_group_comes_to_the_engine_that_the_one_before_has_survived() -> None:
    async with running(max_deaths=5) as (world, tasks):
        for _ in range(3):
            world.submit(tasks)
        await settle()
        await die(world, 2)
        world.engines.now.any_order = True
        had = []
        for _ in range(3 * PROOF_TOKENS):
            await world.step()
            had.append(len(world.engines.now.requests))
        assert had[: PROOF_TOKENS - 1] == [1] * (PROOF_TOKENS - 1)
        assert max(had) == 2
        assert len(world.engines.all) == 3
        await world.finish()


async def test_a_trial_ends_when_who_is_tried_gives_up() -> None:
    async with running(max_deaths=5) as (world, tasks):
        readers = [world.submit(tasks), world.submit(tasks)]
        await settle()
        await die(world, 2)
        await world.step(lambda _: False)
        (tried,) = world.engines.now.requests
        readers[tried].abort(-1)
        world.engines.now.any_order = True
        await world.finish()
        for reader in readers:
            reader.check()


async def test_nobody_waits_for_a_trial_of_those_who_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(trials, "_QUIET_LOOKS", 3)
    async with running(max_deaths=5) as (world, tasks):
        world.submit(tasks), world.submit(tasks), world.submit(tasks)
        await settle()
        await die(world, 2)
        world.engines.now.any_order = True
        with anyio.fail_after(60):
            while len(world.engines.now.requests) < 3:
                await anyio.sleep(0.002)
                world.engines.now.read()
        await world.finish()
        for reader in world.readers:
            reader.check()


async def test_an_engine_that_dies_of_whatever_it_is_given_is_given_up() -> None:
    async with running(max_deaths=3) as (world, tasks):
        world.engines.any_order = world.engines.now.any_order = True
        for _ in range(50):
            world.submit(tasks, SamplingParams(max_tokens=3))
        deaths = 0
        with anyio.fail_after(60):
            while world.client.failure is None:
                await settle()
                if world.client.stalled is not None:
                    world.engines.now.get_ready()
                    await settle()
                world.engines.now.read()
                assert world.engines.now.requests or world.client.failure is not None
                world.engines.now.die()
                deaths += 1
        assert deaths <= 3 * (DEATHS_TO_SUSPECT + 6 + DEATHS_TO_CONVICT)
        assert "in a row" in world.client.failure
        await settle()
        assert all(reader.failed for reader in world.readers)


async def test_an_engine_that_dies_without_requests_is_given_up_though_some_were_to_blame_before() -> None:
    async with running(max_deaths=3) as (world, tasks):
        killer = world.submit(tasks)
        await play(world, lambda rids: 0 in rids)
        assert killer.failed
        world.engines.now.get_ready()
        await settle()
        await die(world, 2)
        world.engines.now.die()
        await settle()
        assert "3 times in a row" in (world.client.failure or "")


async def test_a_request_that_no_frame_carries_ends_with_an_error_and_no_engine_gets_it() -> None:
    async with running(max_submit=1000) as (world, tasks):
        beside = world.submit(tasks)
        large = world.submit(tasks, SamplingParams(max_tokens=5, allowed_token_ids=tuple(range(1000))), n=2)
        await world.finish()
        beside.check()
        assert {index: end.reason for index, end in large.ends.items()} == {0: "error", 1: "error"}
        assert "takes 1000 at once" in (large.ends[0].message or "")
        assert len(world.engines.all) == 1
        assert not world.client._journal


async def test_a_request_that_had_received_much_goes_to_the_next_engine_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pieces.submit_frames, "__defaults__", (60,))
    async with running() as (world, tasks):
        reader = world.submit(tasks, n=8)
        for _ in range(3):
            await world.step()
        await die(world, 1)
        inbox = [decode_engine.decode(frame) for frame in world.engines.now._inbox]
        assert sum(isinstance(each, ResumedPart) for each in inbox) == 8
        await world.finish()
        reader.check()
