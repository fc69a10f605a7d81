"""The loop's patience with its workers, by a clock that the test moves and over processes that the test plays."""

import os
import time
from collections.abc import Iterator

import anyio
import msgspec
import pytest

from stentor.engine.core import worker_life
from stentor.engine.core.watchdog import _SECOND_LOOK_SECONDS as SECOND_LOOK
from stentor.engine.sharing.co_tenants import CoTenants
from stentor.engine.sharing.lease import create_lease
from stentor.protocols.ipc.actors import ControlDone, EngineReady, Failed, Profile, Stalled, Stats, TokensBatch
from stentor.protocols.ipc.adapters import (
    AdapterLoaded,
    AdapterRef,
    AdapterWarm,
    LoadAdapter,
    ReadsAdapters,
    WarmAdapter,
)
from stentor.protocols.ipc.codec import decode_client, encoder
from stentor.protocols.ipc.steps import RowStep, StepPlan
from stentor.tests.engine.odd_worker import answer
from stentor.tests.engine.schedulers import CONFIG
from stentor.tests.engine.test_lease import HOLDER, WAITS, write_word
from stentor.tests.engine.unkillable import SlowToDie, Unkillable, unkillable
from stentor.tests.engine.worker_stage import Stage, stage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


async def test_no_request_is_to_blame_for_a_graph_that_could_not_be_captured() -> None:
    """A death of its own would end this loop."""
    async with stage(max_deaths=1) as on:
        on.submit(3)
        (first, *_) = await on.first.plans()
        on.first.send(Failed("capturing a CUDA graph failed", graphs=True))
        await on.until(Stalled)
        await on.until(EngineReady)
        assert on.loop._scheduler._recovery._bisector.idle
        (plan, *_) = await on.second.plans()
        assert plan.new[0].tokens == first.new[0].tokens
        on.second.send(answer(plan))
        await on.until(TokensBatch)
        assert not on.lost


async def test_a_step_that_is_overdue_ends_its_worker_and_the_next_one_goes_on() -> None:
    async with stage() as on:
        on.submit(3)
        (first, *_) = await on.first.plans()
        on.first.send(answer(first))
        await on.until(TokensBatch)
        await on.clock.run(9.9)
        assert on.first.process.returncode is None
        await on.clock.move(0.2)
        assert on.first.process.returncode is None, "it looks twice"
        await on.clock.move(0.3)
        await on.until(Stalled)
        assert await on.first.process.wait() == -9
        await on.until(EngineReady)
        on.seen.clear()
        plans: list[StepPlan] = []
        while len(plans) < 2:  # the prompt again, and what was drawn
            plans += await on.second.plans()
        assert plans[0].epoch == 1
        assert plans[0].new[0].tokens == [0, 1, 2, 3, 4]
        for plan in plans:
            on.second.send(answer(plan))
        await on.until(TokensBatch)
        stats = [each for each in on.seen if isinstance(each, Stats)]
        assert all((each.watchdog_kills, each.worker_restarts, each.recovered) == (1, 1, 1) for each in stats)


async def test_a_worker_that_hangs_while_it_reads_an_adapter_is_replaced_and_the_next_one_reads_it() -> None:
    adapted = msgspec.structs.replace(CONFIG.worker, enable_lora=True, max_loras=1)
    async with stage(factor=20.0, engine_config=msgspec.structs.replace(CONFIG, worker=adapted)) as on:
        assert on.client.try_send(encoder.encode(WarmAdapter(7, AdapterRef(1, "poet", "/adapters/poet"))))
        assert await on.first.orders() == [LoadAdapter(AdapterRef(1, "poet", "/adapters/poet"))]
        for _ in range(4):
            await on.clock.run(25.0)
            on.first.send(ReadsAdapters())
            await on.clock.move(0.0)
        assert on.first.process.returncode is None, "a slow disk is no hang"
        await on.clock.run(31.0)
        await on.until(Stalled)
        assert await on.first.process.wait() == -9
        await on.until(EngineReady)
        assert len(await on.second.orders()) == 1
        on.second.send(AdapterLoaded(1))
        await on.until(AdapterWarm)
        assert Stalled("the worker process hung in reading an adapter: it was killed") in on.seen
        assert AdapterWarm(7) in on.seen
        await on.clock.run(60.0)
        assert on.second.process.returncode is None


async def test_a_worker_that_hangs_in_a_profile_is_replaced_and_the_operator_is_told() -> None:
    async with stage(factor=20.0) as on:
        on.control(1, "start_profile")
        assert await on.first.orders() == [Profile(True)]
        await on.clock.run(609.0, look=0.9)
        assert on.first.process.returncode is None
        await on.clock.run(2.0)
        await on.until(ControlDone)
        assert ControlDone(1, "the worker was lost, and its profile with it") in on.seen
        assert await on.first.process.wait() == -9


