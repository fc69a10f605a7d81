"""Which tests of `make test` are slow, so that its turns divide them (:mod:`.tiers`).

``--save-slow-tests`` measures all tests that it runs, and writes ``tests/slow_tests.txt`` anew for their files. Counted
is what :mod:`.cpu_seconds` counts of the test itself, of all its cases together, without what is set up before it: that
may be another's. Files whose tests share servers of their own are measured, and divided, as a whole.
Files in ``tests`` itself judge the whole tree, which any change can break: they run in every turn.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from stentor.tests.support.cpu_seconds import seconds_of

SLOW_TESTS: Final = Path(__file__).resolve().parent.parent / "slow_tests.txt"
LEAST: Final = 0.1
"""CPU seconds of all cases of a test; one that takes less runs in every turn."""
LEAST_FILE: Final = 2.0
"""CPU seconds of a file that is measured as a whole."""
WHOLE: Final = ("browser", "e2e")
"""Folders of these files."""
_WHOLE: Final = tuple(f"tests/{folder}/" for folder in WHOLE)
_HEAD: Final = f"""\
# CPU seconds of the tests that take {LEAST} or more, of all cases together, and of files that take {LEAST_FILE} or more
# as a whole. Written by `make every ARGS=--save-slow-tests`; how they are used: tests/support/tiers.py.
"""


def read_slow_tests(path: Path) -> dict[str, float]:
    """By test, named from the repository's root and without parameters."""
    lines = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {test: float(seconds) for seconds, test in lines}


def _judges_the_tree(test: str) -> bool:
    return file_of(test).count("/") == 1


def file_of(test: str) -> str:
    return test.partition("::")[0]


def name_of(test: str) -> str:
    """What a case is measured as: its node id without parameters, or its file."""
    file = file_of(test)
    return file if file.startswith(_WHOLE) else test.partition("[")[0]


class SlowTestsRecorder:
    """A plugin that adds up what tests take, and at the end writes it down for their files. A test of which every case
    was skipped stays what it was."""

    def __init__(self, alone: Mapping[str, bool], path: Path = SLOW_TESTS) -> None:
        """``alone``: whether it runs alone, of each test that is measured, by its node id."""
        self._alone = alone
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        alone = self._alone.get(report.nodeid)
        name = name_of(report.nodeid)
        if alone is not None and (report.when == "call" or name == file_of(name)) and not report.skipped:
            self._seconds[name] += seconds_of(report, alone=alone)

    def pytest_sessionfinish(self) -> None:
        there = {name_of(test) for test in self._alone}
        measured = {file_of(test) for test in there}
        known = read_slow_tests(self._path) if self._path.exists() else {}
        kept = {test: seconds for test, seconds in known.items() if test in there or file_of(test) not in measured}
        kept |= self._seconds
        root = self._path.parent.parent
        lines = [
            f"{seconds:5.1f} {test}\n"
            for test, seconds in sorted(kept.items())
            if seconds >= (LEAST_FILE if test == file_of(test) else LEAST)
            and not _judges_the_tree(test)
            and (root / file_of(test)).exists()
        ]
        self._path.write_text(_HEAD + "".join(lines))
