"""What a loss looks like from outside, and what the next engine has to hear first."""

import logging
import threading
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import fields

from stentor.engine.client import outages, send_queue
from stentor.engine.client.outages import LostProcess, add_counters
from stentor.engine.client.replicas import EngineReplicas
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import GAUGES, NO_STATS, Finished, Resource, Stats, Thinking, Vocabulary
from stentor.protocols.ipc.histograms import Histogram
from stentor.tests.engine.recovery_world import LONG, PROMPT, die, running, settle

pytestmark = pytest.mark.anyio


# ---- what is told of it


async def test_a_lost_worker_stalls_until_the_engine_is_ready_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    recoveries: list[tuple[LostProcess, float]] = []
    async with running() as (world, tasks):
        world.client.watch_recoveries(lambda process, seconds: recoveries.append((process, seconds)))
        reader = world.submit(tasks)
        await world.step()
        world.engines.now.stall()
        await settle()
        assert world.client.stalled == "the worker process was lost: killed by SIGKILL"
        world.engines.now.get_ready()
        await settle()
        assert world.client.stalled is None
        await world.finish()
        reader.check()
        assert len(world.engines.all) == 1, "the engine itself lives"
    assert [process for process, _ in recoveries] == ["worker"]
    (back,) = (record.getMessage() for record in caplog.records)
    assert back.startswith("the worker is back after 0.0"), "of the loss the engine tells itself"


