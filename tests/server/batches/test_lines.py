"""Lines of a batch: what is read, what is refused, and where a broken run goes on."""

import io
import json
from pathlib import Path

import pytest

from stentor.server.batches.lines import (
    BadLine,
    BatchRequest,
    InProcessResponse,
    already_answered,
    answered,
    failed,
    lines_of,
    read_request,
)

GOOD = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}'


def test_a_request_is_read_with_its_body() -> None:
    assert read_request(GOOD, 1) == BatchRequest("a", "/v1/completions", {"prompt": "x"})


@pytest.mark.parametrize("path", ["/score", "/rerank", "/v2/rerank", "/classify", "/pooling", "/v2/embed"])
def test_scores_and_vectors_may_be_asked_for_by_paths_without_v1(path: str) -> None:
    line = json.dumps({"custom_id": "a", "method": "POST", "url": path, "body": {}}).encode()
    assert read_request(line, 1).url == path


@pytest.mark.parametrize(
    ("line", "said", "named"),
    [
        (b"no json", "line 7: expected an object", None),
        (b"[]", "line 7: expected an object", None),
        (b'{"custom_id":"a"}', "missing required field `url`", "a"),
        (b'{"custom_id":3,"url":"/v1/x","body":{}}', "`$.custom_id`", None),
        (GOOD.replace(b"POST", b"GET"), "only POST can be batched", "a"),
        (GOOD.replace(b"/v1/", b"/ops/"), "expected a path below /v1/", "a"),
        (GOOD.replace(b'"prompt"', b'"stream":true,"prompt"'), "body.stream is set", "a"),
        (b'{"custom_id":"\xff"}', "line 7", None),
        (b'{"custom_id":"a","url":"/v1/x","body":' + b"[" * 100_000, "line 7", None),
    ],
)
def test_a_line_that_is_no_request_is_told_with_its_number(line: bytes, said: str, named: str | None) -> None:
    with pytest.raises(BadLine) as caught:
        read_request(line, 7)
    assert said in str(caught.value)
    assert caught.value.custom_id == named


def test_blank_lines_are_counted_and_passed_over() -> None:
    assert list(lines_of(io.BytesIO(b"a\n\n  \nb"))) == [(1, b"a\n"), (4, b"b")]


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.server.batches.lines.MAX_LINE_BYTES", 100)
    with pytest.raises(BadLine, match="line 1 is longer"):
        list(lines_of(io.BytesIO(b"x" * 101)))


def test_what_an_earlier_run_answered_is_found_and_its_torn_last_line_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    request = read_request(GOOD, 1)
    whole = answered(request, InProcessResponse(200, b'{"id":"x"}', "r")) + failed("b", "no_answer", "gone")
    path.write_bytes(whole + answered(BatchRequest("c", "/v1/x", {}), InProcessResponse(200, b"{}", "r"))[:-9])
    assert already_answered(path).names == {"a"}, "b has no answer and c was not written whole"
    assert path.read_bytes() == whole
    for status in (429, 500, 503, 404):
        with path.open("ab") as file:
            file.write(answered(BatchRequest(f"s{status}", "/v1/x", {}), InProcessResponse(status, b"{}", "r")))
    assert already_answered(path).names == {"a", "s404"}, "what failed for the server's sake is asked again"
    path.write_bytes(whole)
    assert json.loads(whole.splitlines()[0])["response"] == {"status_code": 200, "request_id": "r", "body": {"id": "x"}}


def test_a_file_of_something_else_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    with pytest.raises(BadLine, match="name another file"):
        already_answered(path)
    assert path.read_text() == "dear diary\n"
