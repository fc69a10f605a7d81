"""The measurement of the engine's own cost: that it measures what it says."""

from pathlib import Path

import msgspec

from stentor.loadtest.scheduler_cost import SchedulerCosts, SteadyDecode, main


def test_every_row_decodes_in_each_step_that_is_measured_and_the_queue_stands() -> None:
    decode = SteadyDecode(rows=20, queue=7, steps=40)
    for _ in range(40):
        assert all(nanoseconds >= 0 for nanoseconds in decode.step())
        stats = decode.scheduler.stats()
        assert (stats.running, stats.waiting) == (20, 7)
        assert [len(plan.rows) for plan in decode._flying] == [20, 20]
    decode.scheduler.check_integrity()


def test_figures_are_written_as_json(tmp_path: Path) -> None:
    file = tmp_path / "new" / "costs.json"
    assert main(["--rows", "2", "--queue", "0", "3", "--steps", "30", "--save", str(file)]) == 0
    costs = msgspec.json.decode(file.read_bytes(), type=SchedulerCosts).costs
    assert [(cost.rows, cost.queue) for cost in costs] == [(2, 0), (2, 3)]
    for cost in costs:
        assert 0 < cost.total_us <= cost.total_p99_us
