"""Live calls by id, for requests that hang up."""

import asyncio
from typing import Final, NamedTuple, Protocol

from stentor.protocols.openai.realtime.server import RealtimeError

from ....common.errors import ShutDown
from ....common.task_scope import TaskScope

_CLOSE_SECONDS: Final = 10.0
_SHUT_DOWN: Final = RealtimeError(ShutDown.kind, ShutDown.code, "The server is shutting down; call again.", None, None)


class AnyCall(Protocol):
    async def run(self) -> None:
        """Runs to the end of the call, which releases everything."""

    def end(self, why: RealtimeError | None = None) -> None:
        """Ends :meth:`run`; may be called repeatedly. The client gets ``why``."""


class _Live(NamedTuple):
    owner: str
    call: AnyCall
    task: "asyncio.Task[None]"


class LiveCalls:
    """Owned by the server process. It needs no limit: each call counts as a connection."""

    def __init__(self) -> None:
        self._calls: Final[dict[str, _Live]] = {}
        self._tasks: Final = TaskScope("realtime calls")

    def __len__(self) -> int:
        return len(self._calls)

    def start(self, id: str, owner: str, call: AnyCall) -> None:
        task = self._tasks.submit(call.run())
        self._calls[id] = _Live(owner, call, task)
        task.add_done_callback(lambda _task: self._calls.pop(id, None))

    async def hang_up(self, id: str, owner: str) -> bool:
        """Ends it; returns whether there was one of that owner's."""
        found = self._calls.get(id)
        if found is None or found.owner != owner:
            return False
        found.call.end()
        await asyncio.wait([found.task])
        return True

    async def close(self) -> None:
        """Ends all: the server is shutting down."""
        live = list(self._calls.values())
        for each in live:
            each.call.end(_SHUT_DOWN)
        if live:
            await asyncio.wait([each.task for each in live], timeout=_CLOSE_SECONDS)
        await self._tasks.aclose()
