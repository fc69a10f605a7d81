"""The engine loop: drain the mailbox, plan steps, send them, process results. It alone uses the scheduler.

One step is always ahead: while the worker runs step N, step N+1 is planned and sent, so the worker never waits for the
engine. While N+1 runs, the result of N is processed and N+2 is planned.

The loop outlives its workers::

    SERVING ── worker lost ──► STALLED ── the next worker is ready ──► SERVING
                                  │ too many deaths in a row, or a process that cannot be killed
                                  ▼
                          every live sequence ends with an error; WorkerLost

While the loop is stalled, paused or asleep (:mod:`.operator`), requests are accepted and aborted as usual, but no step
runs. The client gets :class:`Stalled` as soon as the worker is killed, since the process may take long to die.
"""

import logging
import time
from collections.abc import Callable
from typing import Never, assert_never

import anyio
import msgspec

from stentor.protocols.ipc.actors import (
    Abort,
    Append,
    ClientInbox,
    Control,
    EngineInbox,
    EngineReady,
    MediaWanted,
    MediaWritten,
    Ping,
    Profiled,
    Released,
    Resource,
    ResumedPart,
    Shutdown,
    Stalled,
    StartEngine,
    Stats,
    Submit,
    TokensBatch,
    Vocabulary,
    WorkerReady,
)
from stentor.protocols.ipc.adapters import AdapterLoaded, WarmAdapter
from stentor.protocols.ipc.codec import decode_engine, encoder
from stentor.protocols.ipc.config import RecoveryConfig
from stentor.protocols.ipc.steps import StepResult

from ..channel import MAX_FRAME, Endpoint, PeerDied
from ..channel.pieces import ResumedParts, batch_frames, without_requests
from ..processes.exception_groups import first_cause
from ..processes.mailbox import Mailbox
from ..processes.restart_policy import RestartPolicy, Restarts
from ..sharing.co_tenants import CoTenants
from .event_publisher import EventPublisher
from .grammar.constraint import is_constrained
from .grammar.grammar_queue import GrammarQueue, Prepared
from .grammar.structured_output import StructuredOutputManager
from .operator import Operator
from .request import NOTHING
from .scheduler import MAX_IN_FLIGHT, Scheduler
from .watchdog import Watchdog
from .worker_group import WorkerGroup
from .worker_life import Sleep, WorkerLost
from .worker_succession import WorkerDown, WorkerMessage, Workers, WorkerStuck, WorkerSuccession, WorkerUp

logger = logging.getLogger(__name__)

_STATS_SECONDS = 0.25
_DRAFT_LOG_SECONDS = 10.0
"""Shortest time between two lines about drafts."""
_MAILBOX_MESSAGES = 32
"""Most messages that one round takes from the mailbox. It bounds the time between two steps in a burst of requests."""
_TOO_LARGE = "what the request brings is larger than the engine can pass on"


Message = EngineInbox | Prepared | WorkerMessage


