"""A scheduler and a worker's runner in one process: what a model does without HTTP and channels around it."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stentor.engine.core.scheduler import MAX_IN_FLIGHT, Scheduler
from stentor.engine.worker.device_runner import DeviceRunner
from stentor.engine.worker.setup import set_up
from stentor.protocols.ipc.actors import Submit, TokensBatch
from stentor.protocols.ipc.config import SchedulerConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan, StepResult

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class StepTime:
    """One step of a run."""

    rows: int
    tokens: int
    seconds: float
    """Between its result and that of the step before."""


class LocalEngine:
    """Submits and runs requests one step ahead, as the engine loop does."""

    def __init__(self, config: WorkerConfig, progress: Progress) -> None:
        setup = set_up(config, progress)
        self.runner = setup.runner
        self.ready = setup.ready
        self._scheduler = Scheduler(
            num_blocks=setup.ready.num_blocks,
            block_size=setup.ready.limits.block_size,
            max_num_seqs=setup.ready.limits.max_num_seqs,
            max_num_batched_tokens=setup.ready.limits.max_num_batched_tokens,
            max_model_len=setup.ready.max_model_len,
            config=SchedulerConfig(prefix_cache=False),
        )
        self._requests = 0

    def capture_all(self) -> None:
        """Captures every size of decode steps now, where the runner captures any."""
        if isinstance(self.runner, DeviceRunner):
            while self.runner.advance(busy=False) is not None:
                pass

    def submit(self, prompt: list[int], output: int) -> None:
        """A greedy request for exactly ``output`` tokens. Raises RuntimeError where it can never run."""
        params = SamplingParams(max_tokens=output, temperature=0.0)
        now = time.monotonic()
        refused = self._scheduler.submit(Submit(self._requests, prompt, params, [0], 0, "", now), now)
        self._requests += 1
        if refused is not None:
            raise RuntimeError(refused.finished[0].message)

    def run(self) -> list[StepTime]:
        """Until every request has ended; a step is launched before the one before it is finished."""
        times = []
        last = time.perf_counter()
        for plan, _ in self._steps():
            now = time.perf_counter()
            times.append(StepTime(len(plan.rows), sum(row.count for row in plan.rows), now - last))
            last = now
        return times

    def _steps(self) -> Iterator[tuple[StepPlan, TokensBatch]]:
        flying: deque[tuple[StepPlan, Any]] = deque()
        while True:
            while len(flying) < MAX_IN_FLIGHT and (plan := self._scheduler.plan(time.monotonic())) is not None:
                flying.append((plan, self._launch(plan)))
            if not flying:
                return
            plan, launched = flying.popleft()
            result: StepResult = launched()
            yield plan, self._scheduler.complete(result, time.monotonic())

    def _launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        if isinstance(self.runner, DeviceRunner):
            runner, pending = self.runner, self.runner.launch(plan)
            return lambda: runner.finish(pending)
        result = self.runner.step(plan)
        return lambda: result
