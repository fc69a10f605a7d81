"""A request that kills every worker that computes it, by a hook that only this server has."""

from pathlib import Path

import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan
from stentor.tests.chaos.exactness import SMALL_STEPS
from stentor.tests.chaos.poison_worker import MAGIC, Fault
from stentor.tests.chaos.poisoning import MODULE, SERVE, STREAMS, poison
from stentor.tests.e2e.made_up import describe_talker

pytestmark = [pytest.mark.alone, pytest.mark.proof]

SEED = 20261121
TOKENS = 230
"""At most, of a stream: of a model so small they take as long as it takes to find the poison."""


def test_poison_fails_alone_and_the_streams_beside_it_are_what_they_are_without(
    demo_model: object, tmp_path: Path
) -> None:
    with ServerProcess([*describe_talker(tmp_path), *SERVE, *SMALL_STEPS], MODULE) as server:
        for found in poison(server, (1, 2), SEED, TOKENS, lambda _: None):
            assert not found.problems, f"seed {SEED}: {found.problems[:5]}\n{server.output()[-5000:]}"
            assert found.statuses == [500] * found.poisons
            assert found.identical == STREAMS


def test_the_fault_strikes_with_every_step_of_a_poisonous_row_and_no_other() -> None:
    def new(slot: int, *tokens: int) -> NewRow:
        return NewRow(slot, list(tokens), len(tokens), SamplingParams(max_tokens=5), 0, [])

    def plan(*slots: int, rows: tuple[NewRow, ...] = (), freed: tuple[int, ...] = ()) -> StepPlan:
        return StepPlan(0, 0, [*freed], [*rows], [RowStep(slot, 0, 1, [], True) for slot in slots])

    fault = Fault()
    assert not fault.strikes(plan(0, rows=(new(0, *MAGIC[:-1], 5), new(1, 9, *MAGIC, 5))))
    assert fault.strikes(plan(0, 1))
    assert fault.strikes(plan(1))
    assert not fault.strikes(plan(0))
    assert not fault.strikes(plan(1, rows=(new(1, 4, 5),), freed=(1,)))
