"""Starts the engine's workers, one after the other."""

import time
from collections.abc import Callable

import anyio

from stentor.protocols.ipc.actors import WorkerReady
from stentor.protocols.ipc.config import WorkerConfig

from .worker_life import OnProgress, Sleep, WorkerLife, WorkerLost
from .worker_source import WorkerSource


class WorkerKeeper:
    """What the first worker settled holds for all that follow: requests that live were accepted under it."""

    def __init__(
        self,
        source: WorkerSource,
        config: WorkerConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = anyio.sleep,
    ) -> None:
        self._source = source
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._first: WorkerReady | None = None

    async def start(self, on_progress: OnProgress) -> tuple[WorkerLife, WorkerReady]:
        """A worker that is ready, and the caller's to end. Raises :class:`WorkerLost`, and leaves nothing then."""
        life = await WorkerLife.spawn(self._source)
        try:
            # the very same configuration: what a worker leaves for the next one is found by it
            ready = await life.start(self._config, on_progress, clock=self._clock, sleep=self._sleep)
            first = self._first = self._first or ready
            if ready.limits != first.limits or ready.max_model_len < first.max_model_len:
                raise WorkerLost(
                    f"the new worker takes sequences of {ready.max_model_len} tokens in steps of {ready.limits}; "
                    f"the first one took {first.max_model_len} in {first.limits}"
                )
        except BaseException as error:
            # while it loads it does not listen, and has nothing to lose
            dead = await life.end(0.0)
            if not dead and isinstance(error, WorkerLost) and not error.stuck:
                raise WorkerLost(str(error), stuck=True) from error
            raise
        return life, ready
