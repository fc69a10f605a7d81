"""Bombs beside real streams. ``make chaos`` throws them for longer, on a machine that does nothing else."""

import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos.bombing import SERVE, bomb

pytestmark = [pytest.mark.alone, pytest.mark.proof]

MOST_RATIO = 6.0
"""Of the latency under attack to that in peace: here others may keep the processors busy."""


def test_bombs_are_refused_soon_and_streams_keep_their_pace(demo_model: object) -> None:
    with ServerProcess([*SERVE, "--template-timeout", "0.3"]) as server:
        found = bomb(server, 1.5, 0.0, lambda _: None)
        assert not found.problems, f"{found.problems[:5]}\n{server.output()[-3000:]}"
        assert found.ratio <= MOST_RATIO, found
