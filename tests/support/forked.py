"""``--processes N``: the tests run in N processes, forked from the one that has collected them.

With pytest-xdist, whose processes each collect the 13,700 tests for themselves and tell one another every step, a test
that does nothing costs 3.3 ms of CPU time on three processes; here 0.8.
"""

import faulthandler
import json
import os
import select
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

import pytest
from _pytest._io import TerminalWriter

from stentor.tests.support.native_stack import make_teller
from stentor.tests.support.tiers import unit_of

_UNIT: Final = struct.Struct("<H")
_LENGTH: Final = struct.Struct("<I")
_MOST_UNITS: Final = 65_536 // _UNIT.size
"""What a pipe holds."""
_LAST_WORDS: Final = 1 << 16
"""Bytes of standard error that are told of a process that died."""


def units_of(items: Sequence[pytest.Item]) -> list[list[int]]:
    """Places of the items that one process runs, in order: those of a file, or of files that belong together."""
    units: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        units.setdefault(unit_of(item.nodeid.partition("::")[0]), []).append(place)
    return list(units.values())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="run the tests in so many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    config = session.config
    if config.getoption("processes") == 1 or config.option.collectonly or session.testsfailed:
        return None
    Forked(session, units_of(session.items), config.getoption("processes")).run()
    return True


