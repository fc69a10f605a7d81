"""A streaming client thin enough not to be what is measured: one socket a request, frames counted by bytes."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

_READ_BYTES = 1 << 16
_HEADER_LIMIT = 1 << 16
_FRAME = b"\ndata: "


class RequestFailed(Exception):
    """The server answered with something other than a complete stream."""


@dataclass
class Stream:
    """One streamed completion: when it began, when each read brought frames, and how many tokens came."""

    began: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(``time.perf_counter()``, frames that began in the read)"""
    prompt_tokens: int = 0
    tokens: int = 0

    @property
    def ttft(self) -> float:
        """Seconds to the first frame."""
        return self.arrivals[0][0] - self.began

    @property
    def ended(self) -> float:
        return self.arrivals[-1][0]


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Chunk(msgspec.Struct):
    usage: _Usage | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


async def stream_completion(
    host: str, port: int, body: Mapping[str, object], path: str = "/v1/completions", stream: Stream | None = None
) -> Stream:
    """Posts ``body`` with ``stream`` and usage switched on and reads to the end.

    ``stream`` is filled as it goes, where whoever asks wants to look on.

    Raises :class:`RequestFailed` for any status but 200, for a stream that ends before ``[DONE]``, and OSError where
    there is no connection.
    """
    payload = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
    stream = Stream(time.perf_counter()) if stream is None else stream
    reader, writer = await asyncio.open_connection(host, port, limit=_HEADER_LIMIT)
    try:
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode()
            + payload
        )
        try:
            status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError) as error:
            raise RequestFailed("the server sent no HTTP answer") from error
        if status != b"200":
            raise RequestFailed(
                f"status {status.decode()}: {(await reader.read(_READ_BYTES)).decode(errors='replace')}"
            )
        tail = b""
        while data := await reader.read(_READ_BYTES):
            # a line break within a frame is escaped, so this is only where one begins
            if frames := (tail[1 - len(_FRAME) :] + data).count(_FRAME):
                stream.arrivals.append((time.perf_counter(), frames))
            tail = (tail + data)[-_READ_BYTES:]
    finally:
        writer.close()
    if b"data: [DONE]" not in tail:
        raise RequestFailed("the stream ended before [DONE]")
    usage_at = tail.rfind(b"data: {", 0, tail.rfind(b"data: [DONE]"))
    usage = _decode_chunk(tail[usage_at + 6 : tail.index(b"\n", usage_at)]).usage
    if usage is None:
        raise RequestFailed("the last chunk carries no usage")
    stream.prompt_tokens, stream.tokens = usage.prompt_tokens, usage.completion_tokens
    return stream
