"""A pool of child processes for clients' input, one job each at a time, with a queue.

::

    pool = ProcessPool(partial(DecodeProcess, …), processes=3, max_waiting=256, thread_name="audio")
    pcm = await pool.run(lambda process: process.decode(data), len(data))
"""

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from ..common.fair_queue import FairQueue, QueueFull, current_owner

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PoolProcess(Protocol):
    """A process that can be killed; see :class:`..sandbox.killable_child.KillableChild`."""

    @property
    def pid(self) -> int | None: ...

    @property
    def start(self) -> Callable[[], None]: ...

    @property
    def abandon(self) -> Callable[[], None]: ...

    @property
    def close(self) -> Callable[[], None]: ...


P = TypeVar("P", bound=PoolProcess)


class PoolClosed(Exception):
    """The pool has ended, or does before it comes to the job."""


class ProcessPool(Generic[P]):
    """A pool of child processes for one event loop. Must be closed.

    A fixed number of jobs runs at a time; others wait, bounded in number and bytes, and owners take turns. Large jobs
    never have all processes, so that small ones need not wait for them. A job whose caller has gone is dropped.
    """

    def __init__(
        self,
        make: Callable[[], P],
        *,
        processes: int,
        max_waiting: int,
        thread_name: str,
        max_waiting_bytes: float = math.inf,
        large_bytes: float = math.inf,
    ) -> None:
        """``large_bytes``: from which on a job leaves one process to smaller ones."""
        self._workers = [_Worker(make(), thread_name) for _ in range(processes)]
        self._free = list(self._workers)
        self._waiting: FairQueue[_Turn[P]] = FairQueue(max_waiting)
        self._waiting_bytes = 0
        self._max_waiting_bytes = max_waiting_bytes
        self._large_bytes = large_bytes
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Pids of its processes."""
        return [pid for worker in self._workers if (pid := worker.process.pid) is not None]

    def warm_up(self) -> "asyncio.Future[None]":
        """Starts the first process before the first job. Returns at once; the first job reports a failure."""
        return self._workers[0].submit(lambda process: process.start())

    async def run(self, job: Callable[[P], T], size: int) -> T:
        """The result of a job on ``size`` bytes, called in a thread.

        Raises the job's errors, QueueFull if the queue is full, and :class:`PoolClosed`.
        """
        worker = await self._place(size)
        running = worker.submit(job)
        running.add_done_callback(lambda _: self._give_back(worker))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            worker.process.abandon()
            raise

    async def _place(self, size: int) -> "_Worker[P]":
        if self._closed:
            raise PoolClosed
        large = size > self._large_bytes
        if self._may_begin(large):
            return self._take_worker()
        if self._waiting_bytes and self._waiting_bytes + size > self._max_waiting_bytes:
            raise QueueFull
        turn: _Turn[P] = _Turn(large, asyncio.get_running_loop().create_future())
        owner = current_owner.get()
        dropped = self._waiting.push(owner, turn)
        if dropped is not None and not dropped.worker.done():
            dropped.worker.set_exception(QueueFull())
        self._waiting_bytes += size
        try:
            return await turn.worker
        except asyncio.CancelledError:
            worker = turn.worker
            if not self._waiting.remove(owner, turn) and not worker.cancelled() and worker.exception() is None:
                self._give_back(worker.result())
            raise
        finally:
            self._waiting_bytes -= size

    def _may_begin(self, large: bool) -> bool:
        """Whether a job may begin at once: no waiting job could."""
        return len(self._free) > (1 if large and len(self._workers) > 1 else 0)

    def _take_worker(self) -> "_Worker[P]":
        # those that have run before come first: the others need not be started
        self._free.sort(key=lambda worker: worker.process.pid is None, reverse=True)
        return self._free.pop()

    def _give_back(self, worker: "_Worker[P]") -> None:
        self._free.append(worker)
        while not self._closed:
            following = self._waiting.pop(lambda _, turn: turn.worker.done() or self._may_begin(turn.large))
            if following is None:
                return
            if not following[1].worker.done():  # otherwise its caller has gone
                following[1].worker.set_result(self._take_worker())

    def close(self) -> None:
        """Ends the processes and their jobs; waiters get :class:`PoolClosed`. May be called again."""
        if self._closed:
            return
        self._closed = True
        for turn in self._waiting.clear():
            if not turn.worker.done():
                turn.worker.set_exception(PoolClosed())
        for worker in self._workers:
            worker.close()


class _Turn(msgspec.Struct, Generic[P], eq=False):
    """A job that waits for a worker."""

    large: bool
    worker: "asyncio.Future[_Worker[P]]"


class _Worker(Generic[P]):
    """A process, and the thread that does its calls: the kernel ends a child with the thread that began it."""

    def __init__(self, process: P, thread_name: str) -> None:
        self.process: Final = process
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=thread_name)

    def submit(self, job: Callable[[P], T]) -> "asyncio.Future[T]":
        held = [job]  # the executor keeps its arguments until its thread takes others

        def run() -> T:
            return held.pop()(self.process)

        future: Future[T] = self._executor.submit(run)
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(_looked_at)
        return wrapped

    def close(self) -> None:
        self.process.abandon()
        self._executor.submit(self.process.close)
        self._executor.shutdown(wait=False)


def _looked_at(job: "asyncio.Future[T]") -> None:
    """Nobody may be left to see how a job ends that was given up."""
    if not job.cancelled() and (error := job.exception()) is not None:
        logger.debug("a job in a process of its own failed: %r", error)
