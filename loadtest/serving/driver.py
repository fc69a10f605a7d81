"""Sends sessions as the stages of a run want them, and keeps what came of each request."""

import asyncio
import contextlib
import math
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from ..record import RequestRecord
from .api import Api, Message, Prompt, Settings
from .arrivals import Stage, gaps
from .http import Address, HttpClient
from .meter import Meter
from .stream import Stream
from .workload import Part, Session, Workload, generator

_PAUSE_AFTER_REFUSAL: Final = 0.1
"""Seconds between two attempts to connect, so that a server that is gone is not tried in a busy loop."""
_DIGITS: Final = 7
"""Decimals of a recorded second."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run is told."""

    address: Address
    api: Api
    settings: Settings = Settings("")
    """A model without a name is the first that the server lists."""
    workload: Workload
    stages: Sequence[Stage]
    seed: int = 0
    name: str = ""
    command: Sequence[str] = ()
    headers: Mapping[str, str] = {}
    tls: ssl.SSLContext | None = None
    timeout: float = 600.0
    """Seconds that a server may be silent within a request."""
    max_concurrency: int | None = None
    warmup: int = 0
    limits: Mapping[str, float] = {}


class _Sent(NamedTuple):
    """A request on its way to a record."""

    stream: Stream
    stage: str
    scheduled: float
    nominal_tokens: int


class _Budget:
    """How much of a stage is left, in requests and in time."""

    def __init__(self, stage: Stage, now: float) -> None:
        self.stage = stage
        self.left = stage.requests or sys.maxsize
        self.until = math.inf if stage.seconds is None else now + stage.seconds
        self.spent = asyncio.Event()

    def cut(self, session: Session) -> Session | None:
        """As much of a session as there is budget for; None where there is none."""
        if perf_counter() >= self.until:
            return None
        turns = session.turns[: self.left]
        self.left -= len(turns)
        return msgspec.structs.replace(session, turns=turns) if turns else None


class Driver:
    """One run. ``records`` may be read at any time, also after a cancelled run."""

    def __init__(self, client: HttpClient, load: Load) -> None:
        self.meter = Meter()
        self.origin = perf_counter()
        self._client = client
        self._load = load
        self._slots: contextlib.AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else contextlib.nullcontext()
        )
        self._numbers: Iterator[int] = count()
        self._sent: list[_Sent] = []
        self._budget: _Budget
        self._users: set[int] = set()

    @property
    def records(self) -> list[RequestRecord]:
        """One for each request that has ended, in order of sending."""
        return sorted(map(self._record, self._sent), key=lambda record: record.start)

    async def run(self, stages: Sequence[Stage]) -> None:
        """Every stage in turn; returns when the last answer has come. Cancelling it ends all that is on its way."""
        self.origin = perf_counter()
        rng = generator(self._load.seed, Part.ARRIVALS)
        async with asyncio.TaskGroup() as group:
            for stage in stages:
                self.meter.stage = stage.name
                self._budget = _Budget(stage, perf_counter())
                if stage.concurrency is not None:
                    await self._run_users(group, self._budget, stage.concurrency)
                else:
                    await self._run_arrivals(group, self._budget, rng)

    async def warm_up(self, requests: int, concurrency: int) -> list[RequestRecord]:
        """Sessions that are not counted."""
        self._numbers = count(-1, -1)
        try:
            await self.run([Stage(concurrency=concurrency, requests=requests)])
            return self.records
        finally:  # also of a warm-up that was interrupted
            self._sent.clear()
            self._numbers = count()
            self.meter = Meter()

    async def _run_users(self, group: asyncio.TaskGroup, budget: _Budget, concurrency: int) -> None:
        for user in range(concurrency):
            if user not in self._users:
                self._users.add(user)
                group.create_task(self._user(user))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(budget.stage.seconds):
                await budget.spent.wait()

    async def _user(self, user: int) -> None:
        """Asks, waits, asks again, for as long as the stage wants this many users; over into the next one."""
        while user < ((budget := self._budget).stage.concurrency or 0):
            session = self._next(budget)
            if session is None:
                budget.spent.set()
                break
            await self._converse(session, budget.stage.name, perf_counter())
        self._users.discard(user)

    async def _run_arrivals(self, group: asyncio.TaskGroup, budget: _Budget, rng: np.random.Generator) -> None:
        stage = budget.stage
        assert stage.rate is not None
        when = perf_counter()
        for gap in gaps(rng, stage.rate, stage.burstiness):
            await asyncio.sleep(max(0.0, min(when, budget.until) - perf_counter()))
            session = self._next(budget) if when < budget.until else None
            if session is None:
                return
            group.create_task(self._converse(session, stage.name, when))
            when += gap

    def _next(self, budget: _Budget) -> Session | None:
        return budget.cut(self._load.workload.session(next(self._numbers)))

    async def _converse(self, session: Session, stage: str, scheduled: float) -> None:
        """A session's turns, each with the answers before it; ends at the first that fails."""
        messages = list(session.opening)
        for index, turn in enumerate(session.turns):
            if index:
                scheduled = perf_counter() + turn.think
                await asyncio.sleep(turn.think)
            last = index + 1 == len(session.turns)
            if turn.tokens is None:
                messages.append(Message("user", turn.text))
                prompt = Prompt(messages, output_tokens=turn.output_tokens)
            else:
                prompt = Prompt(tokens=turn.tokens, output_tokens=turn.output_tokens)
            async with self._slots:
                stream = await self._send(prompt, stage, scheduled, keep_text=not last)
            if stream.error is not None:
                if stream.error.startswith("connection"):
                    await asyncio.sleep(_PAUSE_AFTER_REFUSAL)
                return
            messages.append(Message("assistant", stream.text))

    async def _send(self, prompt: Prompt, stage: str, scheduled: float, keep_text: bool) -> Stream:
        api, meter = self._load.api, self.meter
        body = api.body(prompt, self._load.settings)
        meter.begin()
        stream = Stream(api.read, meter, keep_text)
        try:
            await self._client.post(api.path, body, stream)
        finally:  # also of a request that an interrupt cut off, which counts as nothing
            meter.in_flight -= 1
        meter.completed += stream.error is None
        meter.errors += stream.error is not None
        self._sent.append(_Sent(stream, stage, scheduled, prompt.nominal_tokens))
        return stream

    def _record(self, sent: _Sent) -> RequestRecord:
        stream, usage = sent.stream, sent.stream.usage
        return RequestRecord(
            start=round(stream.began - self.origin, _DIGITS),
            scheduled=round(sent.scheduled - self.origin, _DIGITS),
            prompt_tokens=(usage.prompt_tokens if usage is not None else 0) or sent.nominal_tokens,
            output_tokens=usage.completion_tokens if usage is not None else stream.tokens,
            ttft=None if stream.ttft is None else round(stream.ttft, _DIGITS),
            itl=[round(gap, _DIGITS) for gap in stream.gaps],
            chunk_tokens=stream.chunk_tokens,
            e2e=round(stream.ended - stream.began, _DIGITS),
            error=stream.error,
            finish_reason=stream.finish,
            stage=sent.stage,
            request_id="" if stream.error is None else stream.request_id,
        )
