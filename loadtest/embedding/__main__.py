"""``make embeddings``: texts a second beside sentence-transformers, one sentence beside a job, chat beside both.

Needs the peer for ``speed`` (make peers ARGS=sentence-transformers) and a voice for ``isolation`` (the extra `speech`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ..record import now_iso
from ..serving.machine import describe_machine
from . import isolation, latency, speed
from .isolation import Isolation
from .latency import Latency
from .speed import Speed

PARTS: Final = ("speed", "latency", "isolation")


class Embeddings(msgspec.Struct):
    """None: a part that was not asked for, or has not been measured yet."""

    command: list[str]
    taken: str
    machine: dict[str, Any]
    speed: Speed | None = None
    latency: Latency | None = None
    isolation: Isolation | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="make embeddings", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5, help="of speed; isolation takes as many")
    parser.add_argument("--tokens", type=int, default=8192, help="of one load of speed in one round")
    parser.add_argument("--job", type=int, default=5000, help="texts that one sentence is sent beside")
    parser.add_argument("--alone", type=int, default=300, help="sentences that are sent alone")
    parser.add_argument("--stream", type=int, default=200, help="tokens of a chat stream")
    parser.add_argument("--output", type=Path, help="where figures go, as JSON; written after each part")
    args = parser.parse_args(argv)
    command = ["python", "-P", "-m", "stentor.loadtest.embedding", *(sys.argv[1:] if argv is None else argv)]
    record = Embeddings(command, now_iso(), describe_machine())
    for part in args.parts:
        match part:
            case "speed":
                record.speed = speed.measure(args.dtype, args.rounds, args.tokens, args.threads)
                _tell_speed(record.speed)
            case "latency":
                record.latency = latency.measure(args.job, args.alone, args.threads)
                _tell_latency(record.latency)
            case "isolation":
                record.isolation = isolation.measure(args.rounds, args.stream, args.threads)
                _tell_isolation(record.isolation)
        if args.output is not None:
            args.output.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    return 0


def _tell_speed(found: Speed) -> None:
    for one in found.timed:
        print(
            f"{one.side:<22} {one.dtype:<9} {one.load:>5}  {one.texts_per_s:8.1f} texts/s (batch {one.batch})  "
            f"{one.ratio:5.2f} times ours, CPU {one.cpu_ratio:5.2f}"
        )


def _tell_latency(found: Latency) -> None:
    for name, one in (("alone", found.alone), (f"beside {found.job_texts} texts", found.beside_a_job)):
        print(f"one sentence {name:<22} p50 {one.p50:.1f} ms, p99 {one.p99:.1f} ms, of {one.count}")


def _tell_isolation(found: Isolation) -> None:
    for one in found.results:
        print(
            f"chat {one.company:<22} p50 {one.itl.p50:.1f} ms, p99 {one.itl.p99:.1f} ms, {one.p99_ratio:.2f} times; "
            f"{one.company_done} done beside it"
        )


if __name__ == "__main__":
    sys.exit(main())
