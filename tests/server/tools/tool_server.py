"""A real server of tools, written with the same package; a program that prints its port.

``/mcp`` speaks Streamable HTTP, ``/sse`` what came before; ``/seen`` tells what it was asked; ``/away``, ``/huge`` and
``/packed`` answer as no server should.
"""

import gzip
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

READ_ONLY = ToolAnnotations(read_only_hint=True)
seen: list[dict[str, Any]] = []
server = MCPServer("tests", log_level="CRITICAL")


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    seen.append({"tool": "add", "a": a, "b": b})
    return str(a + b)


@server.tool()
def echo(text: str) -> str:
    """Says it again."""
    seen.append({"tool": "echo", "text": text})
    return text


@server.tool()
async def slow(seconds: float) -> str:
    """Takes its time."""
    seen.append({"tool": "slow", "state": "begun"})
    try:
        await anyio.sleep(seconds)
    except BaseException:
        seen.append({"tool": "slow", "state": "cancelled"})
        raise
    seen.append({"tool": "slow", "state": "done"})
    return "at last"


@server.tool()
async def wait() -> str:
    """Longer than anybody does."""
    return await slow(3600)


@server.tool(name="python")
def run(code: str) -> str:
    """Runs Python, or says so."""
    return f"ran {code!r}"


@server.tool()
def fail(why: str) -> str:
    """Does not work."""
    raise ToolError(why)


@server.tool(annotations=READ_ONLY)
def big(chars: int) -> str:
    """Says a great deal."""
    return "x" * chars


@server.tool(annotations=READ_ONLY)
def let_in(context: Context[Any, Any]) -> str:
    """Which token the caller brings."""
    return str((context.headers or {}).get("authorization"))


async def tell_seen(_request: Request) -> Response:
    return JSONResponse(seen)


async def away(_request: Request) -> Response:
    return RedirectResponse("/mcp", status_code=307)


async def huge(_request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(256):
            yield b" " * (1 << 16)

    return StreamingResponse(pieces(), media_type="application/json")


async def packed(_request: Request) -> Response:
    return Response(gzip.compress(b"{}"), media_type="application/json", headers={"content-encoding": "gzip"})


def main() -> None:
    app = server.streamable_http_app()
    app.router.routes += [
        *server.sse_app().routes,
        Route("/seen", tell_seen),
        Route("/away", away, methods=["GET", "POST"]),
        Route("/huge", huge, methods=["POST"]),
        Route("/packed", packed, methods=["POST"]),
    ]
    # whoever started it may end without a word
    threading.Thread(target=lambda: os._exit(not sys.stdin.read()), daemon=True).start()
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
