"""Runs a benchmark once for every combination of parameters and joins the results in one CSV.

    stentor bench grid --vary block-size=16,32,64 --vary kv-dtype=auto,fp8 \\
        --csv grid.csv kernels 64q1kv4k --operation attention

What follows the benchmark's name goes to it as it is. A combination whose rows are in the file already is
passed over, so that a run that was ended goes on where it was.
"""

import argparse
import csv
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from .tool import MISUSED, add_flag, complain

BENCHMARKS = {"kernels": "results", "model": "figures"}
"""Commands of ``stentor bench``, and where the rows lie in the JSON that they write."""

Combination = Mapping[str, str]


class GridError(ValueError):
    """The parameters cannot be used."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench grid", description="Varies parameters of a benchmark.")
    parser.add_argument("--vary", action="append", required=True, metavar="NAME=VALUE,…", help="may be repeated")
    add_flag(
        parser, "--csv", "--output", type=Path, default=Path("grid.csv"), metavar="FILE", help="rows are added to it"
    )
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the benchmark")
    given = parser.parse_args(argv)
    console = Console()
    try:
        combinations = list(combine(given.vary))
        done = read_done(given.csv, combinations[0])
    except GridError as error:
        return complain(parser.prog, error, MISUSED)
    failed = 0
    for number, combination in enumerate(combinations, 1):
        shown = " ".join(f"{name}={value}" for name, value in combination.items())
        if tuple(combination.values()) in done:
            console.print(f"{number} of {len(combinations)}: {shown}: there already")
            continue
        console.rule(f"{number} of {len(combinations)}: {shown}")
        rows = run(given.benchmark, given.arguments, combination)
        failed += not rows
        append(given.csv, combination, rows)
    return 1 if failed else 0


def combine(vary: Iterable[str]) -> Iterator[Combination]:
    """Every combination of ``name=a,b`` parameters, the last one varying fastest. Raises :class:`GridError`."""
    values: dict[str, list[str]] = {}
    for text in vary:
        name, separator, listed = text.partition("=")
        entries = [value for value in listed.split(",") if value]
        if not separator or not name or not entries or name in values:
            raise GridError(f"--vary {text}: expected one NAME=VALUE,VALUE for each name")
        values[name] = entries
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def read_done(output: Path, combination: Combination) -> set[tuple[str, ...]]:
    """Combinations whose rows a file holds. Raises :class:`GridError` where it is of another grid."""
    if not output.is_file():
        return set()
    with output.open(newline="") as file:
        reader = csv.DictReader(file)
        if (reader.fieldnames or [])[: len(combination)] != list(combination):
            raise GridError(f"{output} holds other parameters than {', '.join(combination)}: name another file")
        return {tuple(row[name] for name in combination) for row in reader}


def run(benchmark: str, arguments: Sequence[str], combination: Combination) -> list[dict[str, object]]:
    """The rows that one run wrote; none where it failed."""
    flags = [part for name, value in combination.items() for part in (f"--{name}", value)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-P", "-m", "stentor.loadtest.bench", benchmark, *arguments, *flags]
        done = subprocess.run([*command, "--save", str(result)], check=False)
        if done.returncode or not result.is_file():
            return []
        rows: list[dict[str, object]] = json.loads(result.read_text())[BENCHMARKS[benchmark]]
        return rows


def append(output: Path, combination: Combination, rows: Sequence[Mapping[str, object]]) -> None:
    """Adds rows, each after its parameters."""
    if not rows:
        return
    fresh = not output.is_file()
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow([*combination, *rows[0]])
        writer.writerows([*combination.values(), *row.values()] for row in rows)
