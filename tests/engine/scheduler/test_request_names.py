"""A request carries the id that its HTTP client gets, for logs."""

from stentor.engine.core.scheduler import Scheduler
from stentor.protocols.ipc.actors import Submit
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.schedulers import CONFIG, ready_of


def scheduler_with(*names: str) -> Scheduler:
    scheduler = Scheduler(
        ready_of(
            num_blocks=16,
            block_size=4,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            max_model_len=64,
        ),
        CONFIG,
    )
    for rid, name in enumerate(names):
        request = Submit(rid, [1, 2, 3], SamplingParams(max_tokens=8), [rid], 0, "", float(rid), name=name)
        assert scheduler.submit(request) is None
    return scheduler


def test_the_worker_is_told_whose_rows_it_gets_also_after_a_death() -> None:
    scheduler = scheduler_with("a", "b")
    for now in (0.0, 1.0):
        plan = scheduler.plan(now)
        assert plan is not None
        assert [row.request for row in plan.new] == ["a", "b"]
        scheduler.recover()


def test_the_one_to_blame_is_named_and_nobody_before_it_is_known() -> None:
    scheduler = scheduler_with("bad")
    named = []
    for now in range(3):
        assert scheduler.plan(float(now)) is not None
        named.append(scheduler.recover().culprit)
    assert named == ["", "", "bad"]
