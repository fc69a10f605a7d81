"""Which request a row belongs to, as a worker's logs say it."""

import logging

import pytest

from stentor.engine.worker.compute.executor import NAMED, RowNames, SyncExecutor, names_in
from stentor.protocols.ipc.actors import Failed
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan


def plan(step: int, *, freed: list[int] = [], new: dict[int, str] = {}, rows: list[int]) -> StepPlan:  # noqa: B006
    entering = [NewRow(slot, [1, 2], 2, SamplingParams(max_tokens=4), 0, [slot], name) for slot, name in new.items()]
    return StepPlan(0, step, freed, entering, [RowStep(slot, 0, 2, [], True) for slot in rows])


def test_a_name_stays_with_its_slot_until_another_takes_it() -> None:
    names = RowNames()
    first = plan(0, new={0: "a", 1: "b"}, rows=[0, 1])
    then = plan(1, rows=[0, 1])
    last = plan(2, freed=[0, 1], new={1: "c"}, rows=[1])
    of_first = names.after(first)
    of_then = names.after(then)
    of_last = names.after(last)
    assert names_in(first, of_first) == names_in(then, of_then) == "a, b"
    assert of_first is of_then, "a step without news costs nothing"
    assert names_in(last, of_last) == "c"
    assert names_in(then, of_then) == "a, b", "a step that fails late still names its own"


def test_many_are_named_up_to_a_bound_and_sequences_of_one_request_once() -> None:
    names = RowNames()
    crowd = plan(0, new={slot: f"r{slot:02}" for slot in range(NAMED + 5)}, rows=list(range(NAMED + 5)))
    assert names_in(crowd, names.after(crowd)).endswith(f"r{NAMED - 1} and 5 more")
    fork = plan(1, freed=[0, 1], new={0: "same", 1: "same"}, rows=[0, 1])
    assert names_in(fork, names.after(fork)) == "same"
    assert names_in(plan(2, rows=[]), {}) == "nobody"


class Broken:
    def step(self, _plan: StepPlan) -> None:
        raise RuntimeError("no")


def test_a_step_that_fails_names_its_requests(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[object] = []
    with caplog.at_level(logging.DEBUG, "stentor"):
        SyncExecutor(Broken(), sent.append).take(plan(7, new={3: "abc"}, rows=[3]))  # type: ignore[arg-type]
    assert isinstance(sent[0], Failed)
    assert "step 7 failed; it had rows of abc" in caplog.text
    (entry,) = [record for record in caplog.records if record.levelno == logging.DEBUG]
    assert getattr(entry, "request_id", None) == "abc"
