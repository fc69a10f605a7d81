"""The worker's main loop: it handles its mailbox, and sleeps in poll while there is nothing to do."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import assert_never

from stentor.protocols.ipc.actors import Failed, Profile, Profiled, Progress, Shutdown, StartWorker
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef, DropAdapter, LoadAdapter, ReadsAdapters
from stentor.protocols.ipc.codec import decode_worker, encoder
from stentor.protocols.ipc.config import WorkerConfig, process_name
from stentor.protocols.ipc.steps import Masks, StepPlan, StepResult

from ..channel import Endpoint, PeerDied
from ..channel.arena import ArenaReader
from ..channel.pieces import result_frames
from ..layers.linear.rank_group import RankLost
from ..layers.linear.weights import WeightError
from ..loading.errors import CheckpointError
from ..processes.exception_groups import one_line
from ..processes.logs import set_up_logging
from ..sharing.lease import Member
from .adapters.store import AdapterStore
from .compute.executor import Executor, capture_failure
from .device.graphs import CaptureError
from .device.lease import AloneOnDevice, DeviceLease, SharedDevice
from .errors import SetupError
from .rows.rows import with_forks
from .setup.setup import set_up
from .step_trace import StepTrace

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.1
_READ_SECONDS = 0.005
"""Interval at which loaded adapters are looked for while no message comes."""
_READING_SECONDS = 1.0
"""Interval at which the engine is told that adapters are being read."""


class Worker:
    """Answers ``StartWorker`` with ``WorkerReady`` or ``Failed``, and every ``StepPlan`` with its result or ``Failed``.

    After ``Failed`` it ends.
    """

    def __init__(
        self,
        engine: Endpoint,
        weights_fd: int | None = None,
        lease_fd: int | None = None,
        arena_fd: int | None = None,
        meeting_fd: int | None = None,
    ) -> None:
        """
        Args:
            engine: the channel to the engine.
            weights_fd: memory file for prepared weights; None: none.
            lease_fd: lease on a device that other models share; None: none.
            arena_fd: memory file of media; None: none.
            meeting_fd: file by which workers that split a model find each other; None: none.
        """
        self._engine = engine
        self._weights_fd = weights_fd
        self._lease_fd = lease_fd
        self._meeting_fd = meeting_fd
        self._sends_results = True
        self._arena = None if arena_fd is None else ArenaReader(arena_fd)
        self._executor: Executor | None = None
        self._adapters: AdapterStore | None = None
        self._told_reading = 0.0
        self._trace: StepTrace | None = None

    def run(self) -> int:
        """Serve until :class:`Shutdown`; returns the exit code. Raises :class:`PeerDied` if the engine is gone."""
        while True:
            seconds = None
            if self._executor is not None:
                seconds = self._executor.rest()
                if self._executor.failed:
                    return 1
                if self._adapters is not None and self._adapters.reading:
                    self._tell_read(self._executor, self._adapters)
                    if self._adapters.reading:
                        seconds = _READ_SECONDS if seconds is None else min(seconds, _READ_SECONDS)
            for frame in self._engine.receive_blocking(seconds):
                match decode_worker.decode(frame):
                    case StartWorker(config=config):
                        if (failure := self._start(config)) is not None:
                            self._send(failure)
                            return 1
                    case StepPlan() as plan:
                        if not self._step(with_forks(plan)):
                            return 1
                    case Masks() as masks:
                        if not self._step(masks):
                            return 1
                    case LoadAdapter(adapter=adapter):
                        self._load(self._adapter_store(), adapter)
                    case DropAdapter(number=number):
                        self._adapter_store().drop(number)
                    case Profile(on=on):
                        self._profile(on)
                    case Shutdown():
                        if self._executor is not None:
                            self._executor.close()
                        return 0
                    case other:
                        assert_never(other)

    def _start(self, config: WorkerConfig) -> Failed | None:
        """Load the model and report it, or return why it cannot be loaded."""
        process = "worker" if config.group_size == 1 else f"worker {config.rank}"
        set_up_logging(config.log_level, config.log_format, process_name(process, config.name))
        # rank 0 takes the device for all: the others wait for it in their first collective
        lease_fd = self._lease_fd if config.rank == 0 else None
        self._sends_results = config.rank == 0
        try:
            member = None if lease_fd is None else Member(lease_fd, config.lease_member)
            setup = set_up(config, _throttled(self._send_progress), self._weights_fd, member, self._meeting_fd)
        except PeerDied:
            raise
        except RankLost as error:
            return Failed(one_line(error), of_peer=True)
        except CaptureError as error:
            return capture_failure(error)
        except (SetupError, CheckpointError) as error:
            return Failed(one_line(error))
        except WeightError as error:
            return Failed(f"Cannot load {config.model}: {one_line(error)}")
        except Exception as error:
            logger.exception("start-up failed")
            return Failed(f"the worker failed to start: {type(error).__name__}: {one_line(error)}")
        # ready first: from here on only the executor sends
        self._send(setup.ready)
        runner = setup.runner
        lease: DeviceLease = AloneOnDevice()
        if runner.extras is not None and self._arena is not None:
            runner.extras.media = self._arena.read
        if member is not None and not setup.has_own_cpus:
            lease = shared = SharedDevice(member)
            if runner.extras is not None:
                runner.extras.yield_device = partial(shared.yield_device, setup.device)
        self._executor = setup.executor(self._send, lease)
        self._adapters = setup.adapters
        self._trace = StepTrace(config) if config.profiler_folder else None
        return None

    def _load(self, adapters: AdapterStore, adapter: AdapterRef) -> None:
        if not adapters.reading:
            self._told_reading = time.monotonic()
        adapters.load(adapter)

    def _tell_read(self, executor: Executor, adapters: AdapterStore) -> None:
        """Tell the engine which adapters have been read, and at intervals that others have not."""
        for loaded in adapters.take():
            executor.tell(loaded)
        now = time.monotonic()
        if adapters.reading and now - self._told_reading >= _READING_SECONDS:
            self._told_reading = now
            executor.tell(ReadsAdapters())

    def _adapter_store(self) -> AdapterStore:
        if self._adapters is None:
            raise RuntimeError("an adapter was to be loaded or dropped by a worker that was started without any")
        return self._adapters

    def _profile(self, on: bool) -> None:
        if self._executor is None or self._trace is None:
            raise RuntimeError("a profile was to be taken by a worker that was started without a folder for it")
        self._executor.tell(Profiled(self._trace.begin() if on else self._trace.write()))

    def _step(self, message: StepPlan | Masks) -> bool:
        """Run a step's plan or masks; False if the worker must end."""
        if self._executor is None:
            raise RuntimeError("a step came before the start message")
        if isinstance(message, Masks):
            self._executor.mask(message)
        else:
            self._executor.take(message)
        return not self._executor.failed

    def _send(self, message: object) -> None:
        if isinstance(message, StepResult | AdapterLoaded | ReadsAdapters | Profiled) and not self._sends_results:
            return
        if isinstance(message, StepResult):
            for frame in result_frames(message):
                self._engine.send_blocking(frame)
            return
        self._engine.send_blocking(encoder.encode(message))

    def _send_progress(self, phase: str, done: int, total: int) -> None:
        self._send(Progress(phase, done, total))


def _throttled(send: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
    """Pass on the first and last report of a phase, and ten a second in between."""
    last = 0.0

    def report(phase: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done in (0, total) or now - last >= _PROGRESS_SECONDS:
            last = now
            send(phase, done, total)

    return report
