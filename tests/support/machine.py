"""What tests share while several processes run them: the machine, which some need for themselves."""

import fcntl
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class Machine:
    """Tests run side by side, but for one that is ``alone``: it waits for the others, and they wait for it.

    Locks of files, which end with the process that holds them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        with (self._folder / "machine").open("w") as machine:
            with (self._folder / "gate").open("w") as gate:
                # held while one waits, so that those who come later do not get the machine before
                fcntl.flock(gate, fcntl.LOCK_EX)
                fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
                fcntl.flock(gate, fcntl.LOCK_UN)
            try:
                yield
            finally:
                fcntl.flock(machine, fcntl.LOCK_UN)  # closed is not enough: a fork of this process may have it open


class ExpectedSkips:
    """Reasons for which tests may be skipped: patterns, a line each."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._patterns: Sequence[re.Pattern[str]] = [
            re.compile(line) for line in map(str.strip, lines) if line and not line.startswith("#")
        ]

    def unexpected(self, reasons: Iterable[str]) -> list[str]:
        return sorted({reason for reason in reasons if not any(each.search(reason) for each in self._patterns)})
