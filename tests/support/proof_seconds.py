"""How long the tests of the tier `proof` take, so that each of its fiftieths takes about as long (:mod:`.tiers`).

``--save-proof-seconds`` measures those that it runs as :mod:`.cpu_seconds` says, and writes ``tests/proof_seconds.txt``
anew for their files. Of kernels it counts the cases of a turn's sample, whatever else runs. A file whose tests were all
skipped, without a browser for example, has not been measured.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from stentor.tests.support.cpu_seconds import seconds_of

SECONDS: Final = Path(__file__).resolve().parent.parent / "proof_seconds.txt"
_HEAD: Final = """\
# CPU seconds of the tests that are `proof` or `compiles`, by file: of those that run in one turn as a whole, and of all
# values of those whose values take turns. Written by `make proof ARGS=--save-proof-seconds`; how they are used:
# tests/support/tiers.py.
"""


class FileSeconds(NamedTuple):
    """What a file's tests of the tier take."""

    whole: float
    """Those that run in one turn."""
    by_value: float
    """All values of those whose values take turns."""


class MeasuredTest(NamedTuple):
    """What there is to know of a test to add up what it takes."""

    file: str
    takes_turns: bool
    """Whether values of its parameter do."""
    alone: bool


def read_seconds(path: Path) -> dict[str, FileSeconds]:
    """By file, named from the repository's root."""
    lines = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {file: FileSeconds(float(whole), float(by_value)) for whole, by_value, file in lines}


def write_seconds(path: Path, measured: Mapping[str, FileSeconds]) -> None:
    """Replaces what is known of these files, and forgets those that are gone."""
    root = path.parent.parent
    known = read_seconds(path) if path.exists() else {}
    kept = {file: seconds for file, seconds in (known | dict(measured)).items() if (root / file).exists()}
    lines = [f"{each.whole:7.1f} {each.by_value:7.1f} {file}\n" for file, each in sorted(kept.items())]
    path.write_text(_HEAD + "".join(lines))


class SecondsRecorder:
    """A plugin that adds up what tests take, and at the end writes it down, of files whose tests have all run."""

    def __init__(self, portions: Mapping[str, MeasuredTest], path: Path = SECONDS) -> None:
        """``portions``: what to know of each test of the tier, by its name."""
        self._portions = portions
        self._path = path
        self._seconds: dict[tuple[str, bool], float] = defaultdict(float)
        self._left = Counter(portion.file for portion in portions.values())
        self._ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (portion := self._portions.get(report.nodeid)) is not None:
            self._seconds[portion.file, portion.takes_turns] += seconds_of(report, alone=portion.alone)
            self._left[portion.file] -= report.when == "teardown"
            if report.when == "call" and not report.skipped:
                self._ran.add(portion.file)

    def pytest_sessionfinish(self) -> None:
        whole = [file for file, left in self._left.items() if not left and file in self._ran]
        write_seconds(
            self._path, {file: FileSeconds(self._seconds[file, False], self._seconds[file, True]) for file in whole}
        )