class EngineLoop:
    """Runs from the first worker's readiness until :class:`Shutdown`, the client's death, or too many worker deaths.

    Two tasks fill the mailbox: one reads the client's channel, :class:`.WorkerSuccession` the worker's. The mailbox is
    bounded for the client's messages: a loop that waits for a slow client stops reading, which puts
    back-pressure on senders. Messages about workers are always accepted, since there are never more than the steps in
    flight and one loss.
    """

    def __init__(
        self,
        client: Endpoint,
        worker: WorkerGroup,
        workers: Workers,
        scheduler: Scheduler,
        config: RecoveryConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = anyio.sleep,
        co_tenants: CoTenants | None = None,
        max_frame: int = MAX_FRAME,
        events: EventPublisher | None = None,
    ) -> None:
        """
        Args:
            workers: starts successors of ``worker``.
            clock: seconds, for the watchdog.
            sleep: for the watchdog and the restart delay.
            co_tenants: other engines on the worker's device. A worker that waits for the device is not taken to hang.
        """
        self.mailbox: Mailbox[Message] = Mailbox(_MAILBOX_MESSAGES)
        self._client = client
        self._operator = Operator(scheduler, workers)
        self._scheduler = scheduler
        self._grammar_queue = GrammarQueue(StructuredOutputManager())
        self._resumed = ResumedParts()
        self._restarts = Restarts(RestartPolicy(config.max_worker_deaths), clock)
        self._watchdog = Watchdog(config, clock, sleep, co_tenants)
        self._co_tenants, self._events = co_tenants, events
        self._succession = WorkerSuccession(
            worker,
            workers,
            self._operator,
            self._watchdog,
            report=self.mailbox.push,
            killed=self._stall,
            sleep=sleep,
        )
        self._max_frame = max_frame
        self._serving = True
        self._stalled = ""
        """The last reason for a stall that the client was sent; "" after a worker became ready."""
        self._telling = 0
        """Sends to the client in progress. Above 0 for long only if the client does not read."""
        self._watchdog_kills = 0
        self._stats_sent = 0.0
        self._draft_log = DraftLog()

    @property
    def worker(self) -> WorkerGroup:
        """The current worker group. The caller of :meth:`run` ends it."""
        return self._succession.worker

    async def run(self) -> None:
        """Serve until :class:`Shutdown`.

        Raises :class:`WorkerLost` after every live sequence has got its terminal message, and :class:`PeerDied` if the
        client is gone.
        """
        death: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._pump_client)
                tasks.start_soon(self._succession.run)
                tasks.start_soon(self._watchdog.run, lambda: self.worker, lambda: self._telling > 0, self._stall)
                await self._send_stats()
                while await self._turn():
                    pass
                tasks.cancel_scope.cancel()
        except* (WorkerLost, PeerDied) as group:
            death = first_cause(group)
        if death is not None:
            raise death

    async def _turn(self) -> bool:
        """Run one round; False after :class:`Shutdown`."""
        out = TokensBatch([], [], [])
        for message in await self.mailbox.receive_all():
            if isinstance(message, Shutdown):
                return False
            await self._take(message, out)
        # Send to the worker before the client: the worker may be waiting.
        await self._send_masks(out)
        if self._serving:
            await self._order_adapters()
            if (profile := self._operator.profile_order()) is not None:
                self._watchdog.ordered(profile)
                await self.worker.send(profile)
        await self._send_plans(out)
        await self._send_batch(out)
        if wanted := self._scheduler.prerequisites.take_media_wanted():
            await self._tell(MediaWanted(wanted))
        if released := self._scheduler.take_released():
            await self._tell(Released(released))
        if self._events is not None and (changes := self._scheduler.take_cache_events()):
            self._events.publish(changes)
        await self._send_stats()
        if self._serving and self._operator.retire(self.worker):
            self._serving = False
        for done in self._operator.take_answered(self._serving):
            await self._tell(done)
        return True

    async def _take(self, message: Message, out: TokensBatch) -> None:
        """Take one message of the mailbox; append what the client gets to ``out``."""
        match message:
            case StepResult() | AdapterLoaded() | Profiled() | WorkerDown() | WorkerStuck() | WorkerUp():
                await self._take_from_worker(message, out)
            case Prepared() as prepared:
                self._constrain(prepared, out)
            case request:
                await self._take_from_client(request, out)

    async def _take_from_client(self, message: EngineInbox, out: TokensBatch) -> None:
        match message:
            case ResumedPart() as part:
                self._resumed.add(part)
            case Submit() as request:
                self._submit(self._resumed.joined(request), out)
            case Append() as more:
                _add(out, self._scheduler.append(more))
            case MediaWritten(rid=rid, error=error):
                _add(out, self._scheduler.prerequisites.media_written(rid, error))
            case Abort(rid=rid, index=index):
                _add(out, self._scheduler.abort(rid, index))
            case Vocabulary() as piece:
                is_whole = self._grammar_queue.take(piece)
                if is_whole and not self._scheduler.has_work:
                    self._tasks.start_soon(self._grammar_queue.warm_up)
            case Ping():
                self._stats_sent = 0.0
            case Control() as control:
                self._operator.take(control)
                if self._operator.asleep:
                    self._succession.end_start()
            case WarmAdapter() as warm:
                if (answer := self._scheduler.prerequisites.warm(warm)) is not None:
                    await self._tell(answer)
            case StartEngine() | Shutdown():  # the first comes before the loop, the second ends it before this
                raise RuntimeError(f"{type(message).__name__} came while the engine runs")
            case other:
                assert_never(other)

    async def _take_from_worker(self, message: WorkerMessage, out: TokensBatch) -> None:
        match message:
            case StepResult() as result:
                _add(out, self._scheduler.complete(result, time.monotonic()))
                self._restarts.progressed()
            case WorkerDown() as down:
                await self._send_batch(out)
                _clear(out)
                await self._lose_worker(down)
            case WorkerStuck(why=why, hung=hung):
                await self._send_batch(out)
                self._watchdog_kills += hung
                self._stats_sent = 0.0
                await self._send_stats()
                await self._give_up(why)
            case WorkerUp(ready=ready):
                _add(out, self._scheduler.resize(ready))
                self._serving, self._stalled = True, ""
                self._restarts.ready()
                self._operator.worker_ready()
                await self._tell(engine_ready(ready))
            case AdapterLoaded() as loaded:
                ended, answers = self._scheduler.prerequisites.adapter_loaded(loaded)
                _add(out, ended)
                for answer in answers:
                    await self._tell(answer)
            case Profiled(error=error):
                self._operator.profiled(error)
            case other:
                assert_never(other)

    def _submit(self, request: Submit, out: TokensBatch) -> None:
        """Submit a request, and begin to compile its grammar; append the ends of a refusal to ``out``."""
        _log_arrival(request)
        awaits: frozenset[Resource] = frozenset(["grammar"]) if is_constrained(request) else NOTHING
        ended = self._scheduler.submit(request, awaits=awaits)
        _add(out, ended)
        if ended is None and awaits:
            self._tasks.start_soon(self._prepare, request)

    async def _order_adapters(self) -> None:
        """Order adapters from the worker that requests wait for."""
        orders, answers = self._scheduler.prerequisites.take_adapter_orders()
        for order in orders:
            self._watchdog.ordered(order)
            await self.worker.send(order)
        for answer in answers:
            await self._tell(answer)

    async def _send_plans(self, out: TokensBatch) -> None:
        """Plan and send steps until as many are in flight as may be."""
        crowded = self._co_tenants is not None and self._co_tenants.are_busy()
        while self._serving and not self._operator.halts and self._scheduler.in_flight < MAX_IN_FLIGHT:
            plan = self._scheduler.plan(time.monotonic(), crowded=crowded)
            if plan is None:
                break
            self._watchdog.sent(plan)
            self._operator.planned()
            await self.worker.send(plan)
            await self._send_masks(out)

    async def _send_masks(self, out: TokensBatch) -> None:
        """Send masks if the worker waits for them or will; append to ``out`` the ends of sequences with no allowed
        token."""
        if not self._serving or not self._scheduler.wants_masks:
            return
        masks, ended = self._scheduler.masks()
        _add(out, ended)
        self._watchdog.masked(masks.step)
        await self.worker.send(masks)

    async def _prepare(self, request: Submit) -> None:
        prepared = await self._grammar_queue.prepare(request, self._scheduler.lives)
        if prepared is not None:
            self.mailbox.push(prepared)

    def _constrain(self, prepared: Prepared, out: TokensBatch) -> None:
        """Attach the compiled constraints of a request, or end its sequences if there are none; append the ends to
        ``out``."""
        ends = [(-1, prepared.refusal)]
        if (constraints := prepared.constraints) is not None:
            ends = list(constraints.broken.items())
            _add(out, self._scheduler.prerequisites.constrain(prepared.rid, constraints.sequences))
        for index, why in ends:
            _add(out, self._scheduler.abort(prepared.rid, index, why))

    async def _lose_worker(self, down: WorkerDown) -> None:
        """Keep the requests for the next worker; raise :class:`WorkerLost` if there will be none."""
        self._serving = False
        self._watchdog.steps.lost()
        self._stats_sent = 0.0  # send statistics at once
        if self._operator.worker_died(down.delay, down.why, retired=down.retired):
            await self._send_batch(self._scheduler.recover(blameless=True).ended)
            return
        self._watchdog_kills += down.hung
        recovery = self._scheduler.recover(blameless=down.blameless)
        if recovery.explained:
            logger.error("a request was failed: its workers died of it", extra={"request_id": recovery.culprit})
            self._restarts.progressed()
        if recovery.explained or recovery.in_search or down.blameless:
            self._restarts.excuse()
        delay = self._restarts.failed()
        await self._send_batch(recovery.ended)
        if delay is None:
            times = self._restarts.in_a_row
            await self._give_up(down.why if times == 1 else f"{down.why} ({times} deaths without a completed step)")
        logger.warning(
            "%s; %d requests go on with the next worker, which starts in %.1f s",
            down.why,
            recovery.requests,
            delay,
        )
        await self._tell_stalled(down.why)
        if not down.delay.done() and not self._operator.holds_back(down.delay):  # done: nobody is left to start it
            down.delay.set_result(delay)

    async def _stall(self, why: str) -> None:
        """Stop planning: the worker has been killed, although its process may take long to die."""
        if self._serving:
            self._serving = False
            await self._tell_stalled(why)

    async def _tell_stalled(self, why: str) -> None:
        """Tell the client that no step runs: once for a kill and the death that follows."""
        if why != self._stalled:
            self._stalled = why
            await self._tell(Stalled(why))

    async def _give_up(self, why: str) -> Never:
        await self._send_batch(self._scheduler.end_all(why))
        raise WorkerLost(why, final=True)

    async def _tell(self, message: ClientInbox | bytes) -> None:
        """Send a message, encoded or not, to the client; wait while the client does not read."""
        self._telling += 1
        try:
            await self._client.send(message if isinstance(message, bytes) else encoder.encode(message))
        finally:
            self._telling -= 1

    async def _send_batch(self, batch: TokensBatch) -> None:
        if not any(msgspec.structs.astuple(batch)):
            return
        frames, refused = batch_frames(batch, max_frame=self._max_frame)
        if refused:
            # Fail the requests whose output fits no frame; the others get theirs.
            batch = without_requests(batch, refused, _TOO_LARGE)
            for rid in refused:
                _add(batch, self._scheduler.abort(rid, -1, _TOO_LARGE))
            frames, _ = batch_frames(batch, max_frame=self._max_frame)
        for frame in frames:
            await self._tell(frame)

    async def _send_stats(self) -> None:
        """Send statistics a few times a second while there is work, and once more when it ends."""
        now = time.monotonic()
        if now - self._stats_sent >= _STATS_SECONDS or not self._scheduler.has_work:
            self._stats_sent = now
            stats = msgspec.structs.replace(
                self._scheduler.stats(),
                worker_restarts=self._restarts.total,
                watchdog_kills=self._watchdog_kills,
            )
            self._draft_log.note(stats, now)
            await self._tell(stats)

    async def _pump_client(self) -> None:
        while True:
            for frame in await self._client.receive():
                await self.mailbox.tell(decode_engine.decode(frame))


