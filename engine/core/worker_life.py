"""One worker process, from spawn to death."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import anyio

from stentor.protocols.ipc.actors import Failed, Profiled, Progress, Shutdown, StartWorker, WorkerAnswer, WorkerReady
from stentor.protocols.ipc.adapters import AdapterLoaded, ReadsAdapters
from stentor.protocols.ipc.codec import decode_engine_worker, encoder
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import StepPart, StepResult

from ..channel import ChannelClosed, ChannelError, ChannelPair, Endpoint, PeerDied
from ..channel.pieces import ResultParts
from ..processes.exception_groups import one_line
from ..processes.process import Child
from ..processes.silence import Silence
from .worker_source import WorkerSource

STARTING: Final = "starting the worker"
_PHASE_SECONDS: Final = (("starting", 120.0), ("loading", 300.0))
"""Longest silence in seconds by the start of the phase's name, for a patience of 1."""
_OTHER_PHASE_SECONDS: Final = 600.0
"""Longest silence in seconds while compiling, measuring or warming up."""
_SPAWN_SECONDS: Final = 120.0
_CLOSING_SECONDS: Final = 5.0
_OUT_OF_MEMORY: Final = ", as the kernel does where memory, or that of a cgroup, runs out"
_LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at a starting worker. Of a longer time between them, in which this process itself stood
still (``docker pause``), twice as much counts."""

OnProgress = Callable[[Progress], Awaitable[None]]
Sleep = Callable[[float], Awaitable[None]]


class WorkerLost(Exception):
    """The worker is dead or cannot be started; the message says why."""

    def __init__(
        self,
        why: str,
        *,
        final: bool = False,
        hung: bool = False,
        stuck: bool = False,
        of_peer: bool = False,
        graphs: bool = False,
        retired: bool = False,
    ) -> None:
        super().__init__(f"{why}; the process does not die" if stuck else why)
        self.final = final or stuck
        """Whether another worker would be lost in the same way."""
        self.hung = hung
        """Whether it was killed because it made no progress."""
        self.stuck = stuck
        """Whether the process cannot be killed and still holds its resources."""
        self.of_peer = of_peer
        """Whether the cause is the loss of another worker of its group."""
        self.graphs = graphs
        """Whether it failed to capture a CUDA graph. No request is to blame then."""
        self.retired = retired
        """Whether its start was ended because the engine is to sleep."""


class WorkerLife:
    """A worker process and the engine's end of the channel to it. Its owner must :meth:`end` it.

    The worker is lost when its process dies, when it reports a failure, or after :meth:`kill`. Then :meth:`start` or
    :meth:`receive` raises :class:`WorkerLost` once, after all that the worker had sent, with the process dead or given
    up.
    """

    def __init__(self, endpoint: Endpoint, child: Child, patience: float = 1.0) -> None:
        self._endpoint = endpoint
        self._child = child
        self._patience = patience
        self._verdict: str | None = None
        """Why it was killed."""
        self._hung = False
        self._of_peer = False
        self.graphs_failed = False
        """Whether it reported that it could not capture a CUDA graph."""
        self._parts = ResultParts()
        self._giving_up: asyncio.TimerHandle | None = None

    @property
    def verdict(self) -> str | None:
        """Why it was killed; None if it was not, or if the cause lies with another of its group."""
        return None if self._of_peer else self._verdict

    @classmethod
    async def spawn(
        cls, source: WorkerSource, rank: int = 0, meeting_fd: int | None = None, patience: float = 1.0
    ) -> "WorkerLife":
        """Start a process; see :meth:`.worker_source.WorkerSource.start`.

        ``patience`` multiplies all time limits of the start. Raises :class:`WorkerLost`.
        """
        try:
            pair = ChannelPair.create()
        except (ChannelError, OSError) as error:
            raise WorkerLost(f"cannot start the worker process: {one_line(error)}") from error
        limit = _SPAWN_SECONDS * patience
        try:
            with _fail_after(limit):
                child = await source.start(pair.child_fds, rank, meeting_fd)
        except OSError as error:
            pair.parent.close()
            why = f"it was not there within {limit:.0f} s" if isinstance(error, TimeoutError) else one_line(error)
            raise WorkerLost(f"cannot start the worker process: {why}") from error
        except BaseException:
            pair.parent.close()
            raise
        life = cls(pair.parent, child, patience)
        try:
            pair.parent.watch(child.pid, child.pidfd)
        except BaseException:
            await life.end(0.0)
            raise
        return life

    async def start(
        self,
        config: WorkerConfig,
        on_progress: OnProgress,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = anyio.sleep,
    ) -> WorkerReady:
        """Wait until the model has completed a real step.

        A worker that is silent for too long in a phase is killed; one that is starved of CPU time has up to ten times
        as long. Raises :class:`WorkerLost`.
        """
        silence = _Silence(clock, self._patience, lambda: self._child.cpu_seconds)
        ready: list[WorkerReady] = []
        lost: list[WorkerLost] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_silence, silence, sleep)
            try:
                ready.append(await self._await_ready(config, on_progress, silence))
            except WorkerLost as error:  # not through the group, which would wrap it
                lost.append(error)
            tasks.cancel_scope.cancel()
        if lost:
            raise lost[0]
        return ready[0]

    async def send(self, frame: bytes) -> None:
        """Send an encoded message; wait while the ring is full. A dead worker gets nothing; :meth:`receive` raises."""
        with contextlib.suppress(PeerDied, ChannelClosed):
            await self._endpoint.send(frame)

    async def receive(self) -> list[WorkerAnswer]:
        """Wait for step results, joined from their parts, and for answers about adapters.

        Empty if the worker reported a failure, for which it is killed (:attr:`verdict`). Raises :class:`WorkerLost`.
        """
        results: list[WorkerAnswer] = []
        while not results:
            try:
                frames = await self._endpoint.receive()
            except (PeerDied, ChannelClosed):
                raise await self._lost("the worker process was lost") from None
            for frame in frames:
                match decode_engine_worker.decode(frame):
                    case StepResult() as result:
                        results.append(self._parts.joined(result))
                    case AdapterLoaded() | ReadsAdapters() | Profiled() as answer:
                        results.append(answer)
                    case StepPart() as part:
                        self._parts.add(part)
                    case Failed(message=why, of_peer=of_peer, graphs=graphs):
                        self._of_peer = of_peer and self._verdict is None
                        self.graphs_failed = graphs and self._verdict is None
                        self.kill(why)
                    case Progress() | WorkerReady() as other:
                        raise RuntimeError(f"{type(other).__name__} came while the engine runs")
            if self._verdict is not None:
                break
        return results

    def kill(self, why: str, *, hung: bool = False) -> None:
        """Kill the process. ``why`` is reported in place of the signal; the first reason stands."""
        if self._verdict is None:
            self._verdict = why
            self._hung = hung
            # closing fails all sends and receives if the process does not die in time
            self._giving_up = asyncio.get_running_loop().call_later(self._child.dying_seconds, self._endpoint.close)
        self._child.kill()

    async def end(self, grace: float) -> bool:
        """End the worker, by force after ``grace`` seconds; False if it does not die.

        May be called again.
        """
        with contextlib.suppress(ChannelError):
            self._endpoint.try_send(encoder.encode(Shutdown()))
        # wakes a worker that waits for room in a ring that nobody reads any more
        self._endpoint.close()
        if self._giving_up is not None:
            self._giving_up.cancel()
        return await self._child.aclose(grace)

    async def _await_ready(self, config: WorkerConfig, on_progress: OnProgress, silence: "_Silence") -> WorkerReady:
        """Start-up progress goes to ``on_progress``; the first phase is the worker's own start."""
        await on_progress(Progress(STARTING, 0, 1))
        silence.enter(STARTING)
        starting = True
        with contextlib.suppress(
            PeerDied, ChannelClosed
        ):  # the receiving side raises, once it has read what the worker still sent
            await self._endpoint.send(encoder.encode(StartWorker(config)))
        while True:
            try:
                frames = await self._endpoint.receive()
            except (PeerDied, ChannelClosed):
                raise await self._lost("the worker process was lost while starting", _OUT_OF_MEMORY) from None
            if starting:
                starting = False
                await on_progress(Progress(STARTING, 1, 1))
            for frame in frames:
                match decode_engine_worker.decode(frame):
                    case WorkerReady() as ready:
                        return ready
                    case Progress() as progress:
                        silence.enter(progress.phase)
                        await on_progress(progress)
                    case Failed(message=why, of_peer=of_peer, graphs=graphs):
                        self.kill(why)
                        dead = await self._child.kill_and_wait()
                        final = not of_peer and not graphs
                        raise WorkerLost(why, final=final, stuck=not dead, of_peer=of_peer, graphs=graphs)
                    case other:
                        raise RuntimeError(f"{type(other).__name__} came before the worker was ready")

    async def _end_silence(self, silence: "_Silence", sleep: Sleep) -> None:
        while not silence.is_over():
            await sleep(_LOOK_SECONDS)
        why = f"the worker process hung while starting: nothing moved for {silence.limit:.0f} s in {silence.phase!r}"
        self.kill(why, hung=True)

    async def _lost(self, what: str, if_killed: str = "") -> WorkerLost:
        """The loss to raise, once the process is dead or given up.

        ``if_killed`` is appended if another process, or the kernel, has killed the worker.
        """
        if self._verdict is None:
            with anyio.move_on_after(_CLOSING_SECONDS):
                await self._child.wait()
        killed = self._child.returncode == -signal.SIGKILL
        dead = await self._child.kill_and_wait()  # it may have closed its end of the channel and still run
        if self._verdict is not None:
            what = self._verdict
        elif dead:
            what = f"{what}: {self._child.description}{if_killed if killed else ''}"
        return WorkerLost(what, hung=self._hung, stuck=not dead, of_peer=self._of_peer, graphs=self.graphs_failed)


