"""Holds the quality of what is computed: perplexity of a fixed text beside transformers in float32.

    stentor bench quality                    # the demo model
    stentor bench quality --model FOLDER --cases served --limit 1.0

The text is read in windows as prompts, and part of it token by token, alone and in batches, since other kernels
run then. Exit code 1 where a perplexity differs by more than the limit.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Console

from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.loading.checkpoint import Checkpoint, open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.worker.errors import SetupError
from stentor.protocols.ipc.config import WorkerConfig

from ..record import Record
from ..tool import at_least, make_parser, run_tool, table
from ..worker_options import add_worker_options, describe, worker_config
from .compare import Agreement, Comparison
from .ours import Scorer, Scores, Window
from .reference import Reference, ReferenceError

Show = Callable[[str], None]

DECODE_WINDOW = 128
"""Tokens of each sequence that is decoded one by one."""
LEAST_DECODED = 1024
"""Tokens decoded at each batch size, or the text's own if it has fewer."""
DTYPES: Final = ("float32", "bfloat16")
CACHES: Final = {"int8-cache": "int8", "fp8-cache": "fp8"}
"""Plain weights in float32, whose cache alone has 8 bits."""
CASES: Final = ("served", *DTYPES)


TEXTS: Final = Path(__file__).parent / "texts"
ORDER: Final = ("alice.txt", "loomings.txt", "lamp.txt", "code.txt")


def corpus() -> str:
    """Prose of three hands, then code; where each comes from stands in ``texts/SOURCES.md``."""
    return "\n\n".join((TEXTS / name).read_text(encoding="utf-8").strip() for name in ORDER) + "\n"


