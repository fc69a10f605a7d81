"""The engines under one server, one for each model that has any: from their start to the first that is given up."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import anyio

from stentor.engine.client import EngineClient, EngineUnavailable
from stentor.engine.launch import EngineProcess
from stentor.engine.outages import LostProcess
from stentor.engine.supervisor import Supervisor
from stentor.protocols.actors import EngineReady, Progress
from stentor.protocols.config import EngineConfig

from .catalogue import Kind
from .listening import StartError

logger = logging.getLogger(__name__)

OnProgress = Callable[[Progress, str], None]
"""With what tells one of several models apart, or nothing."""

_NOBODY: Final = ""


class Engines:
    """A client for each, under one supervisor. They share nothing: what one loses, the others do not notice."""

    def __init__(
        self,
        configs: Mapping[Kind, EngineConfig],
        processes: Mapping[Kind, EngineProcess],
        on_progress: OnProgress,
    ) -> None:
        """``processes`` have been launched with these very ``configs``."""
        self.clients: dict[Kind, EngineClient] = {}
        for kind, config in configs.items():
            told = partial(_tell, on_progress, kind if len(configs) > 1 else _NOBODY)
            self.clients[kind] = EngineClient(config, told, processes[kind])
        self._ended = anyio.Event()

    def __iter__(self) -> Iterator[tuple[Kind, EngineClient]]:
        return iter(self.clients.items())

    def start(self, supervisor: Supervisor) -> None:
        for kind, client in self:
            supervisor.start(f"the engine{self._of(kind)}", partial(self._run, client))

    async def wait_started(self) -> dict[Kind, EngineReady]:
        """Waits until every first engine is ready. Raises :class:`.listening.StartError` as soon as one ends before."""
        ready: dict[Kind, EngineReady] = {}

        async def wait(kind: Kind, client: EngineClient) -> None:
            try:
                ready[kind] = await client.wait_started()
            except EngineUnavailable as error:
                whose = f"the {kind} model: " if len(self.clients) > 1 else ""
                raise StartError(f"{whose}{error}") from error

        async with anyio.create_task_group() as tasks:
            for kind, client in self:
                tasks.start_soon(wait, kind, client)
        return {kind: ready[kind] for kind in self.clients}

    def watch_recoveries(self, observe: Callable[[Kind, LostProcess, float], None]) -> None:
        """Has ``observe`` called after each, with what had been lost and for how many seconds."""
        for kind, client in self:
            client.watch_recoveries(partial(observe, kind))

    async def wait_ended(self) -> None:
        """Until one has been given up, which is logged."""
        await self._ended.wait()
        for kind, client in self:
            if client.failure is not None:
                logger.error("the engine%s ended: %s", self._of(kind), client.failure)

    async def _run(self, client: EngineClient) -> None:
        await client.run()
        self._ended.set()

    def _of(self, kind: Kind) -> str:
        return f" of the {kind} model" if len(self.clients) > 1 else ""


def _tell(on_progress: OnProgress, model: str, message: Progress) -> None:
    on_progress(message, model)
