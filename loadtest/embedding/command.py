"""``stentor bench embeddings``: texts a second beside sentence-transformers, a sentence beside a job, chat beside both.

Needs the peer for ``speed`` (make peers ARGS=sentence-transformers) and a voice for ``isolation`` (the extra `speech`).
"""

import argparse
from typing import Any, Final, Literal

from msgspec.structs import replace

from ..record import Record, save_record
from ..tool import add_flag, make_parser, run_tool
from . import isolation, latency, speed
from .isolation import Isolation
from .latency import Latency
from .speed import Speed

PARTS: Final = ("speed", "latency", "isolation")


class Embeddings(Record, frozen=True, kw_only=True):
    """None: a part that was not asked for, or has not been measured yet."""

    kind: Literal["embeddings"] = "embeddings"
    speed: Speed | None = None
    latency: Latency | None = None
    isolation: Isolation | None = None


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, lambda console, record: None)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> Embeddings:
    """Tells and saves each part as soon as it is there."""
    record = Embeddings(**about)
    for part in args.parts:
        match part:
            case "speed":
                timed = speed.measure(args.dtype, args.rounds, args.tokens, args.threads)
                _tell_speed(timed)
                record = replace(record, speed=timed)
            case "latency":
                waited = latency.measure(args.job, args.alone, args.threads)
                _tell_latency(waited)
                record = replace(record, latency=waited)
            case "isolation":
                beside = isolation.measure(args.rounds, args.output_tokens, args.threads)
                _tell_isolation(beside)
                record = replace(record, isolation=beside)
        if args.save is not None:
            save_record(record, args.save)
    return record


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


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("embeddings", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5, help="of speed; isolation takes as many")
    parser.add_argument("--tokens", type=int, default=8192, help="of one load of speed in one round")
    parser.add_argument("--job", type=int, default=5000, help="texts that one sentence is sent beside")
    parser.add_argument("--alone", type=int, default=300, help="sentences that are sent alone")
    add_flag(parser, "--output-tokens", "--stream", type=int, default=200, metavar="N", help="of a chat stream")
    return parser
