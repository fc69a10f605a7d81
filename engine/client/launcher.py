"""Starts the engine processes of one client, one after the other, and kills those that must end."""

from typing import Final

import msgspec

from stentor.protocols.ipc.config import EngineConfig, Weights

from ..channel import ChannelError
from ..channel.arena import Arena
from ..processes.exception_groups import one_line
from ..processes.launch import EngineProcess, launch_engine
from ..processes.restart_policy import Restarts
from .errors import EngineLost

_RETIRED = "the engine process was ended while it started: it was told to sleep"


class EngineLauncher:
    """The present engine process, and what its successors start with."""

    def __init__(self, config: EngineConfig, process: EngineProcess | None, restarts: Restarts) -> None:
        """``process``: one launched with this ``config``. None: :meth:`start` launches the first."""
        self.process = process
        """The present or the last one."""
        self.arena: Final = Arena() if process is None else process.arena
        """The memory of the requests' media, of all processes."""
        self.killed = ""
        """Why the present process was killed; "" if it was not."""
        self.is_starting = False
        """Whether the present process starts, in place of one that had been ready."""
        self._config = config
        self._restarts = restarts
        self._is_new = process is not None

    @property
    def needs_start(self) -> bool:
        """Whether there is no process, or one that was lost."""
        return not self._is_new

    @property
    def weights(self) -> Weights:
        """The weights that the next engine loads."""
        return self._config.worker.weights

    def use_weights(self, weights: Weights) -> None:
        self._config = msgspec.structs.replace(self._config, worker=self._config.worker.with_weights(weights))

    def discard_weights(self) -> None:
        """Drop prepared weights. To be called while no engine runs."""
        if self.process is not None:
            self.process.discard_weights()

    def start(self) -> None:
        """Start a process. Raises :class:`EngineLost`."""
        before = self.process
        try:
            self.process = (
                launch_engine(self._config, arena=self.arena) if before is None else before.again(self._config)
            )
        except (ChannelError, OSError) as error:
            raise EngineLost(f"cannot start the engine process: {one_line(error)}") from error
        self._is_new = True

    def take(self, *, successor: bool) -> EngineProcess:
        """The process that was started, and whose events are read from now on."""
        assert self.process is not None
        self._is_new, self.is_starting, self.killed = False, successor, ""
        return self.process

    def started(self) -> None:
        """Record that the present process is ready, or has ended."""
        self.is_starting = False

    def end_start(self) -> None:
        """End a successor that starts: no request is with it, and a sleep would only end its worker."""
        if self.is_starting:
            self.is_starting = False
            self._restarts.excuse()
            self.kill(_RETIRED)

    def kill(self, why: str) -> None:
        """Kill the present process, without waiting for its death."""
        assert self.process is not None
        self.killed = why
        self.process.child.kill()
