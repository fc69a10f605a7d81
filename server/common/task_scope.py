"""Tasks of one owner that no task group can hold.

An async generator must not be suspended inside a task group, a protocol's callback cannot wait for one to end, and one
failed task need not end the others. No other code starts a bare task: its failure would be lost, and it would outlive
its owner.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Self, TypeVar

import anyio

from stentor.engine.processes.logs import trace_without_messages

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSE_SECONDS: Final = 5.0


async def run_together(works: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Runs all to their ends. Raises the error of the first that fails, plainly, after the others were cancelled."""
    failures: list[Exception] = []

    async def run(work: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        try:
            await work()
        except Exception as error:
            failures.append(error)
            scope.cancel()

    async with anyio.create_task_group() as tasks:
        for work in works:
            tasks.start_soon(run, work, tasks.cancel_scope)
    if failures:
        raise failures[0]


class TaskScope:
    """Holds tasks until they end. Its owner must :meth:`aclose` it, which ``async with`` does; that never raises.

    It does not limit their number; its owner does.
    """

    def __init__(self, what: str, close_seconds: float = _CLOSE_SECONDS) -> None:
        """``what`` names the tasks in logs; ``close_seconds`` is the time limit for cancelled tasks to end."""
        self._what = what
        self._close_seconds = close_seconds
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Starts work without a waiter; its failure is logged. Raises RuntimeError once this is closed."""
        self.submit(work).add_done_callback(self._log_failure)

    def submit(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts work with a waiter, which gets its failure. Raises RuntimeError once this is closed."""
        if self._closed:
            work.close()
            raise RuntimeError(f"{self._what}: no more of them are started")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._discard)
        return task

    def cancel(self) -> None:
        """Cancels all and takes no more; for callbacks, which cannot wait. May be called again."""
        self._closed = True
        current = _current_task()
        for task in self._tasks:
            if task is not current:  # which closes this on its way out
                task.cancel()

    async def aclose(self) -> None:
        """Cancels all, waits for them for ``close_seconds`` at most, and takes no more. May be called again."""
        self.cancel()
        ending = self._tasks - {_current_task()}
        if not ending:
            return
        with anyio.CancelScope(shield=True):
            _, left = await asyncio.wait(ending, timeout=self._close_seconds)
        if left:
            logger.error(
                "%s: %d tasks do not end, %g s after they were cancelled", self._what, len(left), self._close_seconds
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _discard(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: a submitted task may have failed after its waiter had left

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: a task failed", self._what, extra={"trace": trace_without_messages(error)})


def _current_task() -> "asyncio.Task[Any] | None":
    """None in a callback."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # and where no loop runs any more
        return None
