"""Start-up display: progress while a model loads, and the use of memory."""

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from stentor.engine.worker.memory import format_bytes
from stentor.protocols.ipc.actors import EngineReady, MemoryLine
from stentor.protocols.ipc.actors import Progress as ProgressMessage

from ..observability.processes import resident_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

logger = logging.getLogger(__name__)


def open_terminal() -> "Console | None":
    """The terminal of stderr; None if it is not one."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console  # late: some 50 modules, that a log needs none of

    return Console(stderr=True)


class StartupDisplay:
    """Progress bars on a terminal; elsewhere one log line when a phase begins and one when it ends.

    Phases of several models go on side by side, each under its model's name.
    """

    def __init__(self, terminal: "Console | None") -> None:
        self._bars = None if terminal is None else _make_bars(terminal)
        self._tasks: dict[str, TaskID] = {}
        self._begun: set[str] = set()
        self._ended: set[str] = set()

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, message: ProgressMessage, model: str = "") -> None:
        """``model`` names one of several."""
        phase = f"{model}: {message.phase}" if model else message.phase
        if self._bars is not None:
            if phase not in self._tasks:
                self._tasks[phase] = self._bars.add_task(phase, total=message.total)
            self._bars.update(self._tasks[phase], completed=message.done, total=message.total)
        elif phase not in self._begun:
            self._begun.add(phase)
            logger.info("%s…", phase)
        if message.done >= message.total and phase not in self._ended:
            self._ended.add(phase)
            if self._bars is None:
                logger.info("%s: done", phase)


def _make_bars(terminal: "Console") -> "Progress":
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    return Progress(*columns, TimeElapsedColumn(), console=terminal, transient=True)


def report_ready(
    terminal: "Console | None",
    engines: Mapping[str, EngineReady],
    others: Mapping[str, int | None],
    address: str,
    seconds: float,
    hint: str = "",
) -> None:
    """The start-up summary, by the names of the models; the first is the chat model.

    ``others`` have a process instead of an engine, with its pid if known. ``hint`` is for the user at the terminal.
    """
    several = len(engines) + len(others) > 1
    for name, ready in engines.items():
        for note in ready.notes:
            logger.info("%s", f"{name}: {note}" if several else note)
        _report_memory(terminal, ready.memory, name if several else "")
    for name, pid in others.items():
        if pid is not None and (taken := resident_bytes(pid)) is not None:
            _report_memory(terminal, [MemoryLine("process", taken, "resident now: voice and code")], name)
    context = next(iter(engines.values())).max_model_len
    logger.info("context of %d tokens; ready in %.1f s on %s", context, seconds, address)
    if hint and terminal is not None:
        terminal.print(hint, markup=False, highlight=False, soft_wrap=True)


def first_steps(address: str, *, keys: bool) -> str:
    """First commands for a new user of the demo model; ``keys``: the server needs one."""
    body = '{"messages": [{"role": "user", "content": "Hello!"}]}'
    key = " -H 'authorization: Bearer KEY'" if keys else ""
    return (
        "Try it:\n"
        f"  in a browser   {address}/\n"
        f"  in a shell     curl {address}/v1/chat/completions{key} -d '{body}'\n"
        f"  in a client    OPENAI_BASE_URL={address}/v1, OLLAMA_HOST={address} or ANTHROPIC_BASE_URL={address}\n"
        "  another model  stentor serve OWNER/NAME (on Hugging Face), a folder or a .gguf file"
    )


def _report_memory(terminal: "Console | None", lines: Sequence[MemoryLine], name: str) -> None:
    """A table on a terminal, log lines elsewhere. ``name`` names one of several models."""
    title = f"memory of {name}" if name else "memory"
    if terminal is not None:
        from rich.table import Table

        table = Table(title=title, title_justify="left", show_edge=False)
        table.add_column("what")
        table.add_column("size", justify="right")
        table.add_column("")
        for line in lines:
            table.add_row(line.what, format_bytes(line.bytes), line.note)
        terminal.print(table)
    else:
        for line in lines:
            logger.info("%s: %s %s (%s)", title, line.what, format_bytes(line.bytes), line.note)
