"""Lines of JSON, each written as soon as it is known: what a run that is cut short leaves behind, and what the next one
need not do again."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def append(file: Path, row: Row) -> None:
    """Adds one line, whole even where several processes write."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row, default=str) + "\n")


def failed(file: Path) -> set[str]:
    """Tests that failed by these rows, one by one or listed by ``failed``, and did not pass after it."""
    tests: set[str] = set()
    for row in read(file):
        tests.update(row.get("failed", ()))
        if "test" in row:
            (tests.add if row.get("outcome") == "failed" else tests.discard)(row["test"])
    return tests


def read(file: Path) -> Iterator[dict[str, Any]]:
    """All lines that are whole; none where there is no such file."""
    if not file.is_file():
        return
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row
