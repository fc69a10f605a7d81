"""One streamed completion from any server, each chunk timed by the read that completed it.

What the socket brings is kept as it came and taken apart after the end, so that the client costs the measured
server as little as it can. Servers differ in what ends a stream (``[DONE]`` or nothing), in where usage stands,
and in whether a chunk may carry several tokens: tokens are counted by the server's usage, times by chunks.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

_READ_BYTES: Final = 1 << 16
_CRLF: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"


class StreamError(Exception):
    """The server answered with something other than a complete stream; the message is one line."""


@dataclass(frozen=True)
class Answer:
    """One complete answer. All times are ``time.perf_counter()``."""

    began: float
    arrivals: list[float]
    """When each chunk that carries output was complete; at least one."""
    prompt_tokens: int
    tokens: int
    """Tokens put out, as the server counts them."""

    @property
    def ttft(self) -> float:
        """Seconds to the first output."""
        return self.arrivals[0] - self.began

    @property
    def ended(self) -> float:
        return self.arrivals[-1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive moments at which output arrived; chunks that came together count as one."""
        moments = sorted(set(self.arrivals))
        return [later - earlier for earlier, later in pairwise(moments)]


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Piece(NamedTuple):
    """A stretch of the body that lies unbroken in what was received."""

    start: int
    """In the body."""
    received: int
    """In all that was received."""
    length: int


_decode = msgspec.json.Decoder(_Chunk).decode


async def complete(host: str, port: int, body: Mapping[str, object], path: str = "/v1/completions") -> Answer:
    """Posts ``body`` and reads to the end of the answer.

    Raises :class:`StreamError` for any status but 200, an error within the stream, a stream without output or
    without usage; OSError where there is no connection.
    """
    payload = msgspec.json.encode(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    reads: list[tuple[float, bytes]] = []
    try:
        writer.write(head.encode() + payload)
        while data := await reader.read(_READ_BYTES):
            reads.append((time.perf_counter(), data))
    finally:
        writer.close()
    return take_apart(began, reads)


def take_apart(began: float, reads: Sequence[tuple[float, bytes]]) -> Answer:
    """The answer that ``reads``, (time, bytes) each, make up. Raises :class:`StreamError`."""
    received = b"".join(data for _, data in reads)
    ends: list[int] = []
    for _, data in reads:
        ends.append((ends[-1] if ends else 0) + len(data))
    body, pieces = _body(received)
    arrivals: list[float] = []
    usage: _Usage | None = None
    for end, data in _events(body):
        if data == b"[DONE]":
            break
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as error:
            raise StreamError(f"the stream holds {_shorten(data)}, expected JSON ({error})") from None
        if chunk.error is not None:
            raise StreamError(f"the stream broke off with an error: {_shorten(msgspec.json.encode(chunk.error))}")
        usage = chunk.usage or usage
        # a server may close with an empty chunk that only says why it ended
        if any(choice.text or choice.finish_reason is None for choice in chunk.choices):
            arrivals.append(reads[bisect_left(ends, _received_at(pieces, end))][0])
    if not arrivals:
        raise StreamError("the stream ended without output")
    if usage is None:
        raise StreamError("the stream ended without usage, so its tokens cannot be counted")
    return Answer(began, arrivals, usage.prompt_tokens, usage.completion_tokens)


def _body(received: bytes) -> tuple[bytes, list[_Piece]]:
    """What follows the head, chunked transfer undone, and where it came from."""
    head, found, _ = received.partition(_HEAD_END)
    start = len(head) + len(_HEAD_END)
    words = head.split(b" ", 2)
    if not found or len(words) < 2:
        raise StreamError("the server closed the connection without an HTTP answer")
    chunked = b"transfer-encoding: chunked" in head.lower()
    body, pieces = _dechunk(received, start) if chunked else (received[start:], [_Piece(0, start, len(received))])
    if words[1] != b"200":
        raise StreamError(f"status {words[1].decode(errors='replace')}: {_shorten(body)}")
    return body, pieces


def _dechunk(received: bytes, position: int) -> tuple[bytes, list[_Piece]]:
    parts: list[bytes] = []
    pieces: list[_Piece] = []
    length = 0
    while (line_end := received.find(_CRLF, position)) >= 0:
        try:
            size = int(received[position:line_end].partition(b";")[0], 16)
        except ValueError:
            raise StreamError("the server's chunked transfer is broken") from None
        if size == 0:
            break
        begin = line_end + len(_CRLF)
        pieces.append(_Piece(length, begin, size))
        parts.append(received[begin : begin + size])
        length += size
        position = begin + size + len(_CRLF)
    return b"".join(parts), pieces


def _events(body: bytes) -> list[tuple[int, bytes]]:
    """(offset of its last byte, data) of every server-sent event that has data."""
    events = []
    position = 0
    while (end := body.find(b"\n", position)) >= 0:
        line = body[position:end].rstrip(b"\r")
        if line.startswith(b"data:"):
            events.append((end, line[5:].strip()))
        position = end + 1
    return events


def _received_at(pieces: list[_Piece], offset: int) -> int:
    """How much had to be received for the body's byte at ``offset`` to be there."""
    piece = pieces[bisect_left(pieces, offset + 1, key=lambda one: one.start) - 1]
    return piece.received + offset - piece.start + 1


def _shorten(raw: bytes) -> str:
    return " ".join(raw[:300].decode(errors="replace").split())
