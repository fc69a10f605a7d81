"""The scheduler and a runner on the GPU, each step launched before the result of the one before is read."""

from collections import deque
from collections.abc import Callable
from pathlib import Path

from stentor.engine.core.scheduler import MAX_IN_FLIGHT
from stentor.engine.worker.compute.async_compute import AsyncCompute
from stentor.engine.worker.compute.pending import Pending
from stentor.engine.worker.rows.rows import with_forks
from stentor.tests.engine.local import LocalEngine, model_config, never


class AheadEngine(LocalEngine):
    """Graphs, where there are any, are captured before the first step."""

    def __init__(self, folder: Path, **changes: object) -> None:
        super().__init__(model_config(folder, **{"device": "cuda", "kv_cache_memory": 64 << 20, **changes}))
        assert isinstance(self.runner.compute, AsyncCompute)
        self.compute = self.runner.compute
        while self.compute.advance(busy=False) is not None:
            pass

    def run(self, *, check: bool = False, dies: Callable[[], bool] = never) -> None:
        """Its runner cannot be taken away from under it: ``dies`` must be left alone."""
        assert dies is never
        pending: deque[Pending] = deque()
        while True:
            self._clock += 1e-3
            while self.scheduler.in_flight < MAX_IN_FLIGHT and (plan := self.scheduler.plan(self._clock)) is not None:
                pending.append(self.runner.launch(with_forks(plan)))
            if not pending:
                assert not self.scheduler.has_work, "requests live and nothing can be planned"
                return
            self.steps += 1
            self._take(self.scheduler.complete(self.runner.finish(pending.popleft()), self._clock))
            if check:
                self.scheduler.check_integrity()
