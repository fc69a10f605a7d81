"""The server's side of an engine: starts it, submits requests, and passes events to their streams.

If the engine process dies, another continues every live request after its last delivered token (:mod:`.journal`), so
streams only pause.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import assert_never

import anyio
import msgspec

from stentor.protocols.ipc.actors import (
    Append,
    ControlDone,
    EngineReady,
    Failed,
    Fault,
    MediaWanted,
    Progress,
    Released,
    Resumed,
    Stalled,
    Stats,
    Submit,
    TokensBatch,
)
from stentor.protocols.ipc.adapters import AdapterRef, AdapterWarm
from stentor.protocols.ipc.cache_groups import group_of
from stentor.protocols.ipc.codec import decode_client
from stentor.protocols.ipc.config import EngineConfig

from ..channel import MAX_FRAME, ChannelError, Endpoint, PeerDied
from ..channel.arena import ArenaFull
from ..channel.pieces import submit_frames
from ..processes.exception_groups import first_cause, one_line
from ..processes.launch import EngineProcess
from ..processes.process import REAPED_AT_ONCE, Child, reap_orphans
from ..processes.restart_policy import RestartPolicy, Restarts
from ..processes.supervisor import ChildFailed, PermanentFailure, Supervisor
from .controls import Controls
from .errors import EngineAsleep, EngineLost, EngineUnavailable
from .journal import Journal
from .launcher import EngineLauncher
from .media import MediaStore, StreamedMedia
from .outages import Heartbeat, Outages, RecoveryObserver
from .request import EngineRequest
from .send_queue import SendQueue, VocabularySource
from .stream import RequestStream
from .trials import Trials

logger = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 5.0
_EXIT_SECONDS = 1.0
"""How long to wait for the exit status of a process that closed its channel."""
_HUNG = "the engine process hung: it was killed"
_MAX_SUBMIT = MAX_FRAME - (1 << 20)
"""Most bytes of a request's largest frame; a resubmission takes a little more."""


