"""Supervision: runs children in one task group, and restarts them as :class:`.restart_policy.Restarts` allow.

A child is any async callable that returns when it is done and raises when it failed, like an actor's ``run``. If a
child must not be restarted, the supervisor's task group ends: its siblings are cancelled, and :class:`ChildFailed` is
raised to the supervisor's owner, in an exception group. So failures climb the tree.
"""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio

from .restart_policy import RestartPolicy, Restarts


class PermanentFailure(Exception):
    """Raised by a child that would fail again if it were restarted."""


class ChildFailed(Exception):
    """A child failed and is not restarted; the failure is ``__cause__``."""

    def __init__(self, name: str, failures: int) -> None:
        times = f" {failures} times in a row" if failures > 1 else ""
        super().__init__(f"{name} failed{times} and is not started again")
        self.name = name
        self.failures = failures


class Supervisor:
    """Runs children while its ``async with`` block lasts; leaving the block waits for all of them."""

    def __init__(self, *, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        self._sleep = sleep
        self._tasks = anyio.create_task_group()
        self._names: set[str] = set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._tasks.__aexit__(kind, error, traceback)

    def start(self, name: str, child: Callable[[], Awaitable[None]], restarts: Restarts | None = None) -> None:
        """Run ``child()``, again after failures as ``restarts`` allow (default: never)."""
        if name in self._names:
            raise ValueError(f"a child named {name!r} is already supervised")
        self._names.add(name)
        self._tasks.start_soon(self._keep, name, child, restarts or Restarts(RestartPolicy(1)), name=name)

    def cancel(self) -> None:
        """Cancel every child."""
        self._tasks.cancel_scope.cancel()

    async def _keep(self, name: str, child: Callable[[], Awaitable[None]], restarts: Restarts) -> None:
        while True:
            try:
                await child()
            except Exception as error:
                delay = restarts.failed(final=isinstance(error, PermanentFailure))
                if delay is None:
                    raise ChildFailed(name, restarts.in_a_row) from error
            else:
                return
            await self._sleep(delay)
