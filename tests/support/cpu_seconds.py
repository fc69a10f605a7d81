"""What a test takes: the CPU time of the process that runs it, of the processes that it has waited for, and of those
below it that still run, such as a server that tests share. Of a test that is `alone` each second counts for two, also
those in which it waits: another core stands still."""

import os
import resource
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

_ALONE: Final = 2


def seconds_of(report: pytest.TestReport, *, alone: bool) -> float:
    """Of one phase, measured by :class:`CpuSeconds`."""
    return _ALONE * report.duration if alone else getattr(report, "cpu_seconds", 0.0)


class CpuSeconds:
    """A plugin that puts what each phase of a test has taken into its report, in the processes that run tests."""

    def __init__(self) -> None:
        self._begun = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._begun = _cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        ended = _cpu_seconds()
        vars(report)["cpu_seconds"] = ended - self._begun
        self._begun = ended
        return report


def _cpu_seconds() -> float:
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own = sum(usage.ru_utime + usage.ru_stime for usage in each)
    return own + sum(map(_seconds_of, _below(Path("/proc/self"))))


def _below(process: Path) -> Iterator[Path]:
    """The processes that it has started, and that these have."""
    with suppress(OSError):  # it has ended meanwhile
        for task in (process / "task").iterdir():
            for child in (task / "children").read_text().split():
                yield Path("/proc", child)
                yield from _below(Path("/proc", child))


def _seconds_of(process: Path) -> float:
    """Its own, and of those that it has waited for."""
    with suppress(OSError):
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0