async def test_a_worker_that_was_killed_for_a_sleep_is_not_taken_to_hang() -> None:
    adapted = msgspec.structs.replace(CONFIG.worker, enable_lora=True, max_loras=1)
    async with stage(engine_config=msgspec.structs.replace(CONFIG, worker=adapted)) as on:
        assert on.client.try_send(encoder.encode(WarmAdapter(7, AdapterRef(1, "poet", "/adapters/poet"))))
        await on.first.orders()
        on.control(1, "sleep")
        await on.done(1)
        await on.clock.run(60.0)
        assert not any(isinstance(each, Stalled) for each in on.seen)
        on.control(2, "wake")
        await on.done(2)
        assert len(await on.second.orders()) == 1


async def test_a_step_is_held_to_its_own_deadline_not_to_that_of_the_longer_one_before() -> None:
    async with stage(factor=1000.0) as on:
        on.submit(3, prompt=64)
        (prefill, *_) = await on.first.plans()
        await on.clock.move(0.1)
        on.first.send(answer(prefill))
        await on.until(TokensBatch)
        # one row, and nothing known of such steps yet: 10 s and 1000 times 0.02
        for _ in range(32):
            await on.clock.move(1.0)
        await on.until(Stalled)
        assert await on.first.process.wait() == -9


async def test_a_result_that_had_come_before_the_second_look_saves_the_worker() -> None:
    async with stage() as on:
        on.submit(2)
        (first, *_) = await on.first.plans()
        await on.clock.run(10.1)
        on.first.send(answer(first))
        await on.until(TokensBatch)
        await on.clock.move(1.0)
        assert on.first.process.returncode is None


async def test_a_worker_has_the_whole_time_for_a_step_once_an_engine_goes_on_that_was_stopped() -> None:
    async with stage() as on:
        on.submit(3)
        await on.first.plans()
        await on.clock.run(5.0)
        await on.clock.move(3600.0)
        await on.clock.run(9.0)
        assert on.loop.worker.verdict is None
        await on.clock.run(2.0)
        await on.until(Stalled)
        assert await on.first.process.wait() == -9


async def test_an_idle_worker_is_left_alone_for_ever() -> None:
    async with stage() as on:
        on.submit(1)
        (plan, *_) = await on.first.plans()
        on.first.send(answer(plan))
        await on.until(TokensBatch)
        for _ in range(5):
            await on.clock.move(1000.0)
        await anyio.sleep(0.05)
        assert on.first.process.returncode is None


async def test_a_client_that_does_not_read_is_not_the_workers_fault() -> None:
    async with stage() as on:
        on.submit(100)
        began = time.monotonic()
        while time.monotonic() - began < 0.5:
            with anyio.move_on_after(0.05):
                for plan in await on.first.plans():
                    on.first.send(answer(plan))
            await on.clock.run(3.0)
        assert on.first.process.returncode is None


async def hang(on: Stage) -> None:
    """The first worker is given a step, and the watchdog decides to kill it."""
    on.submit(3)
    await on.first.plans()
    await on.clock.run(10.1)
    await on.clock.move(0.3)


async def test_that_a_worker_hangs_is_told_before_it_is_dead() -> None:
    with unkillable(SlowToDie) as child:
        async with stage(child=child) as on:
            await hang(on)
            await on.until(Stalled)
            assert child.returncode is None
            assert not on.lost
            assert not any(isinstance(each, EngineReady) for each in on.seen), "no other starts beside it"
            child.let_die()
            await on.until(EngineReady)
            assert not on.lost


async def test_that_a_worker_gave_up_is_told_before_it_is_dead() -> None:
    with unkillable(SlowToDie) as child:
        async with stage(child=child) as on:
            on.submit(3)
            await on.first.plans()
            on.first.send(Failed("the worker failed in step 0: RuntimeError"))
            await on.until(Stalled)
            assert child.returncode is None
            child.let_die()
            await on.until(EngineReady)


@pytest.mark.parametrize("end", ["hangs", "fails", "closes its end"])
async def test_a_worker_that_cannot_be_killed_ends_the_engine_and_no_other_is_started_beside_it(
    end: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_life, "_CLOSING_SECONDS", 0.0)
    with unkillable(Unkillable) as child:
        async with stage(child=child) as on:
            if end == "hangs":
                await hang(on)
            else:
                on.submit(3)
                await on.first.plans()
                on.first.send(Failed("no more")) if end == "fails" else on.first.worker.close()
            with anyio.fail_after(60):
                while not on.lost:
                    await anyio.sleep(0.001)
            while frames := on.client.try_receive():
                on.seen += map(decode_client.decode, frames)
    (lost,) = on.lost
    assert lost.final
    assert str(lost).endswith("the process does not die")
    batches = [each for each in on.seen if isinstance(each, TokensBatch)]
    assert [(each.rid, each.reason) for each in batches[-1].finished] == [(0, "error")]
    assert not any(isinstance(each, EngineReady) for each in on.seen)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"the worker (pid {child.pid}) was killed and does not die; it is left behind"
    ]


