"""Streams of every server's making, cut anywhere: what is counted, and what each chunk's time is."""

import asyncio

import pytest

from stentor.loadtest.peers.stream import Answer, StreamError, complete, take_apart

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


def _cut(received: bytes, piece: int) -> list[tuple[float, bytes]]:
    """A read every second."""
    parts = [received[start : start + piece] for start in range(0, len(received), piece)]
    return [(1.0 + number, part) for number, part in enumerate(parts)]


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 16])
@pytest.mark.parametrize("chunked", [True, False])
def test_output_is_counted_by_usage_and_chunks_by_what_they_carry(
    ending: list[bytes], piece: int, chunked: bool
) -> None:
    frames = _body(ending)
    if chunked:
        received = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + _chunked(frames)
    else:
        received = HEAD + b"\r\n" + b"".join(frames)
    answer = take_apart(0.5, _cut(received, piece))
    assert len(answer.arrivals) == 3
    assert (answer.prompt_tokens, answer.tokens) == (4, 3)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_chunk_is_timed_by_the_read_that_completed_it(chunked: bool) -> None:
    frames = _body(ENDINGS["one that closes with usage and [DONE]"])
    head = HEAD + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n")
    wire = [b"%x\r\n%s\r\n" % (len(frame), frame) if chunked else frame for frame in frames]
    reads = [(1.0, head + wire[0][:9]), (2.0, wire[0][9:] + wire[1]), (4.0, wire[2]), (8.0, b"".join(wire[3:]))]
    answer = take_apart(0.5, reads)
    assert answer.arrivals == [2.0, 2.0, 4.0]
    assert answer.ttft == 1.5
    assert answer.gaps == [2.0]
    assert answer.ended == 4.0


def test_text_that_looks_like_a_frame_is_no_frame() -> None:
    frames = _body(ENDINGS["one that closes with an empty chunk"], text=b"data: [DONE]\\ndata: ")
    assert len(take_apart(0, [(1.0, HEAD + b"\r\n" + b"".join(frames))]).arrivals) == 3


@pytest.mark.parametrize(
    ("received", "message"),
    [
        (b"", "without an HTTP answer"),
        (b"HTTP/1.1 400 Bad\r\n\r\n" + b'{"error": "no such\nfield"}', 'status 400: {"error": "no such field"}'),
        (HEAD + b"\r\n" + _body([])[0], "without usage"),
        (HEAD + b"\r\n" + b'data: {"choices":[],' + USAGE + b"}\n\n", "without output"),
        (HEAD + b"\r\n" + b'data: {"error":{"message":"out of slots"}}\n\n', "broke off .*out of slots"),
        (HEAD + b"\r\n" + b"data: what\n\n", "holds what, expected JSON"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "chunked transfer is broken"),
    ],
)
def test_anything_but_a_complete_stream_is_an_error_of_one_line(received: bytes, message: str) -> None:
    with pytest.raises(StreamError, match=message) as caught:
        take_apart(0, [(1.0, received)] if received else [])
    assert "\n" not in str(caught.value)


def test_a_request_reaches_the_server_and_its_answer_comes_back() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        seen.append(await reader.readexactly(length))
        writer.write(HEAD + b"\r\n" + b"".join(_body(ENDINGS["one that closes with usage and [DONE]"])))
        writer.close()

    async def ask() -> Answer:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await complete("127.0.0.1", server.sockets[0].getsockname()[1], {"prompt": [1, 2]})

    answer = asyncio.run(ask())
    assert seen == [b'{"prompt":[1,2]}']
    assert answer.tokens == 3
    assert 0 < answer.ttft < 10
