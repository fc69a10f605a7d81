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


async def _serve(host: str, port: int, step_seconds: float) -> None:
    step = asyncio.Event()

    async def run_steps() -> None:
        """Wakes all streams at once, as the steps of an engine would."""
        nonlocal step
        while True:
            await asyncio.sleep(step_seconds)
            done, step = step, asyncio.Event()
            done.set()

    async def chunks(body: _Body) -> AsyncGenerator[bytes, None]:
        chunk = _HEAD + b"x" * (body.chunk_bytes - len(_HEAD) - len(_TAIL)) + _TAIL
        for _ in range(body.max_tokens):
            await step.wait()
            yield chunk
        yield b'data: {"usage":{"prompt_tokens":0,"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % body.max_tokens

    async def stream(request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=_Body)
        return StreamingResponse(chunks(body), media_type="text/event-stream")

    async def health(_request: Request) -> Response:
        return Response()

    app = Starlette(routes=[Route(PATH, stream, methods=["POST"]), Route("/health", health)])
    config = uvicorn.Config(app, host, port, http="httptools", lifespan="off", log_config=None, access_log=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_steps)
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
