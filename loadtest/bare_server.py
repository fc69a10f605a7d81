"""A yardstick: the least that a Starlette application on uvicorn and uvloop does to stream chunks.

Every ``--step`` seconds each stream is woken once and sends one constant chunk. It takes ``max_tokens`` and
``chunk_bytes`` from a request's body and ends as chat streams do, so that one client reads both servers.

    python -P -m stentor.loadtest.bare_server serve --port 8001
"""

import argparse
import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .echo_worker import STEP_SECONDS

PATH: Final = "/stream"

_HEAD = b'data: {"choices":[{"text":"'
_TAIL = b'"}]}\n\n'


class _Body(msgspec.Struct):
    max_tokens: int
    chunk_bytes: int


class _Steps:
    """What all streams wait for, as they would for the steps of an engine."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._step = asyncio.Event()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            step, self._step = self._step, asyncio.Event()
            step.set()

    async def wait(self) -> None:
        await self._step.wait()


async def _chunks(steps: _Steps, body: _Body) -> AsyncGenerator[bytes, None]:
    chunk = _HEAD + b"x" * (body.chunk_bytes - len(_HEAD) - len(_TAIL)) + _TAIL
    for _ in range(body.max_tokens):
        await steps.wait()
        yield chunk
    yield b'data: {"usage":{"prompt_tokens":0,"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % body.max_tokens


def _app(steps: _Steps) -> Starlette:
    async def stream(request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=_Body)
        return StreamingResponse(_chunks(steps, body), media_type="text/event-stream")

    async def health(_request: Request) -> Response:
        return Response()

    return Starlette(routes=[Route(PATH, stream, methods=["POST"]), Route("/health", health)])


async def _serve(host: str, port: int, step: float) -> None:
    steps = _Steps(step)
    config = uvicorn.Config(
        _app(steps), host, port, http="httptools", lifespan="off", log_config=None, access_log=False
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(steps.run)
        await uvicorn.Server(config).serve()
        tasks.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--step", type=float, default=STEP_SECONDS, help="seconds")
    args = parser.parse_args()
    anyio.run(_serve, args.host, args.port, args.step, backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
