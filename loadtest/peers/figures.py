"""What is measured, what its rounds come to, how two sides compare, and a report as tables. Nothing runs here."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ..client import Answer, seconds_of
from ..record import Record, quantile
from ..tool import UsageError
from .sides import Room

Round = dict[str, float]
"""Figures of one side, one shape and one round, by name."""

PREFILL: Final = "prefill"
"""The shape of one long prompt; its length may follow, as in ``prefill:512``."""
START: Final = "start"
STATED: Final = ("1", "8", "32", PREFILL)
"""Shapes measured where none are named: streams at a time, and a long prompt."""


_BLOCK: Final = 256
"""Tokens. Every server's blocks divide it."""
DISTURBED: Final = 0.1
"""Cores' worth of CPU time of others, the median over rounds, from which figures are doubted."""

Grid = tuple[list[str], list[list[str]]]
"""Columns and rows."""


class Measure(NamedTuple):
    """One row of the table."""

    shape: str
    figure: str
    label: str
    more_is_better: bool = False
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
    rounds: dict[str, list[Round]] = {}
    """By shape; ``start`` has one round a start, measured while no other server was up."""
    failed: str | None = None
    """Why it was not measured to the end."""


class Settings(msgspec.Struct, frozen=True):
    shapes: list[str]
    rounds: int = 5
    starts: int = 3
    prompt: int = 128
    output: int = 128
    long_prompt: int = 2048
    seed: int = 0

    @property
    def room(self) -> Room:
        """What servers must have room for."""
        longest = max(self.prompt_of(shape) for shape in self.shapes) + self.output
        slots = max(1 if is_prefill(shape) else int(shape) for shape in self.shapes)
        return Room(slots, -(-longest // _BLOCK) * _BLOCK)

    def prompt_of(self, shape: str) -> int:
        """Tokens of each prompt of a shape."""
        if not is_prefill(shape):
            return self.prompt
        _, _, length = shape.partition(":")
        return int(length or self.long_prompt)


class SidesRecord(Record, frozen=True, kw_only=True):
    """What sides that took turns came to."""

    model: str
    columns: list[Column]
    skipped: dict[str, str]
    """Sides that were not measured, and why."""
    medians: Mapping[str, dict[str, float]] = {}
    """What a reader of the file looks for first: by column and label."""


class Report(SidesRecord, frozen=True, kw_only=True, tag="peers"):
    settings: Settings
    interrupted: bool = False


def measures(shapes: Sequence[str]) -> list[Measure]:
    """The table's rows for these shapes, start-up last."""
    rows: list[Measure] = []
    for shape in shapes:
        if is_prefill(shape):
            _, _, length = shape.partition(":")
            what, again = (f"prompt of {length}",) * 2 if length else ("long prompt", "prompt")
            rows.append(Measure(shape, "prefill_tokens_per_s", f"{what}: prefill tokens/s", True))
            rows.append(Measure(shape, "again_ttft_ms", f"the same {again} again: TTFT ms", digits=1))
        elif shape == "1":
            rows.append(Measure(shape, "decode_tokens_per_s", "alone: decode tokens/s", True))
            rows.append(Measure(shape, "ttft_ms_p50", "alone: TTFT ms"))
        else:
            rows.append(Measure(shape, "output_tokens_per_s", f"{shape} streams: output tokens/s", True))
            for time, digits in (("ttft", 0), ("itl", 1)):
                for share in ("p50", "p99"):
                    label = f"{shape} streams: {time.upper()} {share} ms"
                    rows.append(Measure(shape, f"{time}_ms_{share}", label, digits=digits))
            rows.append(Measure(shape, "longest_gap_ms", f"{shape} streams: a stream's longest gap ms"))
    rows.append(Measure(START, "ready_s", "start to ready, s", digits=1))
    rows.append(Measure(START, "memory_mib", "resident MiB after load"))
    return rows


def streams_round(answers: Sequence[Answer]) -> Round:
    """Figures of streams that were sent at one moment.

    ``decode_tokens_per_s`` is that of a stream, from its first output to its last; ``itl_tokens_per_s`` the inverse
    of the median gap. ITL is the gap between two moments at which a stream brought output, pooled over all streams.
    ``longest_gap_ms`` is the median over streams of each one's longest: where a stream of more than 100 tokens stands
    still once, the pooled p99 does not show it.
    """
    tokens = sum(answer.tokens for answer in answers)
    ttft = [answer.ttft for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps]
    found = {
        "output_tokens_per_s": tokens / seconds_of(answers),
        "ttft_ms_p50": 1e3 * quantile(ttft, 0.5),
        "ttft_ms_p99": 1e3 * quantile(ttft, 0.99),
        "tokens_per_chunk": tokens / sum(len(answer.arrivals) for answer in answers),
    }
    if gaps:
        found["decode_tokens_per_s"] = statistics.median(
            (answer.tokens - 1) / (answer.ended - answer.arrivals[0]) for answer in answers if answer.gaps
        )
        found["itl_tokens_per_s"] = 1 / quantile(gaps, 0.5)
        found["itl_ms_p50"] = 1e3 * quantile(gaps, 0.5)
        found["itl_ms_p99"] = 1e3 * quantile(gaps, 0.99)
        found["longest_gap_ms"] = 1e3 * statistics.median(max(answer.gaps) for answer in answers if answer.gaps)
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


def medians(columns: Sequence[Column], rows: Sequence[Measure]) -> Mapping[str, dict[str, float]]:
    return {
        column.name: {row.label: round(got, 3) for row in rows if (got := value(column, row)) is not None}
        for column in columns
    }


def times_better(ours: float, theirs: float, measure: Measure) -> float:
    """Above 1 where ours is better: ours over theirs for rates, theirs over ours for times and sizes."""
    above, below = (ours, theirs) if measure.more_is_better else (theirs, ours)
    return above / below if below else float("inf")


class Best(NamedTuple):
    """The best of several peers in one measure, and how many times better ours is."""

    name: str
    value: float
    times: float


def best(ours: float, peers: Sequence[Column], measure: Measure) -> Best | None:
    """None without a measurement."""
    found = [(peer.name, got) for peer in peers if (got := value(peer, measure)) is not None]
    beside = [Best(name, got, times_better(ours, got, measure)) for name, got in found]
    return min(beside, key=lambda one: one.times, default=None)


class Ratio(NamedTuple):
    """One of our sides beside the best peer in one measure."""

    ours: str
    measure: Measure
    alike: Best | None
    """Of those with weights of the same width."""
    any: Best
    """Of all."""


def ratios(columns: Sequence[Column], rows: Sequence[Measure]) -> list[Ratio]:
    """Every measure of every side of ours that has a peer beside it."""
    peers = [column for column in columns if column.peer != "stentor"]
    found = []
    for column in columns:
        if column.peer == "stentor":
            alike = [peer for peer in peers if width(peer.bits) == width(column.bits)]
            for measure in rows:
                ours = value(column, measure)
                if ours is not None and (beside := best(ours, peers, measure)) is not None:
                    found.append(Ratio(column.name, measure, best(ours, alike, measure), beside))
    return found


def width(bits: str) -> str:
    """What weights compete with: all with four bits a weight are one class."""
    return "4-bit" if bits.startswith("q4") else bits


def is_prefill(shape: str) -> bool:
    """Whether it is one long prompt, not so many streams."""
    return shape.partition(":")[0] == PREFILL


def settle_shapes(named: str | None) -> list[str]:
    """Shapes from ``1,8,prefill``. Raises :class:`UsageError`."""
    if named is None:
        return list(STATED)
    shapes = [part.strip() for part in named.split(",") if part.strip()]
    for shape in shapes:
        number = shape.removeprefix(f"{PREFILL}:")
        if shape != PREFILL and not (number.isdecimal() and 0 < int(number) <= 4096):
            expected = f"{PREFILL}, {PREFILL}:TOKENS or a number of streams, as in 1,8,32"
            raise UsageError(f"no shape is called {shape!r}; expected {expected}")
    if not shapes:
        raise UsageError("--shapes names none; expected a list as in 1,8,32,prefill")
    return list(dict.fromkeys(shape if is_prefill(shape) else str(int(shape)) for shape in shapes))


def title(report: Report) -> str:
    """What was measured, in one line."""
    settings = report.settings
    counts = [len(rounds) for column in report.columns for shape, rounds in column.rounds.items() if shape != START]
    least, most = min(counts, default=0), max(counts, default=0)
    return (
        f"{report.model}: {settings.prompt} tokens in, {settings.output} out, long prompt {settings.long_prompt}; "
        f"medians of {least if least == most else f'{least} to {most}'} rounds, one side at a time"
    )


def grids(columns: Sequence[Column], rows: Sequence[Measure], bold: str) -> list[Grid]:
    """Medians, the best of each row as ``bold`` has it, and ours beside the best peer where there is one."""
    names = [column.name for column in columns]
    made: list[Grid] = [(["", *names], [[row.label, *_cells(columns, row, bold)] for row in rows])]
    compared = [
        [one.ours, one.measure.label, *_beside(one.alike, one.measure), *_beside(one.any, one.measure)]
        for one in ratios(columns, rows)
    ]
    if compared:
        made.append((["ours", "", "best peer of the width", "times better", "best of all", "times better"], compared))
    return made


def markdown(report: Report) -> str:
    """The tables of a page, and how each server was started."""
    lines = [f"{title(report)}.", ""]
    for number, (columns, rows) in enumerate(grids(report.columns, measures(report.settings.shapes), "**{}**")):
        lines += ["Ours beside the best peer; above 1 is better:", ""] if number else []
        rule = ["---", *("---:" for _ in columns[1:])]
        lines += [f"| {' | '.join(row)} |" for row in (columns, rule, *rows)] + [""]
    lines += ["How each was started:", "", "```"]
    lines += [f"{column.name}: {column.command}" for column in report.columns]
    return "\n".join([*lines, "```", ""])


def remarks(report: SidesRecord) -> list[str]:
    """What a reader has to know of single columns: failed, skipped, disturbed."""
    notes = []
    for column in report.columns:
        if column.failed is not None:
            notes.append(f"{column.name} failed: {column.failed}")
        for figure, who in (("others_cores", "other servers of the run"), ("strangers_cores", "other processes")):
            seen = [figures[figure] for rounds in column.rounds.values() for figures in rounds if figure in figures]
            if seen and statistics.median(seen) > DISTURBED:
                notes.append(
                    f"{column.name}: {who} used {statistics.median(seen):.2f} cores meanwhile: "
                    "do not trust these figures, measure on a quiet machine"
                )
    return [*notes, *(f"{name} skipped: {why}" for name, why in report.skipped.items())]


def _cells(columns: Sequence[Column], row: Measure, bold: str) -> list[str]:
    """One row's figures; those within a hundredth of the best one in bold."""
    values = [value(column, row) for column in columns]
    known = [one for one in values if one is not None]
    top = (max if row.more_is_better else min)(known, default=0.0)
    cells = []
    for one in values:
        text = "-" if one is None else f"{one:,.{row.digits}f}"
        is_best = one is not None and len(known) > 1 and times_better(one, top, row) > 0.99
        cells.append(bold.format(text) if is_best else text)
    return cells


def _beside(found: Best | None, row: Measure) -> tuple[str, str]:
    return ("-", "-") if found is None else (f"{found.name} {found.value:,.{row.digits}f}", f"{found.times:.2f}")
