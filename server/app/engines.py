"""The backends of all models, an engine for most: from their start to the first failure."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import anyio

from stentor.engine.client.client import EngineClient
from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.outages import LostProcess
from stentor.engine.client.replicas import AnyEngineClient, EngineReplicas
from stentor.engine.processes.exception_groups import first_cause
from stentor.engine.processes.launch import EngineProcess
from stentor.engine.processes.supervisor import Supervisor
from stentor.protocols.ipc.actors import EngineReady, Progress
from stentor.protocols.ipc.config import EngineConfig

from ..config.model_registry import ModelRole
from ..http.listening import StartError
from ..state.admission_control import ModelBackend

logger = logging.getLogger(__name__)

OnProgress = Callable[[Progress, str], None]
"""Called with the progress, and the model's name if there are several."""

_NOBODY: Final = ""


class EnginelessModel(ModelBackend, Protocol):
    """A model that runs without an engine."""

    async def run(self) -> None:
        """Runs until it is cancelled, or given up."""

    async def wait_started(self) -> None:
        """Raises :class:`..http.listening.StartError`."""


class Engines:
    """A client for each model, under one supervisor. They share no state, so a failure of one does not affect the
    others."""

    def __init__(
        self,
        configs: Mapping[ModelRole, EngineConfig],
        processes: Mapping[ModelRole, Sequence[EngineProcess]],
        on_progress: OnProgress,
    ) -> None:
        """``processes`` have been launched with these very ``configs``."""
        self.clients: dict[ModelRole, AnyEngineClient] = {}
        for kind, config in configs.items():
            model, clients = kind if len(configs) > 1 else _NOBODY, []
            for each, process in zip(config.replicas, processes[kind], strict=True):
                named = model if len(config.replicas) == 1 else each.worker.name
                clients.append(EngineClient(each, partial(_tell, on_progress, named), process))
            self.clients[kind] = clients[0] if len(clients) == 1 else EngineReplicas(clients)
        self._others: dict[ModelRole, EnginelessModel] = {}
        self._ended = anyio.Event()

    def __iter__(self) -> Iterator[tuple[ModelRole, AnyEngineClient]]:
        return iter(self.clients.items())

    def start(self, supervisor: Supervisor) -> None:
        for kind, client in self:
            supervisor.start(f"the engine{self._of(kind)}", partial(self._run, client.run))

    def add(self, kind: ModelRole, other: EnginelessModel, supervisor: Supervisor) -> None:
        """Runs, and is waited for, with the engines."""
        self._others[kind] = other
        supervisor.start(f"the {kind} model", partial(self._run, other.run))

    async def wait_started(self) -> dict[ModelRole, EngineReady]:
        """Waits until every first engine is ready, and all that was added.

        Raises :class:`..http.listening.StartError` as soon as one ends before.
        """
        ready: dict[ModelRole, EngineReady] = {}
        failure: BaseException

        async def wait(kind: ModelRole, client: AnyEngineClient) -> None:
            try:
                ready[kind] = await client.wait_started()
            except EngineUnavailable as error:
                whose = f"the {kind} model: " if len(self.clients) > 1 else ""
                raise StartError(f"{whose}{error}") from error

        try:
            async with anyio.create_task_group() as tasks:
                for kind, client in self:
                    tasks.start_soon(wait, kind, client)
                for other in self._others.values():
                    tasks.start_soon(other.wait_started)
            return {kind: ready[kind] for kind in self.clients}
        except* StartError as group:
            failure = first_cause(group)
        raise failure

    def watch_recoveries(self, observe: Callable[[ModelRole, LostProcess, float], None]) -> None:
        """Has ``observe`` called after each recovery, with the lost process and the seconds."""
        for kind, client in self:
            client.watch_recoveries(partial(observe, kind))

    async def wait_ended(self) -> None:
        """Waits until one has been given up, which is logged."""
        await self._ended.wait()
        given_up = [(f"the engine{self._of(kind)}", client.failure) for kind, client in self]
        given_up += [(f"the {kind} model", other.failure) for kind, other in self._others.items()]
        for what, why in given_up:
            if why is not None:
                logger.error("%s ended: %s", what, why)

    async def _run(self, run: Callable[[], Awaitable[None]]) -> None:
        await run()
        self._ended.set()

    def _of(self, kind: ModelRole) -> str:
        return f" of the {kind} model" if len(self.clients) + len(self._others) > 1 else ""


def _tell(on_progress: OnProgress, model: str, message: Progress) -> None:
    on_progress(message, model)