async def test_masks_that_do_not_come_are_waited_for_no_longer_than_a_step() -> None:
    async with stage() as on:
        plan = StepPlan(0, 0, [], [], [RowStep(0, 0, 1, [], True)], [0])
        on.loop._watchdog.sent(plan)
        await on.clock.run(10.1)
        await on.clock.move(0.3)
        await on.until(Stalled)
        assert await on.first.process.wait() == -9


async def test_a_step_whose_masks_are_behind_what_the_client_does_not_read_is_nobodys_fault() -> None:
    async with stage() as on:
        on.loop._telling += 1
        plan = StepPlan(0, 0, [], [], [RowStep(0, 0, 1, [], True)], [0])
        on.loop._watchdog.sent(plan)
        for _ in range(10):
            await on.clock.run(5.0)
        assert on.first.process.returncode is None


async def test_masks_that_come_before_the_second_look_save_the_worker() -> None:
    async with stage() as on:
        plan = StepPlan(0, 0, [], [], [RowStep(0, 0, 1, [], True)], [0])
        on.loop._watchdog.sent(plan)
        await on.clock.run(10.1)
        on.loop._watchdog.masked(0)
        await on.clock.run(5.0)
        assert on.first.process.returncode is None


@pytest.fixture
def lease() -> Iterator[int]:
    fd = create_lease([1, 1])
    yield fd
    os.close(fd)


async def test_a_worker_has_the_whole_time_for_a_step_once_it_gets_the_device(lease: int) -> None:
    async with stage(co_tenants=CoTenants(lease, 0)) as on:
        on.submit(3)
        await on.first.plans()
        write_word(lease, WAITS, 1)
        write_word(lease, HOLDER, 2)
        for _ in range(9):
            await on.clock.move(1.0)
        write_word(lease, WAITS, 0)
        write_word(lease, HOLDER, 1)
        for _ in range(9):
            await on.clock.move(1.0)
        assert on.first.process.returncode is None
        for _ in range(3):
            await on.clock.move(1.0)
        await on.until(Stalled)
        assert await on.first.process.wait() == -9


async def test_a_worker_that_waits_for_the_device_at_the_second_look_is_not_taken_to_hang(lease: int) -> None:
    async with stage(co_tenants=CoTenants(lease, 0)) as on:
        on.submit(3)
        await on.first.plans()
        write_word(lease, WAITS, 1)  # and it is free for a moment, as between two steps of the other
        for _ in range(11):
            await on.clock.move(1.0)
            if on.clock.slept[-1] == SECOND_LOOK:
                break
        write_word(lease, HOLDER, 2)
        for _ in range(5):
            await on.clock.move(1.0)
        assert on.first.process.returncode is None


async def test_a_worker_that_does_not_take_a_device_that_is_free_is_taken_to_hang(lease: int) -> None:
    async with stage(co_tenants=CoTenants(lease, 0)) as on:
        on.submit(3)
        await on.first.plans()
        write_word(lease, WAITS, 1)
        for _ in range(12):
            await on.clock.move(1.0)
        await on.until(Stalled)
        assert await on.first.process.wait() == -9


async def test_back_off_is_waited_for_by_the_clock() -> None:
    async with stage() as on:
        on.submit(100)
        await on.first.plans()
        on.first.process.kill()
        await on.until(EngineReady)
        assert 0.0 in on.clock.slept, "the first restart does not wait"


async def test_workers_that_die_without_a_step_between_end_the_loop() -> None:
    async with stage(max_deaths=2) as on:
        on.first.process.kill()
        await on.until(EngineReady)
        on.second.process.kill()
        with anyio.fail_after(60):
            while not on.lost:
                await anyio.sleep(0.01)
        assert "(2 deaths without a completed step)" in str(on.lost[0])


async def test_an_idle_worker_that_dies_after_an_hour_is_no_row_with_those_before() -> None:
    async with stage(max_deaths=2) as on:
        on.first.process.kill()
        await on.until(EngineReady)
        on.seen.clear()
        await on.clock.move(3600.0)
        on.second.process.kill()
        await on.until(EngineReady)
        assert on.loop.worker is on.third.group
        assert not on.lost
