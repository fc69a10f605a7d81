"""``stentor bench embeddings``: texts a second beside sentence-transformers, a sentence beside a job, chat beside both.

Needs the peer for ``speed`` (make peers ARGS=sentence-transformers) and a voice for ``isolation`` (the extra `speech`).
"""

import argparse
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from ..record import Record, save_record
from ..tool import add_flag, make_parser, run_tool
from . import isolation, speed
from .isolation import Isolation, Latency
from .speed import Speed

PARTS: Final = ("speed", "latency", "isolation")


class Embeddings(Record, frozen=True, kw_only=True, tag="embeddings"):
    """None: a part that was not asked for, or has not been measured yet."""

    speed: Speed | None = None
    latency: Latency | None = None
    isolation: Isolation | None = None


def main(argv: list[str]) -> int:
    parser = make_parser("embeddings", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5, help="of speed; isolation takes as many")
    parser.add_argument("--tokens", type=int, default=8192, help="of one load of speed in one round")
    parser.add_argument("--job", type=int, default=5000, help="texts that one sentence is sent beside")
    parser.add_argument("--alone", type=int, default=300, help="sentences that are sent alone")
    add_flag(parser, "--output-tokens", "--stream", type=int, default=200, metavar="N", help="of a chat stream")
    return run_tool(parser, argv, _measure, lambda console, record: None)


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> Embeddings:
    """Tells and saves each part as soon as it is there."""
    measures: dict[str, Callable[[], Speed | Latency | Isolation]] = {
        "speed": lambda: speed.measure(args.dtype, args.rounds, args.tokens, args.threads),
        "latency": lambda: isolation.measure_latency(args.job, args.alone, args.threads),
        "isolation": lambda: isolation.measure(args.rounds, args.output_tokens, args.threads),
    }
    record = Embeddings(**about)
    for part in args.parts:
        found = measures[part]()
        print("\n".join(found.lines()), flush=True)
        record = replace(record, **{part: found})
        if args.save is not None:
            save_record(record, args.save)
    return record
