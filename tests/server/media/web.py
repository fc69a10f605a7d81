"""A web server of raw bytes on loopback, and a fetcher to which exactly its address is open."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from stentor.server.config.media import MediaConfig
from stentor.server.media.fetching.fetcher import Fetcher

OPENED = (ip_network("127.0.0.1/32"),)
PARAM = "messages[0].content[1].image_url.url"

Handler = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Web:
    port: int = 0
    heads: list[str] = field(default_factory=list)
    """Of every request that came."""
    names: list[str | None] = field(default_factory=list)
    """Servers that clients asked for in TLS."""
    open: int = 0
    """Connections."""

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@asynccontextmanager
async def serving(
    handler: Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Web]:
    """``handler`` gets the path and writes the whole answer; the connection is then closed."""
    web = Web()
    handling: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handling.add(task)
        web.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            web.heads.append(head)
            await handler(head.split(" ")[1], writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            web.open -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            handling.discard(task)

    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: web.names.append(name)
    server = await asyncio.start_server(connected, host, 0, ssl=tls)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
        for _ in range(3):
            await asyncio.sleep(0)  # what has been accepted begins
        for task in handling:
            task.cancel()
        await asyncio.gather(*handling, return_exceptions=True)


def answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def says(data: bytes) -> Handler:
    async def handler(_path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return handler


def names(table: dict[str, Sequence[str]]) -> Any:
    """A resolver that knows these names alone."""

    async def resolve(host: str, _port: int) -> Sequence[str]:
        if host not in table:
            raise OSError("no such name")
        return table[host]

    return resolve


def fetcher(web: Web | None = None, **fields: Any) -> Fetcher:
    """``resolve``, ``opened`` and ``tls`` are the fetcher's own, all else is configuration."""
    own = {name: fields.pop(name) for name in ("resolve", "opened", "tls") if name in fields}
    ports = () if web is None else (web.port,)
    values = {"allow_http": True, "ports": ports, "timeout": 5.0, **fields}
    return Fetcher(MediaConfig(**values), **{"opened": OPENED, **own})
