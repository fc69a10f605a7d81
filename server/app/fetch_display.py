"""Shows on stderr how a fetch goes: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PLAIN_SECONDS: Final = 5.0
MEGABYTE: Final = 1_000_000


class FetchDisplay:
    """A context manager; :meth:`show` has the signature of a fetch listener."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._said = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Bytes done of ``total``, which is 0 while unknown."""
        if sys.stderr.isatty():
            self._show_bar(what, done, total)
        else:
            self._show_line(what, done, total)
        self._what = what

    def _show_bar(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = _start_bar()
        if self._task is None or what != self._what:
            if self._task is not None:  # the previous file has ended; its bar would otherwise continue
                self._bar.update(self._task, total=1, completed=1)
            self._task = self._bar.add_task(what, total=total or None)
        self._bar.update(self._task, completed=done, total=total or None)

    def _show_line(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what == self._what and now - self._said < PLAIN_SECONDS:
            return
        self._said = now
        amount = f" {done / MEGABYTE:.0f} of {total / MEGABYTE:.0f} MB" if total else ""
        print(f"{what}{amount}", file=sys.stderr, flush=True)


def _start_bar() -> "Progress":
    from rich.console import Console  # late: a filled cache shows no bar, and this takes a tenth of a second
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.start()
    return bar
