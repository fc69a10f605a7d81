"""The operator's control of running engines: pause, resume, reset."""

from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Literal, Protocol

import anyio

from .admission_control import AdmissionControl

PauseMode = Literal["abort", "wait", "keep"]
_ABORT_SECONDS: Final = 5.0
"""Time for aborted requests to get their error; a client that does not read is not waited for."""


class Engine(Protocol):
    """One of the models' engines (:class:`stentor.engine.client.client.EngineClient`)."""

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def reset_prefix_cache(self, *, recompute: bool = False) -> None: ...


class EngineControl:
    """Owned by the server process; acts on the engines of all models."""

    def __init__(self, admission: AdmissionControl, engines: Collection[Engine]) -> None:
        self._admission = admission
        self._engines = tuple(engines)
        self._mode: PauseMode | None = None
        self._turn = anyio.Lock()
        """Orders commands: the engines must get the latest one last."""

    @property
    def paused(self) -> bool:
        return self._mode is not None

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> bool:
        """No engine runs a step from its return until :meth:`resume`; False if that was called meanwhile.

        ``abort`` and ``wait`` refuse new requests; live ones are aborted, or finish first. ``keep`` lets both wait.
        """
        self._mode = mode
        self._admission.paused = mode != "keep"
        if mode == "abort":
            self._admission.abort()
            with anyio.move_on_after(_ABORT_SECONDS):
                await self._admission.generated()
        elif mode == "wait":
            await self._tell(lambda engine: engine.resume())  # paused requests finish, too
            await self._admission.generated()
        async with self._turn:
            if self._mode is None:
                return False
            await self._of_each(lambda engine: engine.pause())
        if clear_cache:
            await self.reset_prefix_cache()
        return True

    async def resume(self) -> None:
        """Steps run again, and requests are taken."""
        self._mode = None
        self._admission.paused = False
        await self._tell(lambda engine: engine.resume())

    async def reset_prefix_cache(self, *, recompute: bool = False) -> None:
        """See :meth:`stentor.engine.client.client.EngineClient.reset_prefix_cache`."""
        await self._of_each(lambda engine: engine.reset_prefix_cache(recompute=recompute))

    def abort(self, request_ids: Collection[str]) -> int:
        """Ends those requests, or without ids all; how many there were."""
        return self._admission.abort(request_ids or None)

    async def _tell(self, what: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
        async with self._turn:
            await self._of_each(what)

    async def _of_each(self, what: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
        async with anyio.create_task_group() as tasks:
            for engine in self._engines:
                tasks.start_soon(what, engine)
