"""Engines die at any moment, and no stream loses a token, gets one twice, or ends otherwise than it would have."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stentor.engine import client as client_module
from stentor.engine.client import EngineClient, EngineUnavailable
from stentor.engine.outages import LostProcess
from stentor.engine.stream import RequestStream
from stentor.engine.supervisor import Supervisor
from stentor.protocols.actors import ChoiceTokens, Finished, PromptDone, Stats, Submit, Thinking, Vocabulary
from stentor.protocols.config import EngineConfig, RecoveryConfig, WorkerConfig
from stentor.protocols.sampling import SamplingParams
from stentor.protocols.steps import TokenLogprobs
from stentor.tests.engine.scripted_engine import NONSENSE, Engines, expected, logprobs_of

PROMPT = [5, 6, 7]
LONG = SamplingParams(max_tokens=50)


async def settle() -> None:
    """Lets every task go on until it waits."""
    for _ in range(12):
        await asyncio.sleep(0)


@dataclass
class Reader:
    """One stream and what has been read of it."""

    submit: Submit
    stream: RequestStream
    prompts: list[PromptDone] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    ends: dict[int, Finished] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)

    async def read(self) -> None:
        """To the end."""
        async for events in self.stream:
            for event in events:
                self._take(event)

    def _take(self, event: PromptDone | ChoiceTokens | Finished) -> None:
        if isinstance(event, PromptDone):
            assert not self.tokens, "the prompt was done after the first token"
            self.prompts.append(event)
            return
        assert event.index not in self.ends, "something came after the end"
        if isinstance(event, Finished):
            self.ends[event.index] = event
            return
        self.tokens.setdefault(event.index, []).extend(event.tokens)
        if event.logprobs is not None:
            self.logprobs.setdefault(event.index, []).extend(event.logprobs)

    def abort(self, index: int) -> None:
        self.aborted |= set(range(len(self.submit.seeds))) if index < 0 else {index}
        self.stream.abort(index)

    def check(self) -> None:
        """What was read is what an undisturbed engine gives."""
        assert set(self.ends) == set(range(len(self.submit.seeds)))
        for index, end in self.ends.items():
            tokens, reason = expected(self.submit, index)
            got = self.tokens.get(index, [])
            if end.reason == "abort":
                assert index in self.aborted
                assert got == tokens[: len(got)]
            else:
                assert (got, end.reason) == (tokens, reason)
            if self.submit.params.logprobs is not None:
                assert self.logprobs.get(index, []) == logprobs_of(got)
        assert len(self.prompts) <= 1
        if self.tokens:
            (prompt,) = self.prompts
            asked = self.submit.params.prompt_logprobs is not None
            assert prompt.logprobs == ([None, *logprobs_of(self.submit.prompt[1:])] if asked else None)


class World:
    """A client over scripted engines."""

    def __init__(self, max_deaths: int = 1000, hang_seconds: float = 0.0) -> None:
        self.engines = Engines()
        recovery = RecoveryConfig(max_engine_deaths=max_deaths, watchdog_seconds=hang_seconds)
        config = EngineConfig(WorkerConfig("none"), recovery=recovery)
        self.client = EngineClient(config, process=self.engines.launch())
        self.readers: list[Reader] = []
        self._rid = 0

    def submit(self, tasks: anyio.abc.TaskGroup, params: SamplingParams = LONG, n: int = 1) -> Reader:
        seeds = [100 * self._rid + index for index in range(n)]
        submit = Submit(self._rid, PROMPT, params, seeds, 0, "", 0.0)
        self._rid += 1
        reader = Reader(submit, self.client.submit(PROMPT, params, seeds))
        self.readers.append(reader)
        tasks.start_soon(reader.read)
        return reader

    async def step(self, wanted: Callable[[int], bool] = lambda _rid: True) -> None:
        await settle()
        self.engines.now.read()
        self.engines.now.step(wanted)
        await settle()

    async def finish(self) -> None:
        """An engine that lives, until every stream has ended."""
        for _ in range(200):
            await settle()
            if all(len(reader.ends) == len(reader.submit.seeds) for reader in self.readers):
                return
            if self.client.stalled is not None:
                self.engines.now.get_ready()
            await self.step()
        raise AssertionError("a stream does not end")

    async def replaced(self, count: int) -> None:
        """Waits until so many engines have been started."""
        for _ in range(200):
            if len(self.engines.all) >= count:
                return
            await settle()
        raise AssertionError("no other engine is started")


@asynccontextmanager
async def running(
    max_deaths: int = 1000, hang_seconds: float = 0.0
) -> AsyncIterator[tuple[World, anyio.abc.TaskGroup]]:
    """A client whose first engine is ready; its back-off takes no time."""
    world = World(max_deaths, hang_seconds)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.client.run)
        world.engines.now.get_ready()
        await world.client.wait_started()
        yield world, tasks
        tasks.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for between engines, which takes no time here."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(client_module, "Supervisor", partial(Supervisor, sleep=sleep))
    return slept


# ---- any order of events


NAMES = ["read", "die", "die at once", "fail", "babble", "refuse", "stall", "ready", "settle"]
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
            if world.client.stalled is not None:
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
            await world.replaced(len(world.engines.all) + 1)
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


async def _play(actions: list[tuple[Any, ...]]) -> None:
    async with running() as (world, tasks):
        for action in actions:
            await _act(world, tasks, action)
        await world.finish()
        for reader in world.readers:
            reader.check()
        assert len(world.client._journal) == 0
        assert world.client.failure is None
        assert all(engine.closed for engine in world.engines.all[:-1])
        assert world.client.engine_restarts >= len(world.engines.all) - 1
    assert world.engines.now.closed


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS)
def test_each_stream_gets_exactly_its_tokens_whatever_dies_when(actions: list[tuple[Any, ...]]) -> None:
    anyio.run(_play, actions)


# ---- one thing at a time


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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


async def test_tokens_are_kept_until_their_choice_ends_and_no_longer() -> None:
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


# ---- when it is given up


async def _die(world: World, times: int) -> None:
    for _ in range(times):
        started = len(world.engines.all)
        world.engines.now.die()
        await world.replaced(started + 1)
        world.engines.now.get_ready()
        await settle()


async def test_it_is_given_up_after_deaths_in_a_row_without_a_token(slept: list[float]) -> None:
    async with running(max_deaths=5) as (world, tasks):
        reader = world.submit(tasks, n=2)
        await world.step()
        await _die(world, 4)
        assert world.client.failure is None
        world.engines.now.die()
        await settle()
        assert slept == [0.0, 0.1, 0.2, 0.4]
        assert len(world.engines.all) == 5
        why = "the engine was lost 5 times in a row without a token between; at last the engine process was lost: "
        assert world.client.failure == why + "killed by SIGKILL"
        assert {end.reason for end in reader.ends.values()} == {"error"}
        assert sorted(reader.ends) == [0, 1]
        assert world.client.stalled is None
        with pytest.raises(EngineUnavailable, match="5 times in a row"):
            world.submit(tasks)


async def test_a_token_between_deaths_begins_the_row_anew(slept: list[float]) -> None:
    async with running(max_deaths=3) as (world, tasks):
        world.submit(tasks, n=3)
        for _ in range(3):
            await _die(world, 2)
            await world.step()
        assert world.client.failure is None
        assert slept == [0.0, 0.1] * 3


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
        with anyio.fail_after(5):
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
        with anyio.fail_after(5):
            while len(world.engines.all) == 1:
                await anyio.sleep(0.01)
        assert world.client.stalled == "the engine process hung: it was killed"
        assert world.client.stats.watchdog_kills == 1
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


async def test_a_loss_is_one_line_and_the_return_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    recoveries: list[tuple[LostProcess, float]] = []
    async with running() as (world, tasks):
        world.client.watch_recoveries(lambda process, seconds: recoveries.append((process, seconds)))
        readers = [world.submit(tasks) for _ in range(3)]
        await world.step()
        await _die(world, 1)
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
    assert back.getMessage().startswith("the engine is back after 0.0")
    assert back.getMessage().endswith(" s; 3 requests go on")
    ((process, seconds),) = recoveries
    assert process == "engine"
    assert 0 <= seconds < 1


async def test_counters_go_on_where_those_of_the_dead_engine_ended() -> None:
    async with running() as (world, tasks):
        world.engines.now.send_message(Stats(3, 2, 0.5, 7, 100, 60, 40, 9, 1, 2, 3, 4))
        await settle()
        assert world.client.stats == Stats(3, 2, 0.5, 7, 100, 60, 40, 9, 1, 2, 3, 4)
        world.submit(tasks, n=2)
        world.engines.now.die()
        await world.replaced(2)
        assert world.client.stats == Stats(0, 2, 0.0, 7, 100, 60, 40, 0, 1, 2, 3, 4), "gauges are of now"
        world.engines.now.get_ready()
        world.engines.now.send_message(Stats(1, 0, 0.1, 1, 10, 5, 2, 20, 1, 1, 1, 1))
        await settle()
        assert world.client.stats == Stats(1, 0, 0.1, 8, 110, 65, 42, 20, 2, 3, 4, 5)


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
        client.submit(PROMPT, LONG, [1])
        await settle()
        world.engines.now.read()
        assert (world.engines.now.vocabulary, made) == ([], []), "nobody has asked for it"
        streams = [
            client.submit(PROMPT, LONG, [2], grammar="start: /a/"),
            client.submit(PROMPT, LONG, [3], thinking=thinking),
        ]
        for deaths in range(3):
            with anyio.fail_after(5):
                while len(world.engines.now.requests) < 3:
                    await anyio.sleep(0.001)
                    world.engines.now.read()
            engine = world.engines.now
            assert len(engine.vocabulary) == 2, "once for each engine"
            assert engine.told == 3
            engine.step()
            await settle()
            sent = {request.submit.rid: request.submit for request in engine.requests.values()}
            assert sent[1].grammar == "start: /a/"
            assert sent[2].thinking == thinking
            if deaths < 2:
                engine.die()
                await world.replaced(deaths + 2)
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
        assert go.wait(5)
        return [Vocabulary(0, 1, [b"a"], [], [])]

    async with running() as (world, _):
        world.client.set_vocabulary(vocabulary)
        stream = world.client.submit(PROMPT, LONG, [1], grammar="start: /a/")
        await anyio.to_thread.run_sync(making.wait)
        stream.abort()
        go.set()
        assert [event.reason async for events in stream for event in events if isinstance(event, Finished)] == ["abort"]
        after = world.client.submit(PROMPT, LONG, [2])
        with anyio.fail_after(5):
            while not world.engines.now.requests:
                await anyio.sleep(0.001)
                world.engines.now.read()
        assert list(world.engines.now.requests) == [after.rid]


async def test_an_engine_that_nobody_needs_gets_the_vocabulary_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_LOOK_SECONDS", 0.002)
    async with running() as (world, tasks):
        world.client.set_vocabulary(lambda: [Vocabulary(0, 1, [b"a"], [], [])])
        reader = world.submit(tasks)
        await anyio.sleep(0.05)
        world.engines.now.read()
        assert world.engines.now.vocabulary == [], "somebody waits for tokens"
        await world.finish()
        reader.check()
        with anyio.fail_after(5):
            while not world.engines.now.vocabulary:
                await anyio.sleep(0.001)
                world.engines.now.read()
        world.client.submit(PROMPT, LONG, [1], grammar="start: /a/")
        with anyio.fail_after(5):
            while not world.engines.now.requests:
                await anyio.sleep(0.001)
                world.engines.now.read()
        assert len(world.engines.now.vocabulary) == 1, "once is enough"


async def test_a_vocabulary_that_cannot_be_made_costs_nobody_else_anything(caplog: pytest.LogCaptureFixture) -> None:
    def vocabulary() -> list[Vocabulary]:
        raise KeyError("token 7")

    async with running() as (world, _):
        world.client.set_vocabulary(vocabulary)
        world.client.submit(PROMPT, LONG, [1], grammar="start: /a/")
        world.client.submit(PROMPT, LONG, [2])
        with anyio.fail_after(5):
            while len(world.engines.now.requests) < 2:
                await anyio.sleep(0.001)
                world.engines.now.read()
        assert world.engines.now.vocabulary == [], "the engine refuses what needs it"
    assert "cannot be told to the engine" in caplog.text
