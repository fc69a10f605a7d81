"""What is measured, what the rounds of it come to, and how two sides compare. Plain arithmetic, nothing runs here."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from ..client import Answer
from ..record import Record, quantile

Round = dict[str, float]
"""Figures of one side, one shape and one round, by name."""

PREFILL: Final = "prefill"
START: Final = "start"
STATED: Final = ("1", "8", "32", PREFILL)
"""Shapes measured where none are named: streams at a time, and a long prompt."""


class Measure(NamedTuple):
    """One row of the table."""

    shape: str
    figure: str
    label: str
    more_is_better: bool
    digits: int = 0


class Column(msgspec.Struct, kw_only=True):
    """One side's part of a report."""

    name: str
    peer: str
    bits: str
    version: str
    command: str
    weights: str
    weight_bytes: int
    paused: bool = False
    """It used CPU while idle, and was stopped by SIGSTOP while others were measured."""
    rounds: dict[str, list[Round]] = {}
    """By shape; ``start`` has one round a start, measured while no other server was up."""
    failed: str | None = None
    """Why it was not measured to the end."""


class Report(Record, frozen=True, kw_only=True):
    """A whole run, as it is saved."""

    kind: Literal["peers"] = "peers"
    model: str
    settings: dict[str, object]
    columns: list[Column]
    skipped: dict[str, str]
    """Sides that were not measured, and why."""


def measures(shapes: Sequence[str]) -> list[Measure]:
    """The table's rows for these shapes, start-up last."""
    rows: list[Measure] = []
    for shape in shapes:
        if shape == PREFILL:
            rows.append(Measure(shape, "prefill_tokens_per_s", "long prompt: prefill tokens/s", True))
            rows.append(Measure(shape, "again_ttft_ms", "the same prompt again: TTFT ms", False, 1))
        elif shape == "1":
            rows.append(Measure(shape, "decode_tokens_per_s", "alone: decode tokens/s", True))
            rows.append(Measure(shape, "ttft_ms_p50", "alone: TTFT ms", False))
        else:
            name = f"{shape} streams"
            rows.append(Measure(shape, "output_tokens_per_s", f"{name}: output tokens/s", True))
            rows.append(Measure(shape, "ttft_ms_p50", f"{name}: TTFT p50 ms", False))
            rows.append(Measure(shape, "ttft_ms_p99", f"{name}: TTFT p99 ms", False))
            rows.append(Measure(shape, "itl_ms_p50", f"{name}: ITL p50 ms", False, 1))
            rows.append(Measure(shape, "itl_ms_p99", f"{name}: ITL p99 ms", False, 1))
    rows.append(Measure(START, "ready_s", "start to ready, s", False, 1))
    rows.append(Measure(START, "memory_mib", "resident MiB after load", False))
    return rows


def streams_round(answers: Sequence[Answer]) -> Round:
    """Figures of streams that were sent at one moment.

    ``decode_tokens_per_s`` is that of a stream, from its first output to its last; ``itl_tokens_per_s`` the inverse
    of the median gap. ITL is the gap between two moments at which a stream brought output, pooled over all streams.
    """
    seconds = max(answer.ended for answer in answers) - min(answer.began for answer in answers)
    ttft = [answer.ttft for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps]
    found = {
        "output_tokens_per_s": sum(answer.tokens for answer in answers) / seconds,
        "ttft_ms_p50": 1e3 * quantile(ttft, 0.5),
        "ttft_ms_p99": 1e3 * quantile(ttft, 0.99),
        "tokens_per_chunk": sum(answer.tokens for answer in answers) / sum(len(answer.arrivals) for answer in answers),
    }
    decode = [
        (answer.tokens - 1) / (answer.ended - answer.arrivals[0])
        for answer in answers
        if answer.ended > answer.arrivals[0]
    ]
    if decode and gaps:
        found["decode_tokens_per_s"] = statistics.median(decode)
        found["itl_tokens_per_s"] = 1 / quantile(gaps, 0.5)
        found["itl_ms_p50"] = 1e3 * quantile(gaps, 0.5)
        found["itl_ms_p99"] = 1e3 * quantile(gaps, 0.99)
    return found


def prefill_round(first: Answer, again: Answer) -> Round:
    """Figures of one long prompt sent twice, one token out."""
    return {
        "prefill_tokens_per_s": first.prompt_tokens / first.ttft,
        "ttft_ms": 1e3 * first.ttft,
        "again_ttft_ms": 1e3 * again.ttft,
    }


def value(column: Column, measure: Measure) -> float | None:
    """The median over the rounds; None where there were none."""
    found = [figures[measure.figure] for figures in column.rounds.get(measure.shape, []) if measure.figure in figures]
    return statistics.median(found) if found else None


class Best(NamedTuple):
    """The best of several columns in one measure."""

    name: str
    value: float


def best(columns: Sequence[Column], measure: Measure) -> Best | None:
    """None where nobody was measured."""
    found = [Best(column.name, got) for column in columns if (got := value(column, measure)) is not None]
    if not found:
        return None
    choose = max if measure.more_is_better else min
    return choose(found, key=lambda one: one.value)


def times_better(ours: float, theirs: float, measure: Measure) -> float:
    """Above 1 where ours is better: ours over theirs for rates, theirs over ours for times and sizes."""
    above, below = (ours, theirs) if measure.more_is_better else (theirs, ours)
    return above / below if below else float("inf")


class Ratio(NamedTuple):
    """One of our sides beside the best peer in one measure."""

    ours: str
    measure: Measure
    alike: tuple[Best, float] | None
    """The best peer with weights of the same width, and how many times better ours is."""
    any: tuple[Best, float] | None
    """The best peer of all."""


def ratios(columns: Sequence[Column], rows: Sequence[Measure]) -> list[Ratio]:
    """Every measure of every side of ours that has a peer beside it."""
    peers = [column for column in columns if column.peer != "stentor"]
    found = []
    for column in columns:
        if column.peer != "stentor":
            continue
        alike = [peer for peer in peers if width(peer.bits) == width(column.bits)]
        for measure in rows:
            ours = value(column, measure)
            if ours is None:
                continue
            ratio = Ratio(column.name, measure, _beside(ours, alike, measure), _beside(ours, peers, measure))
            if ratio.any is not None:
                found.append(ratio)
    return found


def width(bits: str) -> str:
    """What weights compete with: all with four bits a weight are one class."""
    return "4-bit" if bits.startswith("q4") else bits


def settle_shapes(named: str | None) -> list[str]:
    """Shapes from ``1,8,prefill``. Raises ValueError with one line."""
    if named is None:
        return list(STATED)
    shapes = [part.strip() for part in named.split(",") if part.strip()]
    for shape in shapes:
        if shape != PREFILL and not (shape.isdecimal() and 0 < int(shape) <= 4096):
            raise ValueError(f"no shape is called {shape!r}; expected {PREFILL} or a number of streams, as in 1,8,32")
    if not shapes:
        raise ValueError("--shapes names none; expected a list as in 1,8,32,prefill")
    return list(dict.fromkeys(str(int(shape)) if shape != PREFILL else shape for shape in shapes))


def _beside(ours: float, peers: Sequence[Column], measure: Measure) -> tuple[Best, float] | None:
    found = best(peers, measure)
    return None if found is None else (found, times_better(ours, found.value, measure))


def medians(columns: Sequence[Column], rows: Sequence[Measure]) -> Mapping[str, dict[str, float]]:
    """What a reader of the saved file looks for first: the medians by column and label."""
    return {
        column.name: {row.label: round(got, 3) for row in rows if (got := value(column, row)) is not None}
        for column in columns
    }