class DraftLog:
    """Logs the drafts verified since the last line, at most once in ten seconds.

    Besides the accepted drafts a verified row gains one token; the line gives both as tokens a step.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._verified = self._drafts = self._right = 0
        """Counts up to the last line."""

    def note(self, stats: Stats, now: float) -> None:
        verified = stats.num_drafts - self._verified
        if not verified or now - self._since < _DRAFT_LOG_SECONDS:
            return
        drafts, right = stats.num_draft_tokens - self._drafts, stats.num_accepted_tokens - self._right
        logger.info(
            "speculation: %.2f tokens a step of sequences with drafts; %d of %d drafts were right",
            1 + right / verified,
            right,
            drafts,
        )
        self._since = now
        self._verified, self._drafts = stats.num_drafts, stats.num_draft_tokens
        self._right = stats.num_accepted_tokens


def engine_ready(ready: WorkerReady) -> EngineReady:
    """The message that tells the client about a ready worker."""
    return EngineReady(
        num_blocks=ready.num_blocks,
        block_size=ready.limits.block_size,
        max_model_len=ready.max_model_len,
        memory=ready.memory,
        notes=ready.notes,
        groups=ready.groups,
        stream=ready.stream,
        experts=ready.experts,
        max_num_seqs=ready.limits.max_num_seqs,
    )


def _log_arrival(request: Submit) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "request %d: %d sequences over a prompt of %d tokens%s",
            request.rid,
            len(request.seeds),
            len(request.prompt),
            "" if request.resumed is None else ", resumed",
            extra={"request_id": request.name},
        )


def _clear(batch: TokensBatch) -> None:
    """Empty a batch that was sent."""
    for values in msgspec.structs.astuple(batch):
        values.clear()


def _add(batch: TokensBatch, more: TokensBatch | None) -> None:
    """Append ``more``, if there is any, to ``batch``, so that a round sends one message; mutates ``batch``."""
    if more is None:
        return
    for values, new in zip(msgspec.structs.astuple(batch), msgspec.structs.astuple(more), strict=True):
        values.extend(new)
