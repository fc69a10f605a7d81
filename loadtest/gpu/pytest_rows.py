"""A pytest plugin (``-p stentor.loadtest.gpu.pytest_rows``): a row for each test when it has ended, and none run twice.

``TEST_ROWS`` names the file that rows go to; tests that have passed by ``TEST_ROWS_DONE`` are left out. With
``TEST_ROWS_FAILED`` only those run that failed by that file.
"""

import os
from pathlib import Path

import pytest

from . import rows

_MOST = 6000
"""Characters of a failure that are kept, from its end."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has passed before, or what has not failed."""
    done, failed = os.environ.get("TEST_ROWS_DONE"), os.environ.get("TEST_ROWS_FAILED")
    passed = {row["test"] for row in rows.read(Path(done)) if row.get("outcome") == "passed"} if done else set()
    wanted = rows.failed(Path(failed)) if failed else None

    def runs(item: pytest.Item) -> bool:
        return item.nodeid not in passed and (wanted is None or item.nodeid in wanted)

    if left_out := [item for item in items if not runs(item)]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if runs(item)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file = os.environ.get("TEST_ROWS")
    if file is None or "PYTEST_XDIST_WORKER" in os.environ:  # the parent process gets the rows of all
        return
    if report.when == "call" or report.outcome != "passed":
        row = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
        if report.outcome != "passed":
            row["why"] = str(report.longrepr)[-_MOST:]
        rows.append(Path(file), row)
