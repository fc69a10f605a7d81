"""``stentor bench grid``: one benchmark for every combination of parameters.

    stentor bench grid --vary block-size=16,32,64 --vary kv-dtype=auto,fp8 \\
        --csv grid.csv kernels 64q1kv4k --operation attention

Each run is a process of its own, so that none finds the memory of another taken. The results are joined in one CSV;
what follows the benchmark's name goes to it as it is.
"""

import argparse
import csv
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .tool import add_flag

CONFIGS: Final = Path(__file__).parent / "configs"
ROWS: Final = {"kernels": "results", "model": "figures"}
"""Benchmarks of a grid, and where the rows lie in the JSON that they write."""


def grid(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench grid", description="Varies parameters of a benchmark.")
    parser.add_argument(
        "--vary", action="append", required=True, type=_parameter, metavar="NAME=VALUE,…", help="may be repeated"
    )
    add_flag(parser, "--csv", "--output", type=Path, default=Path("grid.csv"), metavar="FILE", help="written anew")
    parser.add_argument("benchmark", choices=ROWS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the benchmark")
    given = parser.parse_args(argv)
    failed = 0
    with given.csv.open("w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for combination in combine(given.vary):
            print(" ".join(f"{name}={value}" for name, value in combination.items()), flush=True)
            rows = run(given.benchmark, given.arguments, combination)
            failed += not rows
            for row in rows:
                if writer is None:
                    writer = csv.DictWriter(file, list({**combination, **row}))
                    writer.writeheader()
                writer.writerow({**combination, **row})
            file.flush()
    return 1 if failed else 0


def _parameter(text: str) -> tuple[str, list[str]]:
    name, _, listed = text.partition("=")
    values = [value for value in listed.split(",") if value]
    if not name or not values:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE,VALUE")
    return name, values


def combine(vary: Sequence[tuple[str, Sequence[str]]]) -> Iterator[dict[str, str]]:
    """Every combination of parameters, the last one varying fastest."""
    names, values = zip(*vary, strict=True)
    for chosen in itertools.product(*values):
        yield dict(zip(names, chosen, strict=True))


def run(benchmark: str, arguments: Sequence[str], combination: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows that one run wrote; none where it failed."""
    flags = [part for name, value in combination.items() for part in (f"--{name}", value)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-P", "-m", "stentor.loadtest.bench", benchmark, *arguments, *flags]
        failed = subprocess.run([*command, "--save", str(result)], check=False).returncode
        rows: list[dict[str, Any]] = [] if failed else json.loads(result.read_text())[ROWS[benchmark]]
        return rows