class _Silence:
    """For how long a starting worker has reported no progress."""

    def __init__(self, clock: Callable[[], float], patience: float, cpu_seconds: Callable[[], float]) -> None:
        self._silence = Silence(cpu_seconds, 2 * _LOOK_SECONDS, clock)
        self._patience = patience
        self.enter(STARTING)

    def enter(self, phase: str) -> None:
        """Record progress in ``phase``."""
        self.phase = phase
        limits = (seconds for start, seconds in _PHASE_SECONDS if phase.startswith(start))
        self.limit = self._patience * next(limits, _OTHER_PHASE_SECONDS)
        self._silence.end()

    def is_over(self) -> bool:
        """Whether the silence is too long; to be called once a look."""
        self._silence.look()
        return self._silence.seconds >= self.limit


@contextlib.contextmanager
def _fail_after(seconds: float) -> Iterator[None]:
    """``anyio.fail_after`` that counts ticks of a timer: time in which this process is stopped counts as one tick."""
    loop = asyncio.get_running_loop()
    scope = anyio.CancelScope()
    left = seconds
    timer = loop.call_later(min(left, _LOOK_SECONDS), lambda: look())

    def look() -> None:
        nonlocal left, timer
        left -= _LOOK_SECONDS
        if left <= 0:
            scope.cancel()
        else:
            timer = loop.call_later(min(left, _LOOK_SECONDS), look)

    with scope:
        try:
            yield
        finally:
            timer.cancel()
    if scope.cancelled_caught:
        raise TimeoutError
