"""Bombs beside streams of a worker that computes nothing, so that the streams' pace is the server's own.

``make chaos`` throws them for longer at the real model, on a machine that does nothing else.
"""

from pathlib import Path

import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.chaos.bombing import SERVE, bomb
from stentor.tests.e2e.made_up import ECHO, describe_talker

pytestmark = [pytest.mark.alone, pytest.mark.proof]

MOST_RATIO = 6.0
"""Of the latency under attack to that in peace: here others may keep the processors busy."""

STREAM_TOKENS = 50


def test_bombs_are_refused_soon_and_streams_keep_their_pace(demo_model: object, tmp_path: Path) -> None:
    with ServerProcess([*describe_talker(tmp_path), *SERVE, "--template-timeout", "0.3"], ECHO) as server:
        found = bomb(server, 0.0, 0.0, lambda _: None, stream_tokens=STREAM_TOKENS)
        assert not found.problems, f"{found.problems[:5]}\n{server.output()[-3000:]}"
        assert found.ratio <= MOST_RATIO, found
