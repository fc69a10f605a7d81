"""Lines about drafts: what they have brought since the line before, and none where there were none."""

import logging

import msgspec
import pytest

from stentor.engine.core.loop import DraftLog
from stentor.protocols.ipc.actors import Stats


def test_lines_tell_what_drafts_have_brought_since_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = DraftLog()
    stats = Stats(1, 0, 0.1, 0, 0, 0, 9, 60)
    log.note(stats, 100.0)
    assert not caplog.messages, "there were no drafts"
    for now, verified, accepted in ((120.0, 10, [8, 2]), (125.0, 20, [9, 3]), (131.0, 30, [9, 5]), (150.0, 30, [9, 5])):
        told = {"num_drafts": verified, "num_draft_tokens": 4 * verified, "accepted_by_position": accepted}
        log.note(msgspec.structs.replace(stats, **told), now)
    assert caplog.messages == [
        "speculation: 2.00 tokens a step of sequences with drafts; 10 of 40 drafts were right",
        "speculation: 1.20 tokens a step of sequences with drafts; 4 of 80 drafts were right",
    ]