async def test_a_loss_is_one_line_and_the_return_another(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    moments = iter([100.0, 102.5])
    monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    recoveries: list[tuple[LostProcess, float]] = []
    async with running() as (world, tasks):
        world.client.watch_recoveries(lambda process, seconds: recoveries.append((process, seconds)))
        readers = [world.submit(tasks) for _ in range(3)]
        await world.step()
        await die(world, 1)
        await world.finish()
        for reader in readers:
            reader.check()
        assert world.client.engine_restarts == 1
    lost, back = caplog.records
    assert (lost.levelname, lost.getMessage()) == (
        "WARNING",
        "the engine process was lost: killed by SIGKILL; 3 requests wait",
    )
    assert back.levelname == "INFO"
    assert back.getMessage() == "the engine is back after 2.50 s; 3 requests go on"
    assert recoveries == [("engine", 2.5)]


async def test_counters_go_on_where_those_of_the_dead_engine_ended() -> None:
    async with running() as (world, tasks):
        world.engines.now.send_message(Stats(3, 2, 0.5, 7, 100, 60, 40, 9, 1, 2, 3, 4))
        await settle()
        assert world.client.stats == Stats(3, 2, 0.5, 7, 100, 60, 40, 9, 1, 2, 3, 4)
        world.submit(tasks, n=2)
        await settle()
        world.engines.now.die()
        await world.replaced(2)
        assert world.client.stats == Stats(0, 2, 0.0, 7, 100, 60, 40, 0, 1, 3, 3, 4), "one goes on; gauges are of now"
        world.engines.now.get_ready()
        world.engines.now.send_message(Stats(1, 0, 0.1, 1, 10, 5, 2, 20, 1, 1, 1, 1))
        await settle()
        assert world.client.stats == Stats(1, 0, 0.1, 8, 110, 65, 42, 20, 2, 4, 4, 5)


async def test_who_is_given_up_leaves_counters_and_runs_nothing() -> None:
    async with running() as (world, _tasks):
        world.engines.now.send_message(Stats(3, 2, 0.5, 7, 100, 60, 40, 9, 1, 2, 3, 4))
        world.engines.now.fail(final=True)
        await settle()
        assert world.client.failure == "the engine failed: KeyError: 7"
        assert world.client.stats == Stats(0, 0, 0.0, 7, 100, 60, 40, 0, 1, 2, 3, 4)


async def test_two_engines_tell_their_mean_usage_of_host_memory_and_the_sequences_of_both() -> None:
    async with running() as (one, _), running() as (other, _):
        both = EngineReplicas([one.client, other.client])
        for world, usage in ((one, 0.25), (other, 0.75)):
            world.engines.now.send_message(msgspec.structs.replace(NO_STATS, host_usage=usage))
        await settle()
        assert both.stats.host_usage == 0.5
        assert both.ready is not None
        assert one.client.ready is not None
        assert both.ready.max_num_seqs == 2 * one.client.ready.max_num_seqs > 0


def test_every_field_of_the_statistics_is_added_up_unless_it_is_a_gauge() -> None:
    values: dict[Any, tuple[Any, Any]] = {
        int: (2, 4),
        float: (0.5, 1.0),
        list[int]: ([1, 2], [2, 4]),
        Histogram: (Histogram([1], 3), Histogram([2], 6)),
        dict[Resource, int]: ({"blocks": 1}, {"blocks": 2}),
    }
    each = {field.name: values[field.type] for field in fields(Stats)}
    assert each.keys() > GAUGES
    one = Stats(**{name: value for name, (value, _) in each.items()})
    expected = {name: value if name in GAUGES else doubled for name, (value, doubled) in each.items()}
    assert add_counters(one, one) == Stats(**expected)


async def test_of_two_engines_one_is_given_up_and_what_is_told_is_of_the_other() -> None:
    async with running() as (one, _), running() as (other, _):
        both = EngineReplicas([one.client, other.client])
        for world in (one, other):
            world.engines.now.send_message(Stats(3, 2, 0.5, 7, 100, 60, 40, 9, 1, 2, 3, 4))
        one.engines.now.fail(final=True)
        await settle()
        assert both.stats == Stats(3, 2, 0.5, 14, 200, 120, 80, 9, 2, 4, 6, 8), "counters never go back"
        assert both.ready is not None
        assert both.ready.num_blocks == 64


# ---- requests with grammars


async def test_each_engine_hears_of_the_vocabulary_before_the_first_request_that_needs_it() -> None:
    made: list[int] = []

    def vocabulary() -> list[Vocabulary]:
        made.append(threading.get_ident())
        return [Vocabulary(0, 3, [b"a", b"b"], [], []), Vocabulary(2, 3, [b"c"], [2], [2])]

    thinking = Thinking(5, [], [9], True)
    async with running() as (world, tasks):
        client = world.client
        client.set_vocabulary(vocabulary)
        client.submit(EngineRequest(PROMPT, LONG, [1]))
        await settle()
        world.engines.now.read()
        assert (world.engines.now.vocabulary, made) == ([], []), "nobody has asked for it"
        streams = [
            client.submit(EngineRequest(PROMPT, LONG, [2], grammar="start: /a/")),
            client.submit(EngineRequest(PROMPT, LONG, [3], thinking=thinking)),
        ]
        for deaths in range(2):
            with anyio.fail_after(60):
                while len(world.engines.now.requests) < 3:
                    await anyio.sleep(0.001)
                    world.engines.now.read()
            engine = world.engines.now
            assert len(engine.vocabulary) == 2, "once for each engine"
            assert engine.vocabulary_tokens == 3
            engine.step()
            await settle()
            sent = {request.submit.rid: request.submit for request in engine.requests.values()}
            assert sent[1].grammar == "start: /a/"
            assert sent[2].thinking == thinking
            if not deaths:
                engine.die()
                await world.replaced(2)
                world.engines.now.get_ready()
        assert len(made) == 1, "made once"
        assert made[0] != threading.get_ident(), "off the loop"
        for stream in streams:
            stream.abort()
        tasks.cancel_scope.cancel()


async def test_a_request_given_up_while_the_vocabulary_is_made_never_leaves() -> None:
    making, go = threading.Event(), threading.Event()

    def vocabulary() -> list[Vocabulary]:
        making.set()
        assert go.wait(60)
        return [Vocabulary(0, 1, [b"a"], [], [])]

    async with running() as (world, _):
        world.client.set_vocabulary(vocabulary)
        stream = world.client.submit(EngineRequest(PROMPT, LONG, [1], grammar="start: /a/"))
        await anyio.to_thread.run_sync(making.wait)
        stream.abort()
        go.set()
        assert [event.reason async for events in stream for event in events if isinstance(event, Finished)] == ["abort"]
        after = world.client.submit(EngineRequest(PROMPT, LONG, [2]))
        with anyio.fail_after(60):
            while not world.engines.now.requests:
                await anyio.sleep(0.001)
                world.engines.now.read()
        assert list(world.engines.now.requests) == [after.rid]


async def test_an_engine_that_nobody_needs_gets_the_vocabulary_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_queue, "_LOOK_SECONDS", 0.002)
    async with running() as (world, tasks):
        world.client.set_vocabulary(lambda: [Vocabulary(0, 1, [b"a"], [], [])])
        reader = world.submit(tasks)
        await anyio.sleep(0.05)
        world.engines.now.read()
        assert world.engines.now.vocabulary == [], "somebody waits for tokens"
        await world.finish()
        reader.check()
        with anyio.fail_after(60):
            while not world.engines.now.vocabulary:
                await anyio.sleep(0.001)
                world.engines.now.read()
        world.client.submit(EngineRequest(PROMPT, LONG, [1], grammar="start: /a/"))
        with anyio.fail_after(60):
            while not world.engines.now.requests:
                await anyio.sleep(0.001)
                world.engines.now.read()
        assert len(world.engines.now.vocabulary) == 1, "once is enough"


async def test_a_vocabulary_that_cannot_be_made_costs_nobody_else_anything(caplog: pytest.LogCaptureFixture) -> None:
    def vocabulary() -> list[Vocabulary]:
        raise KeyError("token 7")

    async with running() as (world, _):
        world.client.set_vocabulary(vocabulary)
        world.client.submit(EngineRequest(PROMPT, LONG, [1], grammar="start: /a/"))
        world.client.submit(EngineRequest(PROMPT, LONG, [2]))
        with anyio.fail_after(60):
            while len(world.engines.now.requests) < 2:
                await anyio.sleep(0.001)
                world.engines.now.read()
        assert world.engines.now.vocabulary == [], "the engine refuses what needs it"
    assert "cannot be sent to the engine" in caplog.text
