"""A report as tables: for the terminal, and as Markdown for a page."""

import statistics
from collections.abc import Sequence
from typing import Final

from rich.table import Table

from .figures import START, Best, Column, Measure, Report, measures, ratios, times_better, value

DISTURBED: Final = 0.1
"""Cores' worth of CPU time of others, the median over rounds, from which figures are doubted."""


def title(report: Report) -> str:
    """What was measured, in one line."""
    settings = report.settings
    counts = [len(rounds) for column in report.columns for shape, rounds in column.rounds.items() if shape != START]
    least, most = min(counts, default=0), max(counts, default=0)
    return (
        f"{report.model}: {settings['prompt']} tokens in, {settings['output']} out, long prompt "
        f"{settings['long_prompt']}; medians of {least if least == most else f'{least} to {most}'} rounds, "
        "one side at a time"
    )


def terminal_tables(report: Report, shapes: Sequence[str]) -> list[Table]:
    """Medians with the best of each row in bold, and ours beside the best peer."""
    rows = measures(shapes)
    medians = Table()
    medians.add_column("")
    for column in report.columns:
        medians.add_column(column.name.replace("-", "\n", 1), justify="right")
    for row in rows:
        medians.add_row(row.label, *_cells(report.columns, row, "[bold]{}[/bold]"))
    found = ratios(report.columns, rows)
    if not found:
        return [medians]
    compared = Table()
    for name in ("ours", "", "best peer of the width", "times better", "best of all", "times better"):
        compared.add_column(name, justify="right" if name == "times better" else "left")
    previous = ""
    for ratio in found:
        if previous and previous != ratio.ours:
            compared.add_section()
        name = ratio.ours if ratio.ours != previous else ""
        previous = ratio.ours
        alike, anyone = (_beside(pair, ratio.measure) for pair in (ratio.alike, ratio.any))
        compared.add_row(name, ratio.measure.label, *alike, *anyone)
    return [medians, compared]


def markdown(report: Report, shapes: Sequence[str]) -> str:
    """The same as two tables of a page, and how each server was started."""
    rows = measures(shapes)
    lines = [f"{title(report)}.", ""]
    lines += _markdown_table(
        ["", *(column.name for column in report.columns)],
        [[row.label, *_cells(report.columns, row, "**{}**")] for row in rows],
    )
    found = ratios(report.columns, rows)
    if found:
        lines += ["", "Ours beside the best peer; above 1 is better:", ""]
        lines += _markdown_table(
            ["", "", "best peer of the width", "times better", "best of all", "times better"],
            [
                [one.ours, one.measure.label, *_beside(one.alike, one.measure), *_beside(one.any, one.measure)]
                for one in found
            ],
        )
    lines += ["", "How each was started:", "", "```"]
    lines += [f"{column.name}: {column.command}" for column in report.columns]
    return "\n".join([*lines, "```", ""])


def remarks(report: Report) -> list[str]:
    """What a reader has to know of single columns: paused, failed, skipped, disturbed."""
    told = []
    for column in report.columns:
        if column.paused:
            told.append(f"{column.name} used CPU while idle: it was stopped (SIGSTOP) while others were measured")
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
    top = (max if row.more_is_better else min)(known) if len(known) > 1 else None
    cells = []
    for one in values:
        if one is None:
            cells.append("-")
            continue
        text = f"{one:,.{row.digits}f}"
        cells.append(bold.format(text) if top is not None and times_better(one, top, row) > 0.99 else text)
    return cells


def _beside(pair: tuple[Best, float] | None, row: Measure) -> tuple[str, str]:
    if pair is None:
        return "-", "-"
    found, times = pair
    return f"{found.name} {found.value:,.{row.digits}f}", f"{times:.2f}"


def _markdown_table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'|'.join('---' if number == 0 else '---:' for number in range(len(head)))}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
