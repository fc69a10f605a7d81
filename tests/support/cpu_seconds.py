"""What a test takes: the CPU time of the process that runs it and of the processes that it has waited for; a server is
counted where it ends. Of a test that is `alone` each second counts for two, also those in which it waits: another core
stands still."""

import resource
from collections.abc import Generator
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
    return sum(usage.ru_utime + usage.ru_stime for usage in each)
