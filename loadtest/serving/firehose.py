"""A server that answers with made-up streams at next to no cost: what remains is the client's.

    python -P -m stentor.loadtest.serving.firehose [CHUNKS_A_SECOND]

Prints its port, and ends when its stdin does. Each event is an HTTP chunk of its own, as uvicorn sends them. Without
a rate, streams come in large writes as fast as they are taken; with one, each stream gets one chunk a write, all
streams in one burst after the other, as an engine's steps come.
"""

import asyncio
import os
import re
import sys
from typing import Final, cast

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


class Firehose(asyncio.Protocol):
    """One connection. ``ready`` holds the streams that a paced burst serves."""

    def __init__(self, ready: "set[Firehose] | None") -> None:
        self._ready = ready
        self._received = b""
        self._path = ""
        self._left = 0
        self._tokens = 0
        self._open = True
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._left = 0
        if self._ready is not None:
            self._ready.discard(self)

    def pause_writing(self) -> None:
        self._open = False

    def resume_writing(self) -> None:
        self._open = True
        self._pour()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not blank or (length is not None and len(body) < int(length[1])):
            return
        self._received = b""
        self._path = head.split(b" ", 2)[1].decode()
        asked = _MAX_TOKENS.search(body)
        if self._path == "/v1/models":
            self._answer(b"200 OK", MODELS)
        elif self._path not in CHUNK or asked is None:
            self._answer(b"404 Not Found", b"{}")
        else:
            self._left = self._tokens = int(asked[1])
            self.transport.write(HEAD)
            if self._ready is None:
                self._pour()
            else:
                self._ready.add(self)

    def drip(self) -> None:
        """One chunk."""
        self.transport.write(frame(CHUNK[self._path]))
        self._left -= 1
        if not self._left:
            if self._ready is not None:
                self._ready.discard(self)
            self._end()

    def _pour(self) -> None:
        if self._ready is not None:
            return
        while self._open and self._left:
            events = min(_BLOCK, self._left)
            self._left -= events
            self.transport.write(frame(CHUNK[self._path]) * events)
            if not self._left:
                self._end()

    def _end(self) -> None:
        usage = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}' % self._tokens
        self.transport.write(frame(usage) + frame(b"[DONE]") + b"0\r\n\r\n")

    def _answer(self, status: bytes, body: bytes) -> None:
        self.transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
        )


async def _drip_all(ready: set[Firehose], chunks_a_second: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        streams = list(ready)
        for stream in streams:
            stream.drip()
        due = max(due, loop.time() - 0.1) + max(len(streams), 1) / chunks_a_second
        await asyncio.sleep(max(0.0, due - loop.time()))


async def _serve(chunks_a_second: float | None) -> None:
    loop = asyncio.get_running_loop()
    ready: set[Firehose] | None = None if chunks_a_second is None else set()
    server = await loop.create_server(lambda: Firehose(ready), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    paced = asyncio.create_task(_drip_all(ready, chunks_a_second)) if ready is not None and chunks_a_second else None
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: None if os.read(sys.stdin.fileno(), 1) else ended.set())
    await ended.wait()
    if paced is not None:
        paced.cancel()
    server.close()


def main() -> int:
    uvloop.run(_serve(float(sys.argv[1]) if len(sys.argv) > 1 else None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
