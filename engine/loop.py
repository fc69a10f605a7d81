"""The engine loop: drain the mailbox, plan, send, process. It owns the scheduler and nobody else touches it.

One step is always ahead: while the worker runs step N, step N+1 has been planned and sent, so the worker
never waits for the engine. The result of N is processed, and N+2 planned, while N+1 runs.
"""

import time
from typing import assert_never

import anyio

from stentor.protocols.actors import (
    Abort,
    Failed,
    Progress,
    Shutdown,
    StartEngine,
    Submit,
    TokensBatch,
    WorkerReady,
)
from stentor.protocols.codec import decode_engine, decode_engine_worker, encoder
from stentor.protocols.steps import StepResult

from .actor import Actor
from .channel import Endpoint, PeerDied
from .groups import first_cause
from .process import Child
from .scheduler import MAX_IN_FLIGHT, Scheduler

_STATS_SECONDS = 0.25
_MAILBOX_MESSAGES = 32
"""Requests that one round takes in at most: however many come at once, steps go on between them."""

Message = StartEngine | Submit | Abort | Shutdown | Progress | WorkerReady | Failed | StepResult


class WorkerLost(Exception):
    """The worker cannot go on; the message says why."""


class EngineLoop(Actor[Message]):
    """Lives from the moment that the worker is ready until :class:`Shutdown` or a death.

    Two pumps fill its mailbox, from the client's channel and from the worker's. It is bounded for the client's
    messages, so a loop that waits for a slow client stops reading, and back-pressure reaches whoever writes. Results
    go in however full it is, for there are never more than steps in flight: a crowd of requests cannot hold them up.
    """

    def __init__(self, client: Endpoint, worker: Endpoint, worker_child: Child, scheduler: Scheduler) -> None:
        super().__init__("the engine loop", _MAILBOX_MESSAGES)
        self._client = client
        self._worker = worker
        self._worker_child = worker_child
        self._scheduler = scheduler
        self._stats_sent = 0.0

    async def main(self) -> None:
        """Raises :class:`WorkerLost` after every live choice has got its terminal message, :class:`PeerDied` when
        the client is gone."""
        death: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump_client)
                tasks.start_soon(self._pump_worker)
                await self._send_stats()
                while await self._turn():
                    pass
                tasks.cancel_scope.cancel()
        except* (WorkerLost, PeerDied) as group:
            death = first_cause(group)
        if death is not None:
            raise death

    async def _turn(self) -> bool:
        """One round; false when told to end."""
        out = TokensBatch([], [], [])
        for message in await self.mailbox.receive_all():
            match message:
                case StepResult() as result:
                    _add(out, self._scheduler.complete(result, time.monotonic()))
                case Submit() as request:
                    if (refused := self._scheduler.submit(request, time.monotonic())) is not None:
                        _add(out, refused)
                case Abort(rid=rid, index=index):
                    if (aborted := self._scheduler.abort(rid, index)) is not None:
                        _add(out, aborted)
                case Failed(message=why):
                    await self._send_batch(out)
                    await self._end_all(why)
                case Shutdown():
                    return False
                case StartEngine() | Progress() | WorkerReady():
                    raise RuntimeError(f"{type(message).__name__} came while the engine runs")
                case other:
                    assert_never(other)
        # the worker first: it may be waiting, the client never is
        while self._scheduler.in_flight < MAX_IN_FLIGHT:
            plan = self._scheduler.plan(time.monotonic())
            if plan is None:
                break
            try:
                await self._worker.send(encoder.encode(plan))
            except PeerDied:
                break  # told by _pump_worker, once it has read what the worker still sent
        await self._send_batch(out)
        await self._send_stats()
        return True

    async def _send_batch(self, batch: TokensBatch) -> None:
        if batch.tokens or batch.finished or batch.prompts:
            await self._client.send(encoder.encode(batch))

    async def _send_stats(self) -> None:
        """A few times a second while working, and once more when the work ends."""
        now = time.monotonic()
        if now - self._stats_sent >= _STATS_SECONDS or not self._scheduler.has_work:
            self._stats_sent = now
            await self._client.send(encoder.encode(self._scheduler.stats()))

    async def _pump_client(self) -> None:
        while True:
            for frame in await self._client.receive():
                await self.mailbox.tell(decode_engine.decode(frame))

    async def _pump_worker(self) -> None:
        try:
            while True:
                for frame in await self._worker.receive():
                    self.mailbox.push(decode_engine_worker.decode(frame))
        except PeerDied:
            await self._worker_child.wait()
            self.mailbox.push(Failed(f"the worker process was lost: {self._worker_child.description}"))

    async def _end_all(self, why: str) -> None:
        await self._client.send(encoder.encode(self._scheduler.end_all("error", why)))
        raise WorkerLost(why)


def _add(batch: TokensBatch, more: TokensBatch) -> None:
    """Appends to ``batch`` what came later, so that a round sends one message; mutates it."""
    batch.prompts.extend(more.prompts)
    batch.tokens.extend(more.tokens)
    batch.finished.extend(more.finished)
