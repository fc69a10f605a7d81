"""Lines of logs: one for each record whatever is in it, with the request that they are about."""

import fcntl
import io
import json
import logging
import os
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.processes.logs import escaped, set_up_logging, trace_without_messages
from stentor.protocols.ipc.config import LogFormat
from stentor.tests.examples import examples

PROMPT = "the secret of the prompt"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Logs one record in a style, and gives what was written."""
    root, ours, uvicorn = logging.getLogger(), logging.getLogger("stentor"), logging.getLogger("uvicorn")
    before = root.handlers[:], root.level, ours.level, uvicorn.level
    root.handlers = []

    def log(style: LogFormat, call: Callable[[logging.Logger], None], request: str = "") -> str:
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written)
        set_up_logging("info", style, "here", lambda: request)
        call(logging.getLogger("stentor.some.where"))
        return written.getvalue()

    yield log
    root.handlers, root.level = before[0], before[1]
    ours.setLevel(before[2])
    uvicorn.setLevel(before[3])


Log = Callable[..., str]


def test_a_line_of_json_says_what_when_who_and_for_which_request(lines: Log) -> None:
    line = lines("json", lambda logger: logger.warning("took %d s", 3), "abc")
    entry = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("time"))
    assert entry == {
        "level": "warning",
        "process": "here",
        "pid": os.getpid(),
        "logger": "stentor.some.where",
        "message": "took 3 s",
        "request_id": "abc",
    }


def test_a_record_may_name_its_own_request_and_bring_fields(lines: Log) -> None:
    extra = {"request_id": "mine", "fields": {"status": 200, "path": "/a"}}
    entry = json.loads(lines("json", lambda logger: logger.info("done", extra=extra), "another"))
    assert (entry["request_id"], entry["status"], entry["path"]) == ("mine", 200, "/a")
    assert lines("text", lambda logger: logger.info("done", extra=extra)).endswith(" here: done (request mine)\n")


def test_without_a_request_nothing_is_said_of_one(lines: Log) -> None:
    assert "request" not in json.loads(lines("json", lambda logger: logger.warning("x")))
    assert lines("text", lambda logger: logger.warning("x")).endswith(" WARNING here: x\n")


@settings(deadline=None, max_examples=examples(200))
@given(st.text(st.characters() | st.sampled_from("\n\r\x1b\x00\x85\u2028\u202e\ud800"), max_size=40))
def test_no_text_makes_a_second_line_or_moves_the_cursor(text: str) -> None:
    shown = escaped(text)
    assert shown.isprintable() or all(character.isprintable() or ord(character) > 0x9F for character in shown)
    assert len(shown.splitlines()) <= 1
    shown.encode()


@pytest.mark.parametrize("style", ["text", "json"])
def test_what_a_client_sent_cannot_forge_a_line(lines: Log, style: LogFormat) -> None:
    forged = "a\n12:00:00 ERROR   server: forged\r\x1b[2K\u2028\u202eevil\ud800"

    def fail(logger: logging.Logger) -> None:
        try:
            raise ValueError(forged)
        except ValueError:
            logger.exception("refused %s", forged, extra={"request_id": forged})

    written = lines(style, fail)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800]", written)
    if style == "json":
        entry = json.loads(written)
        assert len(written.splitlines()) == 1
        assert forged.replace("\ud800", "\\ud800") in entry["message"]
        assert entry["exception"].startswith("Traceback")
    else:
        head, *rest = written.rstrip("\n").split("\n")
        assert "refused a\\n12:00:00" in head
        assert rest
        assert all(line.startswith("    ") for line in rest)


def test_a_trace_without_messages_says_where_and_never_what() -> None:
    def inner() -> None:
        raise KeyError(PROMPT)

    def outer() -> None:
        try:
            inner()
        except KeyError as error:
            raise ExceptionGroup(PROMPT, [ValueError(PROMPT), RuntimeError(PROMPT)]) from error

    with pytest.raises(ExceptionGroup) as caught:
        outer()
    shown = trace_without_messages(caught.value)
    assert PROMPT not in shown
    assert "raise KeyError(PROMPT)" in shown, "where it began"
    assert shown.index("builtins.KeyError") < shown.index("which led to:") < shown.index("builtins.ExceptionGroup")
    assert "builtins.ValueError" in shown
    assert "builtins.RuntimeError" in shown


def test_a_trace_that_goes_round_in_circles_ends() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert trace_without_messages(first).count("builtins.ValueError") == 2


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_trace_takes_the_place_of_a_traceback(lines: Log, style: LogFormat) -> None:
    written = lines(style, lambda logger: logger.error("failed", extra={"trace": "one\ntwo"}))
    assert ("\n    one\n    two\n" in written) if style == "text" else json.loads(written)["exception"] == "one\ntwo"


def test_uvicorns_own_lines_stay_out_even_when_all_is_logged() -> None:
    """They quote what clients sent, and errors with their messages."""
    written = _written(
        "logging.getLogger('uvicorn.error').error('quoted'); logging.getLogger('stentor.x').debug('ours')"
    )
    assert written.endswith("DEBUG   p: ours\n")
    assert "quoted" not in written


def test_warnings_of_libraries_are_lines_like_all_others() -> None:
    line = _written("import warnings; warnings.warn('old ways')")
    assert re.fullmatch(r"[\d:]{8} WARNING p: .*UserWarning: old ways.*\n", line), line


def _written(program: str) -> str:
    start = (
        "import logging; from stentor.engine.processes.logs import set_up_logging; set_up_logging('debug', 'text', 'p')"
    )
    command = [sys.executable, "-P", "-c", f"{start}\n{program}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


@pytest.fixture
def small_pipe(monkeypatch: pytest.MonkeyPatch, lines: Log) -> Iterator[BinaryIO]:
    """The reader's end of stderr, which holds two writes."""
    lines("text", lambda _: None)  # its end restores the loggers
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 2 * select.PIPE_BUF)
    with open(read, "rb", buffering=0) as reader, open(write, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        set_up_logging("info", "text", "here")
        yield reader


def test_lines_that_nobody_reads_are_dropped_and_counted(small_pipe: BinaryIO) -> None:
    logger = logging.getLogger("stentor.some.where")
    for number in range(200):
        logger.warning("%d %s", number, "x" * (select.PIPE_BUF * 3 if number == 150 else 90))
    kept = small_pipe.read(1 << 20)
    logger.warning("read again")
    told, last = small_pipe.read(1 << 20).decode().splitlines()
    count = kept.count(b" here: ")
    assert 0 < count < 150
    assert f"{200 - count} log lines were dropped" in told
    assert last.endswith("read again")


def test_a_long_line_whose_reader_stops_within_it_is_cut_and_counted(small_pipe: BinaryIO) -> None:
    logger = logging.getLogger("stentor.some.where")
    logger.warning("x" * select.PIPE_BUF * 3)
    assert len(small_pipe.read(1 << 20)) == 2 * select.PIPE_BUF
    logger.warning("read again")
    told, last = small_pipe.read(1 << 20).decode().removeprefix("\n").splitlines()
    assert "1 log lines were dropped" in told
    assert last.endswith("read again")


def test_no_line_is_written_to_the_file_that_has_the_number_of_a_closed_stream(
    lines: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines("text", lambda _: None)  # its end restores the loggers
    logger = logging.getLogger("stentor.some.where")
    with open(tmp_path / "log", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        set_up_logging("info", "text", "here")
        logger.warning("open")
        number = stream.fileno()
    with open(tmp_path / "other", "w+") as other:
        taken = other.fileno() if other.fileno() == number else os.dup2(other.fileno(), number)
        logger.warning("closed")
        if taken != other.fileno():
            os.close(taken)
    assert (tmp_path / "log").read_text().endswith("open\n")
    assert not (tmp_path / "other").read_text()
