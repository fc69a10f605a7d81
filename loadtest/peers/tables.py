"""A report as tables: for the terminal, and as Markdown for a page."""

import statistics
from collections.abc import Sequence
from typing import Final

from .figures import START, Best, Column, Measure, Report, measures, ratios, times_better, value

DISTURBED: Final = 0.1
"""Cores' worth of CPU time of others, the median over rounds, from which figures are doubted."""

Grid = tuple[list[str], list[list[str]]]
"""Columns and rows."""


def title(report: Report) -> str:
    """What was measured, in one line."""
    settings = report.settings
    counts = [len(rounds) for column in report.columns for shape, rounds in column.rounds.items() if shape != START]
    least, most = min(counts, default=0), max(counts, default=0)
    return (
        f"{report.model}: {settings.prompt} tokens in, {settings.output} out, long prompt {settings.long_prompt}; "
        f"medians of {least if least == most else f'{least} to {most}'} rounds, one side at a time"
    )


def grids(report: Report, bold: str) -> list[Grid]:
    """Medians, the best of each row as ``bold`` has it, and ours beside the best peer where there is one."""
    rows = measures(report.settings.shapes)
    names = [column.name for column in report.columns]
    made: list[Grid] = [(["", *names], [[row.label, *_cells(report.columns, row, bold)] for row in rows])]
    compared = [
        [one.ours, one.measure.label, *_beside(one.alike, one.measure), *_beside(one.any, one.measure)]
        for one in ratios(report.columns, rows)
    ]
    if compared:
        made.append((["ours", "", "best peer of the width", "times better", "best of all", "times better"], compared))
    return made


def markdown(report: Report) -> str:
    """The tables of a page, and how each server was started."""
    lines = [f"{title(report)}.", ""]
    for number, (columns, rows) in enumerate(grids(report, "**{}**")):
        lines += ["Ours beside the best peer; above 1 is better:", ""] if number else []
        rule = ["---", *("---:" for _ in columns[1:])]
        lines += [f"| {' | '.join(row)} |" for row in (columns, rule, *rows)] + [""]
    lines += ["How each was started:", "", "```"]
    lines += [f"{column.name}: {column.command}" for column in report.columns]
    return "\n".join([*lines, "```", ""])


def remarks(report: Report) -> list[str]:
    """What a reader has to know of single columns: failed, skipped, disturbed."""
    told = []
    for column in report.columns:
        if column.failed is not None:
            told.append(f"{column.name} failed: {column.failed}")
        for figure, who in (("others_cores", "other servers of the run"), ("strangers_cores", "other processes")):
            seen = [figures[figure] for rounds in column.rounds.values() for figures in rounds if figure in figures]
            if seen and statistics.median(seen) > DISTURBED:
                told.append(
                    f"{column.name}: {who} used {statistics.median(seen):.2f} cores meanwhile: "
                    "do not trust these figures, measure on a quiet machine"
                )
    return [*told, *(f"{name} skipped: {why}" for name, why in report.skipped.items())]


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
