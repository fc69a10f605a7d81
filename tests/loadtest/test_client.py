"""The client of one stream, against servers of every making that answer in pieces of any size."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from stentor.loadtest import client
from stentor.loadtest.client import Answer, StreamError, complete

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
USAGE = b'"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7}'
ENDINGS = {
    "one that closes with usage and [DONE]": [b'{"choices":[],' + USAGE + b"}", b"[DONE]"],
    "one that closes with an empty chunk": [b'{"choices":[{"text":"","finish_reason":"length"}],' + USAGE + b"}"],
}


def _body(ending: list[bytes], text: bytes = b"a") -> list[bytes]:
    frames = [b'{"choices":[{"index":0,"text":"%s"}]}' % text for _ in range(3)]
    return [b"data: " + frame + b"\n\n" for frame in [*frames, *ending]]


def _chunked(frames: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames) + b"0\r\n\r\n"


@asynccontextmanager
async def _server(pieces: list[bytes], seen: list[bytes], pause: float) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        seen.append(await reader.readexactly(length))
        with suppress(ConnectionError):  # a client that has had enough
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            if seen:
                await ended.wait()


async def _ask(pieces: list[bytes], arrivals: list[float] | None = None, pause: float = 0.0) -> Answer:
    seen: list[bytes] = []
    async with _server(pieces, seen, pause) as port:
        answer = await complete(port, {"prompt": [1, 2]}, arrivals=arrivals)
    assert seen == [b'{"prompt":[1,2]}'], "as it was given"
    return answer


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 16])
@pytest.mark.parametrize("chunked", [True, False])
async def test_output_is_counted_by_usage_and_chunks_by_what_they_carry(
    ending: list[bytes], piece: int, chunked: bool
) -> None:
    frames = _body(ending)
    if chunked:
        received = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + _chunked(frames)
    else:
        received = HEAD + b"\r\n" + b"".join(frames)
    looked: list[float] = []
    answer = await _ask([received[start : start + piece] for start in range(0, len(received), piece)], looked)
    assert len(answer.arrivals) == 3
    assert answer.arrivals == looked
    assert (answer.prompt_tokens, answer.tokens) == (4, 3)
    assert 0 < answer.ttft <= answer.ended - answer.began


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_chunk_is_timed_by_the_read_that_completed_it(chunked: bool) -> None:
    frames = _body(ENDINGS["one that closes with usage and [DONE]"])
    head = HEAD + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n")
    wire = [b"%x\r\n%s\r\n" % (len(frame), frame) if chunked else frame for frame in frames]
    end = b"0\r\n\r\n" if chunked else b""
    answer = await _ask([head + wire[0][:9], wire[0][9:] + wire[1], wire[2], b"".join(wire[3:]) + end], pause=0.05)
    first, second, third = answer.arrivals
    assert first == second < third == answer.ended
    assert answer.gaps == [third - first]
    assert answer.ttft >= 0.05, "the beginning of a chunk is no output"


async def test_text_that_looks_like_a_frame_is_no_frame() -> None:
    frames = _body(ENDINGS["one that closes with an empty chunk"], text=b"data: [DONE]\\ndata: ")
    assert len((await _ask([HEAD + b"\r\n" + b"".join(frames)])).arrivals) == 3


async def test_a_token_that_completes_no_character_is_output() -> None:
    frames = _body(ENDINGS["one that closes with an empty chunk"], text=b"")
    assert len((await _ask([HEAD + b"\r\n" + b"".join(frames)])).arrivals) == 3


@pytest.mark.parametrize(
    ("received", "message"),
    [
        (b"", "closed before an answer came"),
        (b"HTTP/1.1 200", "closed before an answer came"),
        (b"HTTP/1.1 400 Bad\r\n\r\n" + b'{"error": "no such\\nfield"}', "http 400: no such field"),
        (HEAD + b"\r\n", "ended before"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + _chunked([]), "ended before"),
        (HEAD + b"\r\n" + _body([])[0], "without usage"),
        (HEAD + b"\r\n" + b'data: {"choices":[],' + USAGE + b"}\n\ndata: [DONE]\n\n", "without output"),
        (HEAD + b"\r\n" + b'data: {"error":{"message":"out of slots"}}\n\n', "stream: out of slots"),
        (HEAD + b"\r\n" + b"data: what\n\n", "an event that is not the API's"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "no HTTP answer"),
    ],
)
async def test_anything_but_a_complete_stream_is_an_error_of_one_line(received: bytes, message: str) -> None:
    with pytest.raises(StreamError, match=message) as caught:
        await _ask([received])
    assert "\n" not in str(caught.value)


async def test_a_server_that_is_not_there_and_one_that_is_silent_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENT_SECONDS", 0.1)
    seen: list[bytes] = []
    async with _server([], seen, 0.0) as port:
        pass
    with pytest.raises(StreamError, match="connection: "):
        await complete(port, {})
    with pytest.raises(StreamError, match="timeout: silent"):
        await _ask([HEAD, b""], pause=0.3)
