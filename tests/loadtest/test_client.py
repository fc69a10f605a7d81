"""The measuring client against a server that answers from a script, in pieces of any size."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stentor.loadtest.client import RequestFailed, Stream, stream_completion

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(frame: bytes) -> bytes:
    data = b"data: " + frame + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


TOKENS = [_chunk(b'{"choices":[{"index":0,"text":"data: \\ndata: %d"}]}' % number) for number in range(5)]
USAGE = _chunk(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}')
DONE = _chunk(b"[DONE]") + b"0\r\n\r\n"


@asynccontextmanager
async def _server(answer: bytes, piece: int) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(answer), piece):
            writer.write(answer[start : start + piece])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _ask(answer: bytes, piece: int = 1 << 20) -> Stream:
    async with _server(answer, piece) as port:
        return await stream_completion("127.0.0.1", port, {"prompt": "Hi"})


@pytest.mark.parametrize("piece", [1, 5, 7, 64, 1 << 20])
async def test_frames_are_counted_however_they_are_cut_and_whatever_they_say(piece: int) -> None:
    stream = await _ask(HEAD + b"".join(TOKENS) + USAGE + DONE, piece)
    assert sum(frames for _, frames in stream.arrivals) == len(TOKENS) + 2
    assert (stream.prompt_tokens, stream.tokens) == (3, 5)
    assert 0 < stream.ttft <= stream.ended - stream.began


async def test_another_status_is_an_error_that_shows_the_answer() -> None:
    with pytest.raises(RequestFailed, match=r"status 404: .*no such model"):
        await _ask(b"HTTP/1.1 404 Not Found\r\n\r\nno such model")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (HEAD + TOKENS[0], "ended before"),
        (HEAD + TOKENS[0] + DONE, "no usage"),
        (HEAD, "ended before"),
        (b"", "no HTTP answer"),
        (b"HTTP/1.1 200", "no HTTP answer"),
    ],
)
async def test_a_stream_that_is_cut_short_is_an_error(answer: bytes, why: str) -> None:
    with pytest.raises(RequestFailed, match=why):
        await _ask(answer)
