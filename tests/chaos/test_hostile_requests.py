"""Random requests and clients that leave in every state. ``make chaos`` sends twenty times as many."""

from pathlib import Path

import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos.footprint import Footprint
from stentor.tests.chaos.fuzzing import SERVE, fuzz
from stentor.tests.e2e.made_up import describe_talker

pytestmark = pytest.mark.proof

SEED = 20261121
REQUESTS = 250


def test_no_answer_is_a_failure_of_the_server_and_nothing_is_held_afterwards(
    demo_model: object, tmp_path: Path
) -> None:
    with ServerProcess([*describe_talker(tmp_path), *SERVE]) as server:
        fuzzed = fuzz(server, REQUESTS, SEED, lambda _: None)
        assert not fuzzed.problems, f"seed {SEED}: {fuzzed.problems[:5]}\n{server.output()[-3000:]}"
        assert fuzzed.clients_that_left > REQUESTS / 3
        assert fuzzed.statuses["200"] > 15
        assert fuzzed.statuses["400"] > 15
        assert "Traceback" not in server.output()


def _footprint(**changes: object) -> Footprint:
    fields: dict[str, object] = {
        "live": 0,
        "free_blocks": 10,
        "tasks": 5,
        "connections": 0,
        "shared_memory": frozenset(),
        "descriptors": {"server": 20},
        "processes": {"server": 1},
        "resident": {"server": 100 << 20},
    }
    return Footprint(**(fields | changes))  # type: ignore[arg-type]


def test_whatever_is_still_held_is_told() -> None:
    before = _footprint()
    assert before.leaks_since(before) == []
    assert _footprint(resident={"server": 110 << 20}).leaks_since(before) == []
    changes: list[dict[str, object]] = [
        {"live": 1},
        {"free_blocks": 9},
        {"tasks": 6},
        {"connections": 1},
        {"shared_memory": frozenset({"psm_1"})},
        {"descriptors": {"server": 21}},
        {"processes": {"server": 1, "helper": 1}},
        {"resident": {"server": 130 << 20}},
    ]
    for change in changes:
        assert len(_footprint(**change).leaks_since(before)) == 1, change
