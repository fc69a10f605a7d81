"""An engine whose workers die in the middle of things."""

import random
from collections.abc import Callable

from stentor.engine.worker.rows.rows import with_forks
from stentor.protocols.ipc.steps import StepPlan
from stentor.tests.engine.fake_engine import Engine


class MortalEngine(Engine):
    """Its worker dies of what ``kills`` says, before it has run the plan; what it had sent before may be lost too."""

    def __init__(self, kills: Callable[[StepPlan, set[int]], bool], rng: random.Random, **sizes: object) -> None:
        super().__init__(**sizes)  # type: ignore[arg-type]
        self._kills = kills
        self._rng = rng

    def plan(self) -> bool:
        self.now += 0.01
        plan = self.scheduler.plan(self.now)
        if plan is None:
            return False
        self.plans.append(with_forks(plan))
        slots = {row.slot for row in plan.rows}
        rids = {sequence.request.rid for sequence in self.scheduler._rows.running if sequence.slot in slots}
        if self._kills(plan, rids):
            while self.results and self._rng.random() < 0.5:
                self.deliver()
            self.kill_worker()
        else:
            result = self.worker.run(plan)
            assert result is not None
            self.results.append(result)
        return True
