"""A start is timed from outside, and its phases are told apart by what the server logs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from stentor.loadtest.server_process import StartFailed
from stentor.loadtest.startup import (
    drop_pages,
    read_phases,
    resident_bytes,
    start_once,
    weight_files,
)
from stentor.tests.loadtest.made_up import made_up

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def _line(seconds: float, message: str) -> str:
    at = (BEGAN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    content = {"time": at, "level": "info", "process": "server", "logger": "stentor.server", "message": message}
    return msgspec.json.encode(content).decode()


def test_phases_follow_one_another_and_add_up_to_the_start() -> None:
    log = [
        "a line of some library",
        _line(1.5, "loading weights…"),
        _line(2.25, "loading weights: done"),
        _line(2.5, "warming up…"),
        '{"half": ',
        _line(2.75, "warming up…"),
        _line(3.0, "ready in 3 s"),
    ]
    phases = read_phases("\n".join(log), BEGAN.timestamp(), 4.0)
    assert phases == pytest.approx({"starting processes": 1.5, "loading weights": 1.0, "warming up": 1.5})


def test_a_silent_server_has_one_phase() -> None:
    assert read_phases("", BEGAN.timestamp(), 2.0) == {"starting processes": 2.0}


def test_pages_that_were_dropped_are_seen_to_be_gone(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x" * 100_000)
    (tmp_path / "empty.gguf").touch()
    files = weight_files(tmp_path)
    assert {each.name for each in files} == {"model.gguf", "empty.gguf"}
    assert weight_files(file) == [file]
    file.read_bytes()
    assert resident_bytes(files) >= 100_000
    drop_pages(files)
    if resident_bytes(files) >= 100_000:
        pytest.skip("this file system lives in memory")
    assert resident_bytes(files) == 0


@pytest.mark.proof  # a server of its own
def test_a_real_start_reaches_its_milestones_in_order(tmp_path: Path) -> None:
    _, _, *options = made_up(tmp_path)
    found = start_once(tmp_path, options, cold=False, environment={}, timeout=60)
    assert 0 < found.listening_s <= found.ready_s < found.first_token_s
    assert sum(found.phases.values()) == pytest.approx(found.ready_s)
    assert {"starting processes", "loading weights", "warming up"} <= set(found.phases)
    assert min(found.phases.values()) >= 0


def test_a_server_that_cannot_start_is_told_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"ended with status 1:\n.*no model in"):
        start_once(tmp_path, [], cold=False, environment={}, timeout=60)