class EngineClient:
    """One engine, over all its processes, and the live requests on it."""

    def __init__(
        self,
        config: EngineConfig,
        on_progress: Callable[[Progress], None] | None = None,
        process: EngineProcess | None = None,
        max_submit: int = _MAX_SUBMIT,
    ) -> None:
        """
        Args:
            process: one launched with this ``config``. None: :meth:`run` launches the first.
            on_progress: gets the progress of the first start only.
            max_submit: bytes; a request with a larger frame ends with an error.
        """
        self._max_submit = max_submit
        self._on_progress = on_progress
        self._restarts = Restarts(RestartPolicy(config.recovery.max_engine_deaths, max_first_failures=1))
        self._launcher = EngineLauncher(config, process, self._restarts)
        self._journal = Journal()
        self._media = MediaStore(self._launcher.arena)
        self._next_rid = 0
        self._send_queue = SendQueue()
        """Empty while no engine is ready: the next one is served from the journal."""
        self._serving = False
        """Whether the present process is ready, so that submits and aborts go to it."""
        self._outages = Outages(config.worker.name)
        self._trials = Trials(config.recovery.max_engine_deaths)
        self._heartbeat = Heartbeat(config.recovery.watchdog_seconds, config.recovery.start_patience)
        self.controls = Controls(self._send_queue, self._launcher, self._heartbeat.wake)
        """Pause, sleep, other weights, resets."""
        self._started = asyncio.Event()
        self.ready: EngineReady | None = None
        """The message of the latest engine whose model completed a real step; None before the first."""
        self.failure: str | None = None
        """Why there is no engine any more; None before."""

    @property
    def stalled(self) -> str | None:
        """Why no step can run at present. Requests are accepted and wait."""
        return self._outages.why

    @property
    def stats(self) -> Stats:
        """The engine's latest statistics. Counters continue across lost engines."""
        stats = self._outages.stats
        if not self._serving:
            return msgspec.structs.replace(stats, waiting=self._journal.open_sequences)
        if self._trials.group is None:
            return stats
        held = sum(stream.open_sequences for stream in self._journal if not self._trials.has(stream.rid))
        return msgspec.structs.replace(stats, waiting=stats.waiting + held)

    @property
    def live_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._journal)

    @property
    def engine_restarts(self) -> int:
        """Engine processes started in place of a lost one."""
        return self._restarts.total

    @property
    def pid(self) -> int | None:
        """The pid of the present or the last engine process."""
        process = self._launcher.process
        return None if process is None else process.child.pid

    def watch_recoveries(self, observer: RecoveryObserver) -> None:
        """Call ``observer`` after each recovery, with the lost process and the seconds."""
        self._outages.watch(observer)

    def submit(self, request: EngineRequest) -> RequestStream:
        """Submit a request. While :attr:`stalled` it waits.

        Raises :class:`EngineUnavailable`, and :class:`..channel.arena.ArenaFull` if there is no space for its media.
        """
        if self.failure is not None:
            raise EngineUnavailable(self.failure)
        if self.ready is None:
            raise EngineUnavailable("the model is still loading")
        rid, self._next_rid = self._next_rid, self._next_rid + 1
        submit, audio = self._place(rid, request, self.ready)
        # encoded even if it has to wait, so that a request too large is refused now
        frames = tuple(submit_frames(submit))
        stream = RequestStream(submit, self._abort, self._append, audio)
        if (size := max(map(len, frames))) > self._max_submit:
            stream.end("error", f"the request takes {size} bytes, of which the engine takes {self._max_submit} at once")
            self._media.sweep(self._journal.has)
            return stream
        self._journal.add(stream)
        self._outages.count_recovered(request.resumed is not None and request.arrival is None)
        if self._serving and self._trials.admits(rid):
            self._give(stream, frames)
            self._heartbeat.wake()
        return stream

    def _place(self, rid: int, request: EngineRequest, ready: EngineReady) -> tuple[Submit, StreamedMedia | None]:
        """Place a request's media in shared memory; returns its message to the engine, and its streamed audio.

        Raises :class:`..channel.arena.ArenaFull`.
        """
        cross = group_of(ready.groups, "cross")
        try:
            spans = self._media.place(rid, request.media, 0 if cross is None else cross.window)
            audio = None if request.streamed is None else self._media.stream(rid, request.streamed)
        except ArenaFull:
            self._media.sweep(self._journal.has)
            raise
        resumed = request.resumed
        message = Submit(
            rid,
            request.prompt,
            request.params,
            request.seeds,
            request.priority,
            request.salt,
            time.monotonic() if request.arrival is None else request.arrival,
            name=request.name,
            grammar=request.grammar,
            thinking=request.thinking,
            inputs=spans,
            probe=request.probe,
            streamed=None if audio is None else audio.streamed(),
            pooling=request.pooling,
            adapter=request.adapter,
            resumed=None if resumed is None else Resumed(resumed, [], prompt_done=False),
        )
        return message, audio

    async def load_adapter(self, adapter: AdapterRef) -> AdapterWarm:
        """Load an adapter before any request names it; the answer holds the error, if any.

        Raises :class:`EngineUnavailable` if there is no engine or it is lost meanwhile, and :class:`EngineAsleep`.
        """
        if self.controls.asleep:
            raise EngineAsleep
        if not self._serving:
            raise EngineUnavailable(self.failure or self.stalled or "the model is still loading")
        found = await self.controls.load(adapter)
        if found is None:
            if self.controls.asleep:
                raise EngineAsleep
            raise EngineUnavailable("the engine was lost while it loaded the adapter")
        return found

    def set_vocabulary(self, source: VocabularySource) -> None:
        """Set where the model's tokens come from (:func:`..core.grammar.vocabulary.pieces_of`).

        ``source`` is called in a thread when the first request needs them.
        """
        self._send_queue.set_vocabulary(source)

    async def wait_started(self) -> EngineReady:
        """Wait until the first engine is ready. Raises :class:`EngineUnavailable` if it ends before."""
        await self._started.wait()
        if self.ready is None:
            raise EngineUnavailable(self.failure or "the engine ended")
        return self.ready

    async def run(self) -> None:
        """Run engine processes, one after the other, until none can be kept or the task is cancelled.

        In any case all processes are ended and every live stream gets its end; :attr:`failure` says why.
        """
        why = "the server is shutting down"
        fault: Fault = "shutdown"
        try:
            why, fault = await self._supervise(), "engine"
        finally:
            self.failure = why
            self._serving = False
            self.controls.give_up()
            self._outages.give_up()
            self._journal.end_all(why, fault)
            self._media.lost()
            self._media.sweep(self._journal.has)
            self._send_queue.clear()
            self._started.set()
            with anyio.CancelScope(shield=True):
                if (process := self._launcher.process) is not None:
                    await process.shut_down(_SHUTDOWN_SECONDS)
            self._media.arena.close()

    # ---- engine processes

    async def _supervise(self) -> str:
        """Run the supervisor; returns why there is no engine any more."""
        failure: BaseException
        try:
            async with Supervisor() as supervisor:
                supervisor.start("the engine process", self._live, self._restarts)
            raise AssertionError("an engine's life ends with an exception")
        except* ChildFailed as group:
            failure = first_cause(group)
        cause = failure.__cause__
        why = str(cause)
        if isinstance(failure, ChildFailed) and failure.failures > 1 and not isinstance(cause, PermanentFailure):
            return f"the engine was lost {failure.failures} times in a row without progress between; at last {why}"
        return why

    async def _live(self) -> None:
        """Run one engine process. Raises :class:`EngineLost`, or ``PermanentFailure`` if another would fail too."""
        try:
            if self._launcher.needs_start:
                await self.controls.awake()
                self._launcher.start()
            await self._converse(self._launcher.take(successor=self.ready is not None))
        except EngineLost as lost:
            if self.ready is not None:
                self._trials.judge(self._journal, self._send_queue.holds, self._outages, self._restarts)
                self._lose_engine(str(lost))  # before the process is dead, which may take long
            process = self._launcher.process
            if process is not None and not await process.aclose():
                raise PermanentFailure(f"{lost}; the process does not die") from lost
            raise
        except PermanentFailure:
            raise
        except Exception as error:
            logger.exception("the conversation with the engine broke off")
            why = f"the conversation with the engine broke off: {one_line(first_cause(error))}"
            raise PermanentFailure(why) from error

    def _lose_engine(self, why: str) -> None:
        """Mark that no step can run until another engine is ready. May be called more than once for one engine."""
        self._serving = False
        self._send_queue.clear()
        self.controls.end()
        self._media.lost()
        self._end_aborted()
        self._outages.begin("engine", why, len(self._journal))
        self._excuse_asleep()

    def _excuse_asleep(self) -> None:
        """While a sleep lasts, the lack of a worker is no outage."""
        if self.controls.asleep:
            self._outages.excuse()

    def _note_ready(self, ready: EngineReady) -> None:
        self.ready = ready
        self._launcher.started()
        self._restarts.ready()
        self._started.set()
        self._outages.end(len(self._journal))
        if not self._serving:
            self._tasks.start_soon(self._reap_orphans)
            self._serving = True
            self.controls.begin()
            self._submit_admitted()

    def _submit_admitted(self) -> None:
        """Submit all requests that the engine may have and does not have."""
        for stream in self._journal:
            if self._trials.admits(stream.rid):
                self._give(stream, stream.resubmission())
        self._heartbeat.wake()

    def _give(self, stream: RequestStream, request: tuple[bytes, ...] | Submit) -> None:
        self._trials.give(stream)
        self._media.given(stream.rid)
        self._send_queue.submit(stream.rid, request, needs_vocabulary=stream.needs_vocabulary)

    def _end_aborted(self, stream: RequestStream | None = None) -> None:
        """End aborted sequences that no engine has, of one stream or of all."""
        group = self._trials.group
        self._trials.withdrawn(self._journal.end_aborted(stream), self._journal)
        self._media.sweep(self._journal.has)
        if self._serving and self._trials.group != group:
            self._submit_admitted()

    # ---- communication with one process

    async def _converse(self, process: EngineProcess) -> None:
        """Send and receive until the engine fails; raises the reason as :meth:`_live` does."""
        engine, child = process.endpoint, process.child
        end: EngineLost | PermanentFailure = EngineLost(_HUNG)
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            with anyio.CancelScope() as conversation:
                tasks.start_soon(self._send_queue.send_all, engine)
                tasks.start_soon(self._kill_when_hung, child, conversation)
                tasks.start_soon(self._send_queue.offer_vocabulary, lambda: self._serving and not self._journal)
                if self._trials.group is not None:
                    tasks.start_soon(self._end_quiet_trials)
                end = await self._receive_to_the_end(engine, child)
            if self._launcher.is_starting and self.controls.revert_weights(str(end)):
                self._restarts.excuse()
                end = EngineLost(str(end))
            self._launcher.started()
            tasks.cancel_scope.cancel()
        raise end

    async def _reap_orphans(self) -> None:
        """Reap workers of the last engine. They may be many, and each costs reading a file, so this runs in a thread,
        in portions."""
        while await anyio.to_thread.run_sync(reap_orphans, abandon_on_cancel=True) == REAPED_AT_ONCE:
            pass

    async def _end_quiet_trials(self) -> None:
        """Acquit trial groups that compute nothing, for example because they wait for audio, so that others can run."""
        while await self._trials.is_quiet(self._steps):
            self._trials.acquit()
            self._submit_admitted()

    def _steps(self) -> int | None:
        """Completed steps; None while the engine could compute none."""
        runs = self._serving and not self.controls.paused and self._outages.why is None
        return self.stats.steps if runs else None

    async def _kill_when_hung(self, child: Child, conversation: anyio.CancelScope) -> None:
        """Kill a process that hangs. The process's end ends ``conversation``; it is cancelled if the process does not
        die."""
        ping = self._send_queue.ping
        if await self._heartbeat.starts(lambda: not self._serving, ping, lambda: child.cpu_seconds):
            await self._heartbeat.stopped(self._awaits_engine, ping)
        self._outages.count_watchdog_kill()
        self._launcher.kill(_HUNG)
        self._lose_engine(_HUNG)
        if not await child.kill_and_wait():
            conversation.cancel()

    def _awaits_engine(self) -> bool:
        """Whether the present engine has anything to do."""
        return self._serving and bool(self._journal or self.controls)

    async def _receive_to_the_end(self, engine: Endpoint, child: Child) -> EngineLost | PermanentFailure:
        try:
            failed = await self._receive_all(engine)
        except PeerDied:
            with anyio.move_on_after(_EXIT_SECONDS):
                await child.wait()
            return EngineLost(self._launcher.killed or f"the engine process was lost: {child.description}")
        except (ChannelError, msgspec.DecodeError) as error:
            return EngineLost(f"the conversation with the engine broke off: {one_line(error)}")
        return PermanentFailure(failed.message) if failed.final else EngineLost(failed.message)

    async def _receive_all(self, engine: Endpoint) -> Failed:
        """Handle messages until the engine reports a failure. Raises :class:`..channel.ChannelError`."""
        journal = self._journal
        while True:
            frames = await engine.receive()
            self._heartbeat.beat()
            try:
                for frame in frames:
                    match decode_client.decode(frame):
                        case TokensBatch() as batch:
                            journal.deliver(batch)
                            group = self._trials.group
                            if self._trials.note(batch, journal):
                                self._restarts.progressed()
                            if self._trials.group != group:
                                self._submit_admitted()
                        case Stats() as stats:
                            self._outages.observe(stats)
                        case Progress() as progress:
                            if self._on_progress is not None and self.ready is None:
                                self._on_progress(progress)
                        case EngineReady() as ready:
                            self._note_ready(ready)
                        case Stalled(message=why):
                            self._outages.begin("worker", why, len(self._journal))
                            self._excuse_asleep()
                        case ControlDone() as done:
                            self.controls.answered(done)
                            self._excuse_asleep()
                        case AdapterWarm() as warm:
                            self.controls.loaded(warm)
                        case Released(rids=rids):
                            self._media.released(rids)
                        case MediaWanted(rids=rids):
                            for rid in rids:
                                self._tasks.start_soon(self._write_media, rid)
                        case Failed() as failed:
                            return failed
                        case other:
                            assert_never(other)
            finally:
                journal.wake_readers()

    async def _write_media(self, rid: int) -> None:
        error = ""
        try:
            await self._media.write(rid)
        except OSError as failed:
            error = f"the request's media cannot be written to shared memory: {failed.strerror}"
        if self._serving:
            self._send_queue.media_written(rid, error)
            self._heartbeat.wake()

    def _append(self, more: Append) -> None:
        """Send appended audio to the engine. Without an engine, the next one gets it from the journal."""
        if self._serving and self._trials.has(more.rid):
            self._send_queue.append(more)
            self._heartbeat.wake()

    def _abort(self, stream: RequestStream, index: int) -> None:
        if stream not in self._journal:
            return
        with_engine = self._serving and self._trials.has(stream.rid)
        if not with_engine or (index < 0 and self._send_queue.withdraw(stream.rid)):
            self._media.taken_back(stream.rid)
            self._end_aborted(stream)
        else:
            self._send_queue.abort(stream.rid, index)
