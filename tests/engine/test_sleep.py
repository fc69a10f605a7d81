"""A real engine that sleeps: its workers end, and its requests go on with those of the next start."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from stentor.engine.core.operator import Operator
from stentor.engine.core.scheduler import Scheduler
from stentor.engine.core.worker_group import WorkerGroup
from stentor.engine.core.worker_source import WorkerSource
from stentor.loadtest.processes import alive
from stentor.protocols.ipc.actors import Control, ControlDone, Shutdown, Stalled, StartEngine, TokensBatch
from stentor.protocols.ipc.config import Weights
from stentor.tests.engine.engine_processes import SOON, engine_process, send, worker_of
from stentor.tests.engine.mortal_worker import lives, mortal_config
from stentor.tests.engine.odd_worker import answer
from stentor.tests.engine.test_worker_deaths import Received, submit
from stentor.tests.engine.worker_stage import stage


@pytest.mark.parametrize("workers", [1, 2])
def test_no_worker_is_left_while_it_sleeps_and_every_request_goes_on_when_it_wakes(
    tmp_path: Path, workers: int
) -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(tmp_path, workers=workers)))
        received = Received(engine)
        received.until_ready()
        early, late = [submit(rid, tokens=60, seeds=(1, 2)) for rid in range(3)], submit(9, tokens=20)
        send(engine, *early)
        received.until_tokens(20, 0, 1, 2)
        worker = worker_of(child)
        send(engine, Control(1, "sleep"), Control(2, "sleep"), late)
        received.until_done(2)
        assert not alive(worker)
        assert received.stats is not None
        assert (received.stats.running, received.stats.kv_usage) == (0, 0.0)
        started = lives(tmp_path)
        send(engine, Control(3, "pause"), Control(4, "resume"))
        received.until_done(4)
        assert lives(tmp_path) == started, "no other is started for what waits"
        send(engine, Control(5, "wake"))
        received.until_done(5)
        assert received.ready == 2, "it is answered by an engine that can run steps"
        received.until_ended(7)
        received.check(*early, late)
        assert received.controls == [1, 2, 3, 4, 5]
        assert received.stalls == [], "a sleep is no loss"
        stats = received.until_idle()
        assert (stats.worker_restarts, stats.poisoned, stats.watchdog_kills) == (0, 0, 0)
        send(engine, Control(6, "sleep"))
        received.until_done(6)
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0, "also from its sleep"


class Worker:
    def __init__(self) -> None:
        self.kills: list[str] = []

    def kill(self, why: str, *, hung: bool = False) -> None:
        self.kills.append(why)


class Owner:
    def __init__(self) -> None:
        self.discarded = self.reverted = 0
        self.used: list[Weights] = []

    def discard_weights(self) -> None:
        self.discarded += 1

    def use_weights(self, weights: Weights) -> None:
        self.used.append(weights)

    def revert_weights(self) -> None:
        self.reverted += 1


@pytest.mark.anyio
async def test_who_is_woken_before_its_worker_is_dead_gets_the_next_one_at_once() -> None:
    scheduler, owner, worker = SimpleNamespace(in_flight=1), Owner(), Worker()
    operator = Operator(cast(Scheduler, scheduler), owner)
    operator.take(Control(1, "discard"))
    assert operator.halts
    assert not operator.retire(cast(WorkerGroup, worker)), "a step is in flight"
    scheduler.in_flight = 0
    assert operator.retire(cast(WorkerGroup, worker))
    assert len(worker.kills) == 1
    assert operator.take_answered(serving=False) == []
    operator.take(Control(2, "wake"))
    assert not operator.halts
    assert operator.take_answered(serving=False) == [ControlDone(1)], "it sleeps no more; no worker is ready"
    delay: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    assert operator.worker_died(delay, "killed")
    assert delay.result() == 0.0
    assert operator.take_answered(serving=True) == [ControlDone(2)]
    assert owner.discarded == 0
    assert not operator.worker_died(asyncio.get_running_loop().create_future(), "killed"), (
        "the next one dies of something else"
    )


@pytest.mark.anyio
async def test_weights_are_dropped_once_the_worker_is_dead_also_by_a_second_deeper_sleep() -> None:
    owner, worker = Owner(), Worker()
    operator = Operator(cast(Scheduler, SimpleNamespace(in_flight=0)), owner)
    operator.take(Control(1, "sleep"))
    operator.retire(cast(WorkerGroup, worker))
    delay: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    operator.worker_died(delay, "killed")
    assert (owner.discarded, delay.done()) == (0, False)
    operator.take(Control(2, "discard"))
    assert owner.discarded == 1
    assert operator.take_answered(serving=False) == [ControlDone(1), ControlDone(2)]
    operator.take(Control(3, "wake"))
    assert delay.result() == 0.0
    operator.take(Control(4, "sleep"))
    operator.retire(cast(WorkerGroup, worker))
    operator.worker_died(asyncio.get_running_loop().create_future(), "killed")
    assert owner.discarded == 1, "the next sleep keeps them"


def test_a_worker_that_dies_while_it_wakes_is_replaced_as_any_other(tmp_path: Path) -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(tmp_path, "ready", "vanishes", "ready")))
        received = Received(engine)
        received.until_ready()
        request = submit(0, tokens=60)
        send(engine, request)
        received.until_tokens(5, 0)
        send(engine, Control(1, "sleep"))
        received.until_done(1)
        send(engine, Control(2, "wake"))
        received.until_done(2)
        received.until_ended(1)
        received.check(request)
        assert len(received.stalls) == 1
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0


def test_prepared_weights_are_dropped_from_memory() -> None:
    files = [os.memfd_create("weights") for _ in range(2)]
    try:
        for fd in files:
            os.write(fd, b"weights")
        WorkerSource("stentor.tests.engine.mortal_worker", files).discard_weights()
        assert [os.fstat(fd).st_size for fd in files] == [0, 0]
    finally:
        for fd in files:
            os.close(fd)


@pytest.mark.anyio
async def test_a_sleep_ends_the_start_of_a_worker_and_a_wake_begins_another() -> None:
    async with stage() as on:
        on.may_start = anyio.Event()
        on.first.process.kill()
        await on.until(Stalled)
        on.control(1, "sleep")
        await on.done(1)
        assert on.starts == 1
        on.control(2, "wake")
        on.control(3, "sleep")
        await on.done(3)
        on.may_start.set()
        on.control(4, "wake")
        await on.done(4)
        assert on.loop._restarts.total == 1, "a start that a sleep has ended is no death"
        on.submit(1)
        (plan, *_) = await on.second.plans()
        on.second.send(answer(plan))
        await on.until(TokensBatch)


@pytest.mark.anyio
async def test_a_worker_that_dies_while_its_engine_falls_asleep_has_no_successor_before_the_wake() -> None:
    async with stage() as on:
        on.submit(1)
        await on.first.plans()
        on.control(1, "sleep")  # the worker is not retired before its step has ended
        on.control(2, "reset_prefix_cache")
        while not on.loop._operator.asleep:
            await anyio.sleep(0.001)
        on.first.process.kill()
        await on.done(2)
        assert on.starts == 0
        on.control(3, "wake")
        await on.done(3)
        assert on.starts == 1
        (plan, *_) = await on.second.plans()
        on.second.send(answer(plan))
        await on.until(TokensBatch)
