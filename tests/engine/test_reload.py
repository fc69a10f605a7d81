"""A real engine whose workers load other weights: requests go on, and weights that cannot be loaded change nothing."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from stentor.engine.client.client import EngineClient
from stentor.engine.client.controls import ControlFailed
from stentor.engine.client.replicas import ReplicaControls, Router
from stentor.engine.core.operator import Operator
from stentor.engine.core.scheduler import Scheduler
from stentor.engine.core.worker_group import WorkerGroup
from stentor.protocols.ipc.actors import Control, ControlDone, Profile, Shutdown, StartEngine
from stentor.protocols.ipc.config import Weights
from stentor.tests.engine.engine_processes import SOON, engine_process, send
from stentor.tests.engine.mortal_worker import lives, mortal_config
from stentor.tests.engine.recovery_world import running, settle
from stentor.tests.engine.test_sleep import Owner, Worker
from stentor.tests.engine.test_worker_deaths import Received, submit


def _folder(path: Path, *starts: str) -> Path:
    """A model whose workers start so."""
    path.mkdir()
    (path / "starts").write_text("\n".join(starts))
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_with_the_new_weights_goes_on_with_every_request(tmp_path: Path, workers: int) -> None:
    first, second = _folder(tmp_path / "first"), _folder(tmp_path / "second", "ready")
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(first, workers=workers)))
        received = Received(engine)
        received.until_ready()
        early, late = submit(0, tokens=60, seeds=(1, 2)), submit(1, tokens=20)
        send(engine, early)
        received.until_tokens(20, 0)
        send(engine, Control(1, "reload", Weights(str(second))), late)
        received.until_done(1)
        assert (lives(first), lives(second)) == (1, 1)
        received.until_ended(3)
        received.check(early, late)
        assert (received.errors, received.stalls) == ({}, [])
        assert received.until_idle().worker_restarts == 0
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0


@pytest.mark.parametrize("start", ["refuses", "vanishes"])
def test_weights_that_cannot_be_loaded_are_an_error_and_the_former_ones_serve_on(tmp_path: Path, start: str) -> None:
    first, second = _folder(tmp_path / "first"), _folder(tmp_path / "second", start)
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(first)))
        received = Received(engine)
        received.until_ready()
        request = submit(0, tokens=60)
        send(engine, request)
        received.until_tokens(5, 0)
        send(engine, Control(1, "reload", Weights(str(second))))
        received.until_done(1)
        assert ("no such model" if start == "refuses" else "lost") in received.errors[1]
        assert (lives(first), lives(second)) == (2, 1)
        received.until_ended(1)
        received.check(request)
        assert received.stalls == []
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0


@pytest.mark.parametrize("start", ["ready", "refuses"])
def test_weights_that_come_during_a_sleep_are_loaded_by_the_worker_that_wakes(tmp_path: Path, start: str) -> None:
    first, second = _folder(tmp_path / "first"), _folder(tmp_path / "second", start)
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(first)))
        received = Received(engine)
        received.until_ready()
        send(engine, Control(1, "discard"), Control(2, "reload", Weights(str(second))))
        received.until_done(2)
        assert (lives(second), received.errors) == (0, {})
        send(engine, Control(3, "wake"))
        received.until_done(3)
        assert (lives(first), lives(second)) == (1 + (start == "refuses"), 1)
        assert (3 in received.errors) == (start == "refuses")
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0


def test_after_two_reloads_in_a_sleep_that_fail_the_weights_of_the_last_worker_are_used(tmp_path: Path) -> None:
    first = _folder(tmp_path / "first")
    others = [_folder(tmp_path / name, "refuses") for name in ("second", "third")]
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(first)))
        received = Received(engine)
        received.until_ready()
        send(engine, Control(1, "sleep"))
        received.until_done(1)
        send(engine, *(Control(n, "reload", Weights(str(folder))) for n, folder in enumerate(others, 2)))
        received.until_done(3)
        send(engine, Control(4, "wake"))
        received.until_done(4)
        assert received.errors.keys() == {4}
        assert "no such model" in received.errors[4]
        assert [lives(folder) for folder in (first, *others)] == [2, 0, 1]
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0


@pytest.mark.anyio
async def test_an_engine_that_is_lost_is_followed_by_one_with_the_weights_that_were_loaded_last() -> None:
    async with running() as (world, tasks):
        controls = world.client.controls
        failures: list[tuple[str, Weights | None]] = []

        async def reload(model: str) -> None:
            try:
                await controls.reload(Weights(model))
            except ControlFailed as failed:
                failures.append((str(failed), failed.weights))

        first = controls.weights
        world.engines.now.refuses_weights = "a tensor is missing"
        tasks.start_soon(reload, "torn")
        await world.step()
        assert failures.pop() == ("a tensor is missing", first)
        world.engines.now.refuses_weights = ""
        tasks.start_soon(reload, "second")
        await world.step()
        assert (failures, controls.weights) == ([], Weights("second"))
        tasks.start_soon(reload, "third")
        await settle()
        world.engines.now.die()  # before it has answered
        await world.replaced(2)
        ((why, weights),) = failures
        assert ("away" in why, weights) == (True, Weights("second"))
        assert world.engines.models == ["second"]
        world.engines.now.get_ready()
        await world.finish()


@pytest.mark.anyio
async def test_weights_for_an_engine_that_was_lost_asleep_are_those_of_its_successor() -> None:
    async with running() as (world, tasks):
        controls = world.client.controls
        tasks.start_soon(controls.sleep)
        await world.step()
        world.engines.now.die()
        await settle()
        await controls.reload(Weights("second"))
        tasks.start_soon(controls.wake)
        await world.replaced(2)
        assert world.engines.models == ["second"]
        world.engines.now.get_ready()
        await world.step()
        await world.finish()


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["refuses", "vanishes"])
async def test_an_engine_that_cannot_load_the_weights_of_one_that_was_lost_asleep_is_followed_by_one_with_the_former(
    end: str,
) -> None:
    async with running(max_deaths=2) as (world, tasks):
        controls = world.client.controls
        first = controls.weights
        reader = world.submit(tasks)
        await world.step()
        tasks.start_soon(controls.sleep)
        await world.step()
        world.engines.now.die()
        await settle()
        await controls.reload(Weights("torn"))
        failures: list[ControlFailed] = []

        async def wake() -> None:
            try:
                await controls.wake()
            except ControlFailed as failed:
                failures.append(failed)

        tasks.start_soon(wake)
        await world.replaced(2)
        if end == "refuses":
            world.engines.now.fail(final=True)
        else:
            world.engines.now.die()
        await world.replaced(3)
        assert not failures, "it is not awake yet"
        world.engines.now.get_ready()
        await world.step()
        (failed,) = failures
        assert ("KeyError" if end == "refuses" else "lost") in str(failed)
        assert world.engines.models == ["torn", first.model]
        assert (failed.weights, controls.weights) == (first, first)
        tasks.start_soon(controls.wake)
        await world.step()
        assert len(failures) == 1, "it is told once"
        await world.finish()
        reader.check()


@pytest.mark.anyio
async def test_engines_that_could_load_weights_go_back_where_one_could_not() -> None:
    engines = [_Engine(why) for why in ("", "a tensor is missing", "")]
    controls = ReplicaControls(lambda: cast("list[EngineClient]", engines), Router(3))
    with pytest.raises(ControlFailed, match="a tensor is missing"):
        await controls.reload(Weights("second"))
    assert [engine.told for engine in engines] == [["second", "first"], ["second"], ["second", "first"]]
    assert {engine.weights.model for engine in engines} == {"first"}


class _Engine:
    """A client and its controls."""

    def __init__(self, why: str) -> None:
        self.why = why
        """Why it cannot load others."""
        self.controls = self
        self.told: list[str] = []
        self.weights = Weights("first")

    async def reload(self, weights: Weights) -> None:
        self.told.append(weights.model)
        if self.why:
            raise ControlFailed(self.why, self.weights)
        self.weights = weights


def _operator(in_flight: int = 0) -> tuple[Operator, SimpleNamespace, Owner]:
    scheduler, owner = SimpleNamespace(in_flight=in_flight), Owner()
    return Operator(cast(Scheduler, scheduler), owner), scheduler, owner


@pytest.mark.anyio
async def test_a_worker_that_dies_before_it_is_retired_is_replaced_and_its_successor_retired() -> None:
    operator, scheduler, owner = _operator(in_flight=1)
    weights = Weights("second")
    operator.take(Control(1, "reload", weights))
    assert operator.halts
    assert not operator.retire(cast(WorkerGroup, Worker())), "a step is in flight"
    delay: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    assert not operator.worker_died(delay, "killed"), "as any other"
    assert (owner.used, operator.take_answered(serving=False)) == ([], [])
    scheduler.in_flight = 0
    operator.worker_ready()
    assert operator.retire(cast(WorkerGroup, Worker()))
    assert operator.worker_died(delay, "retired")
    assert (delay.result(), owner.used, owner.discarded) == (0.0, [weights], 1)
    assert operator.take_answered(serving=False) == []
    operator.worker_ready()
    assert operator.take_answered(serving=True) == [ControlDone(1)]
    later: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    assert not operator.worker_died(later, "killed"), "weights that were loaded once are not to blame"
    assert owner.reverted == 0


def test_a_profile_is_ordered_between_two_steps_and_ends_by_itself_after_many() -> None:
    operator, scheduler, _ = _operator(in_flight=1)
    operator.take(Control(1, "stop_profile"))
    assert operator.take_answered(serving=True) == [ControlDone(1, "no profile is being taken")]
    operator.take(Control(2, "start_profile"))
    assert operator.halts
    assert operator.profile_order() is None, "a step is in flight"
    scheduler.in_flight = 0
    assert operator.profile_order() == Profile(True)
    assert operator.profile_order() is None, "it is told once"
    assert operator.take_answered(serving=True) == []
    operator.profiled("")
    assert not operator.halts
    assert operator.take_answered(serving=True) == [ControlDone(2)]
    operator.take(Control(3, "start_profile"))
    assert operator.take_answered(serving=True) == [ControlDone(3, "a profile is being taken already")]
    steps = 0
    while not operator.halts:
        operator.planned()
        steps += 1
    assert steps == 2000
    assert operator.profile_order() == Profile(False)
    operator.profiled("the disk is full")
    operator.take(Control(4, "stop_profile"))
    assert operator.take_answered(serving=True) == [ControlDone(4, "no profile is being taken")]


@pytest.mark.anyio
async def test_a_profile_ends_with_the_worker_and_none_begins_without_one() -> None:
    operator, _, _ = _operator()
    operator.take(Control(1, "start_profile"))
    assert operator.profile_order() == Profile(True)
    delay: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    operator.worker_died(delay, "killed")
    assert not operator.halts
    (lost,) = operator.take_answered(serving=False)
    assert "lost" in lost.error
    operator.take(Control(2, "sleep"))
    operator.take(Control(3, "start_profile"))
    assert operator.retire(cast(WorkerGroup, Worker()))
    operator.worker_died(asyncio.get_running_loop().create_future(), "retired")
    assert operator.take_answered(serving=False) == [
        ControlDone(2),
        ControlDone(3, "there is no worker: the engine sleeps"),
    ]
