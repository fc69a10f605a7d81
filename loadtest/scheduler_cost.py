"""What the engine costs a step, without a model, by rows that run and requests that wait.

    stentor bench scheduler-cost --rows 1 32 128 --queue 0 2000 --save FILE

All that the engine computes at a step (decode the result, complete it, plan, encode plan and tokens), in this process
and with warm caches. It is CPU time, so that neighbours disturb it as little as they can. ``stentor bench
server-cost`` measures a whole engine process.
"""

import argparse
import itertools
import random
import statistics
import time
from collections import deque
from typing import Any

import msgspec
from rich.console import Console

from stentor.engine.core.scheduler import MAX_IN_FLIGHT, Scheduler
from stentor.protocols.ipc.actors import Submit, WorkerReady
from stentor.protocols.ipc.codec import decode_engine_worker, encoder
from stentor.protocols.ipc.config import EngineConfig, StepLimits, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan, StepResult

from .record import Record, quantile
from .tool import make_parser, run_tool, table

BLOCK_SIZE = 32
PROMPT_TOKENS = 128
VOCABULARY = 32_000
_TOKEN = 5
_STEP_TOKENS = 512


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time of one step in microseconds; medians, and the worst percent."""

    rows: int
    queue: int
    complete_us: float
    plan_us: float
    messages_us: float
    """Decoding the result, encoding the plan and the tokens."""
    total_us: float
    total_p99_us: float


class SteadyDecode:
    """A scheduler with ``rows`` that decode, ``queue`` requests behind them, and always a step in flight."""

    def __init__(self, rows: int, queue: int, steps: int) -> None:
        prefill_steps = rows * PROMPT_TOKENS // _STEP_TOKENS + 2
        length = PROMPT_TOKENS + prefill_steps + steps + MAX_IN_FLIGHT + 1
        budget = max(_STEP_TOKENS, rows)
        limits = StepLimits(BLOCK_SIZE, rows, budget, budget, budget)
        num_blocks = (rows + 1) * (length // BLOCK_SIZE + 2)
        self.scheduler = Scheduler(WorkerReady(num_blocks, length, [], [], limits), EngineConfig(WorkerConfig("none")))
        self._flying: deque[StepPlan] = deque()
        draw = random.Random(0)
        for number in range(rows + queue):
            prompt = [draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)]
            params = SamplingParams(max_tokens=length - PROMPT_TOKENS, temperature=0.0)
            refused = self.scheduler.submit(Submit(number, prompt, params, [1], 0, "", float(number)))
            assert refused is None, "the measurement asks for what cannot run"
        while len(self._flying) < 2 or not self._is_steady(rows):
            if len(self._flying) == 2:
                self.scheduler.complete(self._next_result(), 0.0)
            plan = self.scheduler.plan(0.0)
            assert plan is not None, "the rows end before they all decode"
            self._flying.append(plan)

    def step(self) -> tuple[int, int, int, int]:
        """Nanoseconds of CPU to decode the result, complete it, plan, and encode plan and tokens."""
        clock = time.thread_time_ns
        frame = encoder.encode(self._next_result())
        began = clock()
        result = decode_engine_worker.decode(frame)
        decoded = clock()
        assert isinstance(result, StepResult)
        batch = self.scheduler.complete(result, 0.0)
        completed = clock()
        plan = self.scheduler.plan(0.0)
        planned = clock()
        encoder.encode(plan)
        encoder.encode(batch)
        ended = clock()
        assert plan is not None, "a row ended while it was measured"
        self._flying.append(plan)
        return decoded - began, completed - decoded, planned - completed, ended - planned

    def _is_steady(self, rows: int) -> bool:
        return all(len(plan.rows) == rows and all(row.count == 1 for row in plan.rows) for plan in self._flying)

    def _next_result(self) -> StepResult:
        plan = self._flying.popleft()
        return StepResult(plan.epoch, plan.step, [_TOKEN for row in plan.rows if row.sample], None, [], 0.0)


def measure(rows: int, queue: int, steps: int) -> Cost:
    """Of a step in which ``rows`` decode while ``queue`` requests wait, over so many steps."""
    decode = SteadyDecode(rows, queue, steps)
    times = [decode.step() for _ in range(steps)]
    totals = [sum(parts) / 1e3 for parts in times]
    decoding, completing, planning, encoding = (statistics.median(part) / 1e3 for part in zip(*times, strict=True))
    return Cost(
        rows=rows,
        queue=queue,
        complete_us=completing,
        plan_us=planning,
        messages_us=decoding + encoding,
        total_us=statistics.median(totals),
        total_p99_us=quantile(totals, 0.99),
    )


class SchedulerCosts(Record, frozen=True, kw_only=True, tag="scheduler cost"):
    costs: list[Cost]


def main(argv: list[str]) -> int:
    parser = make_parser("scheduler-cost", __doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128, 256])
    parser.add_argument("--queue", type=int, nargs="+", default=[0, 2_000, 20_000])
    parser.add_argument("--steps", type=int, default=300, help="that are timed (300)")
    return run_tool(parser, argv, _measure, _show)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> SchedulerCosts:
    costs = [measure(rows, queue, args.steps) for rows, queue in itertools.product(args.rows, args.queue)]
    return SchedulerCosts(costs=costs, **about)


def _show(console: Console, record: SchedulerCosts) -> None:
    rows = []
    for cost in record.costs:
        figures = (cost.complete_us, cost.plan_us, cost.messages_us, cost.total_us, cost.total_p99_us)
        rows.append([str(cost.rows), f"{cost.queue:,}", *(f"{figure:.1f}" for figure in figures)])
    columns = ("rows", "queue", "complete", "plan", "messages", "all", "p99 of all")
    console.print(table(columns, rows, left=0, title="µs of CPU a step, medians"))
