"""A pytest plugin (``-p stentor.loadtest.gpu.pytest_rows``): a row for each test when it has ended, and none run twice.

``TEST_ROWS`` names the file that rows go to; tests that have passed by ``TEST_ROWS_DONE`` are left out.
"""

import os
from pathlib import Path

import pytest

from . import rows

_MOST = 6000
"""Characters of a failure that are kept, from its end."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has passed before."""
    done = os.environ.get("TEST_ROWS_DONE")
    passed = {row["test"] for row in rows.read(Path(done)) if row.get("outcome") == "passed"} if done else set()
    again = [item for item in items if item.nodeid in passed]
    if again:
        config.hook.pytest_deselected(items=again)
        items[:] = [item for item in items if item.nodeid not in passed]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file = os.environ.get("TEST_ROWS")
    if file is None or "PYTEST_XDIST_WORKER" in os.environ:  # the process that started it hears of all
        return
    if report.when == "call" or report.outcome != "passed":
        row = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
        if report.outcome != "passed":
            row["why"] = str(report.longrepr)[-_MOST:]
        rows.append(Path(file), row)
