"""A real HTTP server in the test's own loop that answers each request as a script says."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nserver: script/1\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
METRICS = b"# TYPE stentor:requests counter\nstentor:requests_total %d\nbroken NaN\n"


def frame(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data: bytes | dict[str, Any]) -> bytes:
    return frame(b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n")


DONE = event(b"[DONE]")


def token(text: str = " word", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def usage(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int


Write = Callable[[bytes], Awaitable[None]]
Answer = Callable[[Asked, Write], Awaitable[bool | None]]
"""Writes an answer; returning True closes the connection."""


@dataclass
class Script:
    """The running server."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    peak: int = 0

    @property
    def prompts(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "POST"]


async def tokens(asked: Asked, write: Write) -> None:
    """Answers with the number of words that was asked for and usage, for both APIs."""
    count = asked.body["max_tokens"]
    make = token if asked.path.endswith("/v1/completions") else lambda text, finish=None: delta(finish, content=text)
    words = [make(f" {number}", "length" if number + 1 == count else None) for number in range(count)]
    await write(HEAD)
    for word in words:
        await write(word)
    await write(usage(7, count) + DONE + END)


@asynccontextmanager
async def serving(answer: Answer = tokens, tls: ssl.SSLContext | None = None) -> AsyncIterator[Script]:
    """Answers /v1/models and /metrics by itself, and POST by ``answer``."""
    script = Script()
    handlers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script.connections += 1
        number = script.connections

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not await _answer_one(reader, write, number):
                    pass
        finally:
            handlers.discard(task)
            writer.transport.abort() if task.cancelling() else writer.close()

    async def _answer_one(reader: asyncio.StreamReader, write: Write, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, json.loads(body) if body else None, number)
        script.asked.append(asked)
        if method == "GET":
            await write(_plain(path, len(script.prompts)))
            return False
        script.at_once += 1
        script.peak = max(script.peak, script.at_once)
        try:
            return bool(await answer(asked, write))
        finally:
            script.at_once -= 1

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        script.port = server.sockets[0].getsockname()[1]
        yield script
    finally:
        server.close()
        for task in tuple(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next round


def _plain(path: str, prompts: int) -> bytes:
    bodies = {"/v1/models": b'{"data":[{"id":"scripted"},{"id":"other"}]}', "/metrics": METRICS % prompts}
    body = bodies.get(path)
    status = b"200 OK" if body is not None else b"404 Not Found"
    body = body if body is not None else b'{"error":{"message":"nothing here"}}'
    return b"HTTP/1.1 %s\r\nserver: script/1\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
