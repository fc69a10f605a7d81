"""Results on disk: what is written is read again, and what is something else is told so."""

import csv
import json
import os
from pathlib import Path

import msgspec
import pytest

from stentor.loadtest import record
from stentor.loadtest.record import (
    RecordError,
    RequestRecord,
    Result,
    Spread,
    Startup,
    StartupRound,
    Summary,
    Sweep,
    SweepPoint,
    Target,
    load_record,
    load_result,
    save_csv,
    save_record,
)

SUMMARY = Summary(
    seconds=2.0,
    requests=2,
    completed=1,
    errors=1,
    prompt_tokens=3,
    output_tokens=4,
    output_tokens_per_s=2.0,
    total_tokens_per_s=3.5,
    requests_per_s=0.5,
    ttft=Spread(1, 2, 3, 4, 5, 6, 7),
    itl=Spread(),
    tpot=Spread(),
    e2e=Spread(),
    errors_by_kind={"timeout": 1},
)
REQUESTS = [
    RequestRecord(0.5, 0.25, 3, 1, None, [], [], 1.5, "timeout: silent, for 3 s", None, "rate=2"),
    RequestRecord(0.0, 0.0, 3, 4, 0.1, [0.1, 0.2, 0.0], [1, 1, 1], 0.4, None, "length", "rate=1"),
]
RESULT = Result(
    name="mine",
    started_at="2026-11-21T10:00:00.250+00:00",
    command=["stentor", "bench"],
    target=Target("http://h:1", "m", "chat"),
    workload={"seed": 3},
    limits={"ttft": 5.0},
    summary=SUMMARY,
    requests=REQUESTS,
    metrics_before={'a{b="c"}': 1.0},
    client_seconds=0.5,
)
SWEEP = Sweep(name="s", started_at=RESULT.started_at, axis="rate", points=[SweepPoint(2.0, RESULT)])
STARTUP = Startup(name="u", started_at=RESULT.started_at, rounds=[StartupRound(True, {"import": 0.5}, 2.5)])


@pytest.mark.parametrize("saved", [RESULT, SWEEP, STARTUP], ids=lambda saved: str(saved.kind))
def test_what_is_saved_is_loaded_again(tmp_path: Path, saved: Result | Sweep | Startup) -> None:
    save_record(saved, tmp_path / "x.json")
    assert load_record(tmp_path / "x.json") == saved
    written = json.loads((tmp_path / "x.json").read_text())
    assert (written["format"], written["kind"]) == (1, saved.kind)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_result_is_read_as_one_and_nothing_else(tmp_path: Path) -> None:
    save_record(RESULT, tmp_path / "r.json")
    assert load_result(tmp_path / "r.json") == RESULT
    save_record(SWEEP, tmp_path / "s.json")
    with pytest.raises(RecordError, match="holds a sweep, expected the result"):
        load_result(tmp_path / "s.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no file of `stentor bench`"),
        ("[1]", "is no file of `stentor bench`"),
        ('{"format":1,"kind":"serve"}', "is no file of `stentor bench`"),
        ('{"format":1,"kind":"dance"}', "holds a 'dance', expected serve, sweep, startup, step cost"),
        ('{"format":99,"kind":"serve"}', "has format 99, expected at most 1"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RecordError, match=message) as caught:
        load_record(tmp_path / "x.json")
    assert "\n" not in str(caught.value)


def test_a_failed_write_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_record(RESULT, tmp_path / "r.json")

    def full(self: Path, target: Path) -> Path:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        save_record(msgspec.structs.replace(RESULT, name="other"), tmp_path / "r.json")
    assert load_result(tmp_path / "r.json").name == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_what_is_no_plain_file_is_written_to_and_stays(tmp_path: Path) -> None:
    """As root, a file that is made beside it could take the place of a device."""
    os.mkfifo(pipe := tmp_path / "pipe")
    with os.fdopen(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0) as reader:
        save_record(STARTUP, pipe)
        assert reader.read(1 << 16)
    assert pipe.is_fifo()


def test_the_csv_has_a_row_a_request_with_absolute_times(tmp_path: Path) -> None:
    save_csv(RESULT, tmp_path / "r.csv")
    with open(tmp_path / "r.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert tuple(first) == record.CSV_COLUMNS
    assert first["started_at"] == "2026-11-21T10:00:00.250000+00:00"
    assert (first["ttft_ms"], first["tpot_ms"], first["itl_mean_ms"], first["itl_max_ms"]) == (
        *("100.000", "100.000"),
        *("100.000", "200.000"),
    )
    assert (first["stage"], first["finish_reason"], first["error"]) == ("rate=1", "length", "")
    assert second["started_at"] == "2026-11-21T10:00:00.750000+00:00"
    assert second["scheduled_at"] == "2026-11-21T10:00:00.500000+00:00"
    assert (second["ttft_ms"], second["tpot_ms"], second["error"]) == ("", "", "timeout: silent, for 3 s")


def test_an_error_s_kind_is_what_stands_before_the_colon() -> None:
    assert REQUESTS[0].error_kind == "timeout"
    assert REQUESTS[1].error_kind is None