def windows(tokens: Sequence[int], length: int) -> list[list[int]]:
    """Consecutive windows of ``length`` tokens, the last one what is left if that is at least half as long."""
    cut = [list(tokens[at : at + length]) for at in range(0, len(tokens), length)]
    return [window for window in cut if len(window) >= max(length // 2, 2)]


class Case(NamedTuple):
    """One way to serve the model."""

    name: str
    config: WorkerConfig


class Work(NamedTuple):
    """Windows, and how they go through the worker: as prompts, or ``rows`` at a time token by token."""

    name: str
    windows: Sequence[Window]
    rows: int | None = None

    def score(self, scorer: Scorer) -> list[Scores]:
        if self.rows is None:
            return [scorer.prefill(window) for window in self.windows]
        starts = range(0, len(self.windows), self.rows)
        return [scores for at in starts for scores in scorer.decode(self.windows[at : at + self.rows])]


class Verdict(msgspec.Struct, frozen=True):
    """One case at one work."""

    case: str
    work: str
    agreement: Agreement
    notes: list[str]


class Quality(Record, frozen=True, kw_only=True, tag="quality"):
    worker: dict[str, Any]
    limit: float
    verdicts: list[Verdict]


def main(argv: list[str]) -> int:
    errors = (CheckpointError, ReferenceError, SetupError, WeightError)
    parser = make_parser("quality", "Compares the perplexity of a fixed text with that of transformers in float32.")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=(*CASES, *CACHES),
        default=list(CASES),
        help="served: as `stentor serve` with the options below; float32, bfloat16: plain weights in that type; "
        "int8-cache, fp8-cache: in float32 over such a KV cache (the first three)",
    )
    parser.add_argument(
        "--window", type=at_least(2), nargs="+", default=[512, 2048], metavar="TOKENS", help="of prompts (512 2048)"
    )
    parser.add_argument(
        "--decode", type=at_least(1), nargs="*", default=[1, 8, 32], metavar="ROWS", help="batch sizes (1 8 32)"
    )
    parser.add_argument("--tokens", type=at_least(256), metavar="N", help="read only the first of the text")
    parser.add_argument("--text", type=Path, metavar="FILE", help="another text, in UTF-8")
    parser.add_argument("--limit", type=float, default=0.5, metavar="PERCENT", help="of difference (0.5)")
    add_worker_options(parser)
    return run_tool(parser, argv, _measure, _judge, *errors)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Quality:
    rows = max(arguments.decode, default=1)
    served = worker_config(arguments, max_num_seqs=max(arguments.max_num_seqs or 0, rows))
    checkpoint = open_checkpoint(Path(served.model), served.load_format)
    with Console(stderr=True).status("loading transformers") as status:
        reference = Reference(checkpoint)
        text = arguments.text.read_text(encoding="utf-8") if arguments.text else corpus()
        tokens = reference.tokenize(text)[: arguments.tokens]
        lengths = [min(length, checkpoint.decoder.max_position) for length in arguments.window]
        works = make_works(tokens, lengths, arguments.decode)
        with make_cases(checkpoint, reference, served, arguments.cases) as cases:
            verdicts = check(cases, works, reference, status.update)
    return Quality(worker=describe(served), limit=arguments.limit / 100, verdicts=verdicts, **about)


def make_works(tokens: Sequence[int], lengths: Sequence[int], rows: Sequence[int]) -> list[Work]:
    """Prompts of each length over the whole text, then decoding at each batch size over a part of it."""
    works = [Work(f"prefill of {length}", windows(tokens, length)) for length in lengths]
    whole = [window for window in windows(tokens, DECODE_WINDOW) if len(window) == DECODE_WINDOW]
    for count in rows:
        taken = whole[: max(count, LEAST_DECODED // DECODE_WINDOW)]
        works.append(Work(f"decode of {min(count, len(taken))}", taken, count))
    return works


@contextmanager
def make_cases(
    checkpoint: Checkpoint, reference: Reference, served: WorkerConfig, names: Sequence[str]
) -> Iterator[list[Case]]:
    """``served`` as it is, and plain weights in each dtype and over each cache that ``names`` has: of a GGUF file,
    those that transformers made of it, in a folder that is gone when the block ends."""
    wanted = [name for name in names if name != "served"]
    with tempfile.TemporaryDirectory(prefix="stentor-quality-") as scratch:
        plain = served
        if wanted and checkpoint.format == "gguf":
            reference.save(Path(scratch))
            plain = msgspec.structs.replace(served, model=scratch)
        plain = msgspec.structs.replace(plain, quantization="none")
        configs = {"served": served}
        configs |= {name: msgspec.structs.replace(plain, dtype=name) for name in DTYPES}
        configs |= {name: msgspec.structs.replace(configs["float32"], kv_cache_dtype=of) for name, of in CACHES.items()}
        yield [Case(name, configs[name]) for name in names]


def check(cases: Sequence[Case], works: Sequence[Work], reference: Reference, show: Show) -> list[Verdict]:
    """Scores every window in every case, then compares each with the reference, which computes it once."""
    # works share windows: of each, the reference's distributions are held but once and not for long
    uses: dict[tuple[int, ...], list[tuple[Comparison, Scores]]] = {}
    found: list[tuple[str, str, Comparison, list[str]]] = []
    for case in cases:
        show(f"{case.name}: loading")
        scorer = Scorer(case.config)
        for work in works:
            show(f"{case.name}: {work.name}")
            comparison = Comparison()
            found.append((case.name, work.name, comparison, scorer.notes))
            for window, scores in zip(work.windows, work.score(scorer), strict=True):
                uses.setdefault(tuple(window), []).append((comparison, scores))
        scorer.close()
    for number, (window, pairs) in enumerate(uses.items(), 1):
        show(f"transformers: window {number} of {len(uses)}")
        theirs = reference.logprobs(window)
        for comparison, scores in pairs:
            comparison.add(window, scores, theirs)
    return [Verdict(case, work, comparison.result(), notes) for case, work, comparison, notes in found]


def _judge(console: Console, record: Quality) -> int:
    rows = []
    for verdict in record.verdicts:
        found = verdict.agreement
        perplexities = (f"{found.perplexity:.3f}", f"{found.reference_perplexity:.3f}")
        apart = f"{found.difference:+.3%} ± {found.error:.3%}"
        divergences = (f"{found.divergence_mean:.1e}", f"{found.divergence_p99:.1e}")
        ends = (f"{found.same_greedy:.1%}", *divergences, "ok" if found.within(record.limit) else "TOO FAR")
        rows.append([f"{verdict.case}, {verdict.work}", f"{found.positions:,}", *perplexities, apart, *ends])
    columns = ("case", "tokens", "ours", "reference", "apart", "same", "KL mean", "KL p99", "")
    title = f"perplexity beside transformers' in float32, at most {record.limit:.2%} apart"
    caption = "same: share of positions with the same likeliest token; KL: nats, at least"
    console.print(table(columns, rows, title=title, caption=caption))
    return 0 if all(verdict.agreement.within(record.limit) for verdict in record.verdicts) else 1
