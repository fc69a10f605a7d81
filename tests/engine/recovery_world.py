"""A client over scripted engines that die when they are told to, and readers of its streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio
import pytest

from stentor.engine.channel import MAX_FRAME
from stentor.engine.client import client as client_module
from stentor.engine.client.client import EngineClient
from stentor.engine.client.request import EngineRequest
from stentor.engine.client.stream import RequestStream
from stentor.engine.processes.supervisor import Supervisor
from stentor.protocols.ipc.actors import EngineEvent, Finished, PromptDone, PromptPart, Submit
from stentor.protocols.ipc.config import EngineConfig, RecoveryConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.tests.engine.scripted_engine import Engines, expected, logprobs_of

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

    def _take(self, event: EngineEvent) -> None:
        assert not isinstance(event, PromptPart), "no audio is streamed here"
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

    @property
    def failed(self) -> bool:
        return any(end.reason == "error" for end in self.ends.values())

    def check(self, *, blamed: bool = False) -> None:
        """What was read is what an undisturbed engine gives; a request that is ``blamed`` has failed on the way."""
        assert self.failed == blamed, self.ends
        assert set(self.ends) == set(range(len(self.submit.seeds)))
        for index, end in self.ends.items():
            tokens, reason = expected(self.submit, index)
            got = self.tokens.get(index, [])
            if end.reason in ("abort", "error"):
                assert end.reason == "error" or index in self.aborted
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

    def __init__(self, max_deaths: int = 1000, hang_seconds: float = 0.0, max_submit: int = MAX_FRAME) -> None:
        self.engines = Engines()
        recovery = RecoveryConfig(max_engine_deaths=max_deaths, watchdog_seconds=hang_seconds)
        config = EngineConfig(WorkerConfig("none"), recovery=recovery)
        self.client = EngineClient(config, process=self.engines.launch(), max_submit=max_submit)
        self.readers: list[Reader] = []
        self.slept: list[float] = []
        """What was waited for between engines, which takes no time here."""
        self._rid = 0

    def submit(self, tasks: anyio.abc.TaskGroup, params: SamplingParams = LONG, n: int = 1) -> Reader:
        seeds = [100 * self._rid + index for index in range(n)]
        submit = Submit(self._rid, PROMPT, params, seeds, 0, "", 0.0)
        self._rid += 1
        reader = Reader(submit, self.client.submit(EngineRequest(PROMPT, params, seeds)))
        self.readers.append(reader)
        tasks.start_soon(reader.read)
        return reader

    def deaths_alone(self, rid: int) -> int:
        """Engines that died with nothing but this request, or with what ended it on the way."""
        return sum(engine.had is not None and engine.had <= {rid} for engine in self.engines.all)

    @property
    def serves(self) -> bool:
        """Whether the client has an engine that can run steps."""
        return self.client._serving and self.client.stalled is None

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
            if not self.serves:
                self.engines.now.get_ready()
            await self.step()
        raise AssertionError("a stream does not end")

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    async def replaced(self, count: int, *, or_asleep: bool = False) -> None:
        """Waits until so many engines have been started, or perhaps until the client sleeps, which starts none."""
        for _ in range(200):
            if len(self.engines.all) >= count or (or_asleep and self.client.controls.asleep):
                return
            await settle()
        raise AssertionError("no other engine is started")


@asynccontextmanager
async def running(
    max_deaths: int = 1000, hang_seconds: float = 0.0, max_submit: int = MAX_FRAME
) -> AsyncIterator[tuple[World, anyio.abc.TaskGroup]]:
    """A client whose first engine is ready; its back-off takes no time."""
    world = World(max_deaths, hang_seconds, max_submit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "Supervisor", partial(Supervisor, sleep=world.sleep))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.client.run)
            world.engines.now.get_ready()
            await world.client.wait_started()
            yield world, tasks
            tasks.cancel_scope.cancel()


async def die(world: World, times: int) -> None:
    for _ in range(times):
        started = len(world.engines.all)
        world.engines.now.die()
        await world.replaced(started + 1)
        world.engines.now.get_ready()
        await settle()
