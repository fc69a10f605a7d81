"""The lines of a batch: requests in, answers out, in the format of OpenAI's batches."""

import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from stentor.protocols.common.decoding import decode_json
from stentor.protocols.common.encoding import encode

MAX_LINE_BYTES: Final = 64 << 20
MAX_ANSWER_BYTES: Final = MAX_LINE_BYTES - (64 << 10)
"""Leaves room for the line's other fields."""
INVALID: Final = "invalid_request"
"""Code for a line that is no valid request."""


class InProcessResponse(NamedTuple):
    """The response to one request, made without a connection."""

    status: int
    body: bytes
    request_id: str


class BatchRequest(msgspec.Struct, frozen=True):
    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


class BatchResponse(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct, frozen=True):
    code: str
    message: str


class BatchResult(msgspec.Struct, frozen=True):
    id: str
    custom_id: str | None
    response: BatchResponse | None
    error: BatchError | None


class BadLine(Exception):
    """A line is no request that could be made."""

    def __init__(self, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.custom_id = custom_id


_BESIDE_V1: Final = ("/score", "/rerank", "/v2/rerank", "/v2/embed", "/classify", "/pooling", "/generative_scoring")
"""Paths that vLLM's files of requests have too."""
_requests: Final = msgspec.json.Decoder(BatchRequest)


class _Named(msgspec.Struct):
    custom_id: str | None = None


class _Answered(msgspec.Struct):
    status_code: int


class _Done(msgspec.Struct):
    custom_id: str | None = None
    response: _Answered | None = None
    error: BatchError | None = None


_named: Final = msgspec.json.Decoder(_Named)
_done: Final = msgspec.json.Decoder(_Done)


def read_request(line: bytes, number: int) -> BatchRequest:
    """Line ``number``, counted from 1. Raises :class:`BadLine`."""
    where = f"line {number}"
    try:
        request = decode_json(_requests, line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"{where}: expected an object with custom_id, method, url and body: {error}", _id(line)) from None
    if request.method != "POST":
        raise BadLine(f"{where}: method is {request.method[:20]!r}; only POST can be batched", request.custom_id)
    if not (request.url.startswith("/v1/") or request.url in _BESIDE_V1):
        expected = f"a path below /v1/, or {', '.join(_BESIDE_V1)}"
        raise BadLine(f"{where}: url is {request.url[:80]!r}; expected {expected}", request.custom_id)
    if request.body.get("stream"):
        raise BadLine(f"{where}: body.stream is set; the answers of a batch are whole", request.custom_id)
    return request


def final(status: int) -> bool:
    """Whether the response would be the same again: it is no fault or overload of the server."""
    return status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS


def answered(request: BatchRequest, answer: InProcessResponse) -> bytes:
    """The line that an answer becomes; one that is too large for a line has failed."""
    if len(answer.body) > MAX_ANSWER_BYTES:
        message = f"The answer has {len(answer.body)} bytes; in a batch it may have {MAX_ANSWER_BYTES}."
        return failed(request.custom_id, "response_too_large", message)
    body = msgspec.Raw(answer.body or b"null")
    return _line(BatchResult(_new_id(), request.custom_id, BatchResponse(answer.status, answer.request_id, body), None))


def failed(custom_id: str | None, code: str, message: str) -> bytes:
    """The line of a request that got no answer."""
    return _line(BatchResult(_new_id(), custom_id, None, BatchError(code, message)))


def lines_of(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of every line that is not blank. Raises :class:`BadLine` for one that has no end."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise BadLine(f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB")
        if line.strip():
            yield number, line


class PreviousRun(NamedTuple):
    """Results of an earlier run."""

    names: set[str]
    """Requests with answers."""
    refused: set[str]
    """Errors for lines that are no valid requests."""


def already_answered(path: Path) -> PreviousRun:
    """Truncates an incomplete last line.

    Requests that failed because of the server are repeated: of two lines for one name the later one counts.
    """
    found = PreviousRun(set(), set())
    if not path.exists():
        return found
    with path.open("r+b") as file:
        whole = 0
        for _, line in lines_of(file):
            if not line.endswith(b"\n"):
                break
            whole = file.tell()
            try:
                done = _done.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise BadLine(f"{path} holds lines that are no answers of a batch; name another file") from None
            if done.custom_id is not None and done.response is not None and final(done.response.status_code):
                found.names.add(done.custom_id)
            elif done.error is not None and done.error.code == INVALID:
                found.refused.add(done.error.message)
        file.truncate(max(whole, 0))
    return found


def _id(line: bytes) -> str | None:
    try:
        return _named.decode(line).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"


def _line(result: BatchResult) -> bytes:
    return encode(result) + b"\n"
