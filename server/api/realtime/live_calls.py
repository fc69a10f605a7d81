"""The calls that have not ended, by id: what a request can hang up."""

from collections.abc import Coroutine
from typing import Any, Final

from ...common.task_scope import TaskScope


class LiveCalls:
    """Owned by the server process. It puts no bound on how many there are: each holds a place among the connections."""

    def __init__(self) -> None:
        self._calls: Final[dict[str, tuple[str, TaskScope]]] = {}
        """Whose each is, and the task that runs it."""

    def __len__(self) -> int:
        return len(self._calls)

    def start(self, id: str, owner: str, call: Coroutine[Any, Any, None]) -> None:
        scope = TaskScope("realtime calls")
        self._calls[id] = owner, scope
        scope.submit(call).add_done_callback(lambda _task: self._calls.pop(id, None))

    async def hang_up(self, id: str, owner: str) -> bool:
        """Ends it; returns whether there was one of that owner's."""
        found = self._calls.get(id)
        if found is None or found[0] != owner:
            return False
        await found[1].aclose()
        return True

    async def close(self) -> None:
        """Ends all."""
        for _, scope in list(self._calls.values()):
            scope.cancel()
        for _, scope in list(self._calls.values()):
            await scope.aclose()
