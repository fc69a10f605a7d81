"""A server that answers with made-up streams at next to no cost: what remains is the client's.

    python -P -m stentor.loadtest.serving.firehose [CHUNKS_A_SECOND]

Prints its port, and ends when its stdin does. Each event is an HTTP chunk of its own, as uvicorn sends them. Without
a rate, streams come in large writes as fast as they are taken; with one, each stream gets one chunk a write, all
streams in one burst after the other, as an engine's steps come.
"""

import asyncio
import re
import sys
from contextlib import suppress
from typing import Final

import uvloop

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nserver: firehose\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
MODELS: Final = b'{"object":"list","data":[{"id":"self-test","object":"model","created":0,"owned_by":"nobody"}]}'
CHUNK: Final = {
    "/v1/completions": b'{"id":"cmpl-4c1f7e0a9b2d4e68","object":"text_completion","created":1760000000,'
    b'"model":"self-test","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}',
    "/v1/chat/completions": b'{"id":"chatcmpl-4c1f7e0a9b2d4e68","object":"chat.completion.chunk","created":1760000000,'
    b'"model":"self-test","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}',
}
_BLOCK: Final = 64
"""Events of one write, where nothing slows us down."""
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_MAX_TOKENS = re.compile(rb'"max_tokens": *(\d+)')


def frame(data: bytes) -> bytes:
    """One event as one HTTP chunk."""
    event = b"data: " + data + b"\n\n"
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


class Firehose:
    """Answers connections. ``rate`` is in chunks a second, of all streams together."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._waiting: list[asyncio.Future[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):  # the client has gone
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                path, asked = head.split(b" ", 2)[1].decode(), _MAX_TOKENS.search(body)
                if path in CHUNK and asked is not None:
                    await self._stream(writer, frame(CHUNK[path]), int(asked[1]))
                else:
                    status, body = (b"200 OK", MODELS) if path == "/v1/models" else (b"404 Not Found", b"{}")
                    writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))

    async def _stream(self, writer: asyncio.StreamWriter, chunk: bytes, count: int) -> None:
        writer.write(HEAD)
        block = _BLOCK if self._rate is None else 1
        for sent in range(0, count, block):
            if self._rate is None:
                await writer.drain()
            else:
                self._waiting.append(turn := asyncio.get_running_loop().create_future())
                await turn
            writer.write(chunk * min(block, count - sent))
        usage = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}' % count
        writer.write(frame(usage) + frame(b"[DONE]") + b"0\r\n\r\n")

    async def pace(self, rate: float) -> None:
        """Lets every stream that waits send one chunk, again and again."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            ready, self._waiting = self._waiting, []
            for turn in ready:
                turn.set_result(None)
            due = max(due, loop.time() - 0.1) + max(len(ready), 1) / rate
            await asyncio.sleep(max(0.0, due - loop.time()))


async def _serve(rate: float | None) -> None:
    firehose = Firehose(rate)
    server = await asyncio.start_server(firehose.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    pacing = asyncio.create_task(firehose.pace(rate)) if rate is not None else None
    await asyncio.to_thread(sys.stdin.read)
    if pacing is not None:
        pacing.cancel()
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1]) if len(sys.argv) > 1 else None))