class Forked:
    """One run. Who has nothing left takes the next unit."""

    def __init__(self, session: pytest.Session, units: list[list[int]], processes: int) -> None:
        if len(units) > _MOST_UNITS:
            raise pytest.UsageError(f"{len(units)} units of tests; at most {_MOST_UNITS} can wait in a pipe")
        self._session = session
        self._units = units
        self._wanted = min(processes, len(units))
        self._started = 0
        self._stopped = False
        self._tell_of_faults: Callable[[int], object] = int
        self._untaken, fill = os.pipe()
        os.write(fill, b"".join(map(_UNIT.pack, range(len(units)))))
        os.close(fill)

    def run(self) -> None:
        """Raises what ``pytest_runtestloop`` does."""
        factory = self._session.config._tmp_path_factory  # type: ignore[attr-defined]
        self._tell_of_faults = make_teller(factory.getbasetemp())  # the processes make theirs within it
        with suppress(ImportError):  # a GPU machine may have none
            from hypothesis import strategies

            strategies.text().validate()  # makes a table of all characters, for which each would take 2 s for itself
        children = [self._fork() for _ in range(self._wanted)]
        try:
            while children:
                for child in _wait(children):
                    ended = child.has_ended()
                    self._take(child)  # after that look: what it told at last is among it
                    if ended:
                        children.remove(child)
                        children += self._replaced(child)
                if self._is_over() and not self._stopped:
                    self._stop(children)
        finally:
            self._stop(children)
            for child in children:
                child.close()
            os.close(self._untaken)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _fork(self, first: Sequence[int] = ()) -> "_Child":
        """A process that runs what is in ``first``, and then units."""
        reported, tell = os.pipe()
        self._started += 1
        pid = os.fork()
        if pid == 0:
            untaken = _Untaken(self._units, self._untaken, tell)
            _run(self._session, untaken, first, f"process{self._started}", tell, self._tell_of_faults)
        os.close(tell)
        os.set_blocking(reported, False)
        return _Child(pid, reported, list(first))

    def _take(self, child: "_Child") -> None:
        hook = self._session.config.hook
        for kind, value in child.messages():
            if kind == "unit":
                child.left += self._units[value]
            elif kind == "stderr":
                child.stderr = os.open(f"/proc/{child.pid}/fd/{value}", os.O_RDONLY)
            elif kind == "report":
                if isinstance(why := value["longrepr"], list):  # of a skip, and a list in JSON alone
                    value["longrepr"] = tuple(why)
                report = hook.pytest_report_from_serializable(config=self._session.config, data=value)
                hook.pytest_runtest_logreport(report=report)
            else:
                item = self._session.items[value]
                child.left.remove(value)
                hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _replaced(self, child: "_Child") -> list["_Child"]:
        """Reaps it. Where it died of a test, that one has failed, and another process runs what it had left."""
        last_words = child.last_words()
        status = child.close()
        if not child.left or self._is_over():
            return []
        culprit, *left = child.left
        item = self._session.items[culprit]
        why = f"its process ended with {status}" if status >= 0 else f"its process was killed: {-status}"
        why += f"\n{last_words}" if last_words else ""
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        return [] if self._is_over() else [self._fork(left)]

    def _is_over(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _stop(self, children: Iterable["_Child"]) -> None:
        """Interrupts the children as Ctrl-C does, so that fixtures are torn down."""
        self._stopped = True
        for child in children:
            os.kill(child.pid, signal.SIGINT)


class _Child:
    """A process as its parent sees it."""

    def __init__(self, pid: int, pipe: int, left: list[int]) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.pipe = pipe
        self.left = left
        """Places of the tests that it has taken and not finished, in order."""
        self.stderr: int | None = None
        """The file that its standard error goes to while a test runs."""
        self._read = b""

    def messages(self) -> Iterator[Any]:
        """Kind and value of what can be read now."""
        try:
            while part := os.read(self.pipe, 1 << 16):
                self._read += part
        except BlockingIOError:
            pass
        while len(self._read) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._read)
            end = _LENGTH.size + length
            if len(self._read) < end:
                return
            message = json.loads(self._read[_LENGTH.size : end])
            self._read = self._read[end:]
            yield message

    def has_ended(self) -> bool:
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def last_words(self) -> str:
        """What the test that it runs has written to standard error."""
        return "" if self.stderr is None else os.pread(self.stderr, _LAST_WORDS, 0).decode(errors="replace")

    def close(self) -> int:
        """Of one that has ended: its exit code, or minus the signal that killed it."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        os.close(self.pidfd)
        if self.stderr is not None:
            os.close(self.stderr)
        return os.waitstatus_to_exitcode(status)


def _wait(children: Sequence[_Child]) -> list[_Child]:
    """Those that have told something, or have ended; at least one."""
    ready, _, _ = select.select([fd for child in children for fd in (child.pipe, child.pidfd)], [], [])
    return [child for child in children if child.pipe in ready or child.pidfd in ready]


class _Untaken:
    """The units that nobody has taken, as one of the processes sees them."""

    def __init__(self, units: Sequence[list[int]], pipe: int, tell: int) -> None:
        self._units = units
        self._pipe = pipe
        self._tell = tell

    def take(self) -> list[int]:
        """Empty where there is none left."""
        read = os.read(self._pipe, _UNIT.size)
        if not read:
            return []
        unit: int = _UNIT.unpack(read)[0]
        _write(self._tell, "unit", unit)
        return self._units[unit]


class _Teller:
    """A plugin of the processes that run tests: their reports go to the parent."""

    def __init__(self, config: pytest.Config, pipe: int) -> None:
        self._config = config
        self._pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        _write(self._pipe, "report", data)


def _write(pipe: int, kind: str, value: Any) -> None:
    message = json.dumps((kind, value)).encode()
    left = memoryview(_LENGTH.pack(len(message)) + message)
    while left:
        left = left[os.write(pipe, left) :]


def _run(
    session: pytest.Session,
    untaken: _Untaken,
    first: Sequence[int],
    name: str,
    pipe: int,
    tell_of_faults: Callable[[int], object],
) -> NoReturn:
    """All that a forked process does."""
    code = 1
    try:
        stderr = _be_apart(session.config, name)
        tell_of_faults(stderr)
        _write(pipe, "stderr", stderr)
        session.config.pluginmanager.register(_Teller(session.config, pipe))
        try:
            _run_units(session, untaken, first, pipe)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it may come from the terminal and from the parent
            session._setupstate.teardown_exact(None)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # what is to be done at the parent's exit is not done here


def _be_apart(config: pytest.Config, name: str) -> int:
    """What must not be shared with the others: the terminal, the files of captured output, the temporary folder.
    Returns the descriptor of the file that standard error goes to while a test runs."""
    plugins = config.pluginmanager
    for each in ("terminalreporter", "terminalprogress"):
        if plugins.hasplugin(each):
            plugins.unregister(name=each)
    # a test whose time is up tells its threads' stacks there, before it fails
    vars(config)["get_terminal_writer"] = lambda: TerminalWriter(sys.stderr)
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    captured = capture._global_capturing.err
    stderr: int = captured.tmpfile.fileno() if captured else 2
    faulthandler.enable(stderr)
    capture.suspend_global_capture()
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir(mode=0o700)
    return stderr


def _run_units(session: pytest.Session, untaken: _Untaken, first: Sequence[int], pipe: int) -> None:
    unit = first or untaken.take()
    while unit:
        following: Sequence[int] = ()
        for place, after in zip(unit, [*unit[1:], None], strict=True):
            if after is None:
                following = untaken.take()  # whose first test decides which fixtures are kept
                after = following[0] if following else None
            nextitem = None if after is None else session.items[after]
            session.config.hook.pytest_runtest_protocol(item=session.items[place], nextitem=nextitem)
            _write(pipe, "finished", place)
            if session.shouldfail or session.shouldstop:
                return
        unit = following
