"""What a step costs, in lines of Python executed, so that the answer does not depend on the machine."""

from stentor.engine.core.scheduler import Scheduler
from stentor.protocols.ipc.actors import Submit
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan, StepResult
from stentor.tests.engine.schedulers import CONFIG, ready_of
from stentor.tests.support.counting import lines_executed


def busy_scheduler(*, rows: int, waiting: int) -> Scheduler:
    """``rows`` decoding, ``waiting`` queued behind them."""
    scheduler = Scheduler(
        ready_of(
            num_blocks=rows * 8,
            block_size=32,
            max_num_seqs=rows,
            max_num_batched_tokens=1024,
            max_model_len=256,
        ),
        CONFIG,
    )
    params = SamplingParams(max_tokens=200)
    for rid in range(rows + waiting):
        scheduler.submit(Submit(rid, [rid, 1, 2, 3], params, [rid], rid % 3, "", float(rid)))
    for _ in range(4):
        run(scheduler, scheduler.plan(0.0))
    assert scheduler.stats().running == rows
    assert scheduler.stats().waiting == waiting
    return scheduler


def result_of(plan: StepPlan) -> StepResult:
    return StepResult(plan.epoch, plan.step, [5] * sum(row.sample for row in plan.rows), None, [], 0.0)


def run(scheduler: Scheduler, plan: StepPlan | None) -> None:
    assert plan is not None
    scheduler.complete(result_of(plan), 0.0)


def step_cost(scheduler: Scheduler) -> int:
    return lines_executed(lambda: run(scheduler, scheduler.plan(0.0)))


def test_a_step_costs_the_same_whether_ten_requests_wait_or_two_thousand() -> None:
    assert step_cost(busy_scheduler(rows=8, waiting=2000)) == step_cost(busy_scheduler(rows=8, waiting=10))


def test_a_step_costs_the_same_where_the_head_of_the_queue_lacks_blocks() -> None:
    costs = []
    for waiting in (10, 2000):
        scheduler = busy_scheduler(rows=8, waiting=waiting)
        scheduler.abort(0, -1)
        scheduler._kv_cache.pool.allocate_many(scheduler._kv_cache.pool.free_count - 1)
        costs.append(step_cost(scheduler))
        assert scheduler.stats().running == 7
    assert costs[0] == costs[1]


def test_submitting_and_aborting_cost_the_same_however_many_wait() -> None:
    costs = []
    for waiting in (10, 2000):
        scheduler = busy_scheduler(rows=2, waiting=waiting)
        submit = Submit(9999, [1, 2], SamplingParams(max_tokens=1), [1], 0, "", 1e6)
        costs.append(lines_executed(lambda s=scheduler, m=submit: s.submit(m)))  # type: ignore[misc]
        costs.append(lines_executed(lambda s=scheduler: s.abort(9999, -1)))  # type: ignore[misc]
    assert costs[:2] == costs[2:]


def test_the_cost_of_a_step_grows_in_proportion_to_its_rows() -> None:
    small, large = (step_cost(busy_scheduler(rows=rows, waiting=0)) for rows in (16, 128))
    assert large < small * 8
    assert large < 128 * 60


def test_requests_that_come_and_are_aborted_leave_nothing_in_the_queue() -> None:
    scheduler = busy_scheduler(rows=1, waiting=1)
    for rid in range(10, 5010):
        scheduler.submit(Submit(rid, [1], SamplingParams(max_tokens=1), [1], 0, "", 1.0))
        scheduler.abort(rid, -1)
    assert sum(map(len, scheduler._kv_cache.queue._heaps.values())) <= 4
    scheduler.check_integrity()
