"""Installs peers, each into an environment of its own below ``~/.cache/stentor/peers``; what is there is kept.

    stentor bench install-peers              # all of them
    stentor bench install-peers llama.cpp

Nothing of it touches Stentor's own environment. A peer that cannot be installed says why in one line, and the next
one follows.
"""

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .places import PEERS, Installed, home, installed, mark_installed
from .recipes import RECIPES, InstallError, Recipe, Step

Say = Callable[[str], None]

INTERRUPTED: Final = 130
STOP_SECONDS: Final = 5.0
NINJA: Final = re.compile(r"\[(\d+)/(\d+)\]")
UNREACHABLE: Final = re.compile(r"Temporary failure in name resolution|Connection refused|Network is unreachable")
NO_CPU_TORCH: Final = re.compile(r"No matching distribution found for torch==\S+\+cpu")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    console = Console()
    names = list(dict.fromkeys(arguments.names)) or list(PEERS)
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        print(f"peers: no peer is called {unknown[0]}; expected {', '.join(PEERS)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names:
        recipe = RECIPES[name]
        wanted = Installed(name, recipe.version, recipe.number)
        if installed(name) == wanted and not arguments.again:
            console.print(f"{name} {recipe.version} is installed in {home(name)}", highlight=False)
            continue
        try:
            _install(name, recipe, arguments.torch_index, console)
            mark_installed(wanted)
        except KeyboardInterrupt:
            print(f"peers: {name} was interrupted; run the same again to go on", file=sys.stderr)
            return INTERRUPTED
        except (InstallError, OSError) as error:
            failed += 1
            print(f"peers: {name} could not be installed: {error}", file=sys.stderr)
        else:
            console.print(f"{name} {recipe.version} is installed in {home(name)}", highlight=False)
    return 1 if failed else 0


def take_steps(
    steps: Sequence[Step], log: IO[str], log_path: Path, begin: Callable[[int, Step], None], say: Say
) -> None:
    """Takes every step in turn, with all output in ``log``, which users find at ``log_path``.

    Raises :class:`InstallError` at the first that fails.
    """
    for number, step in enumerate(steps):
        begin(number, step)
        log.write(f"\n==> {step.what}\n")
        if callable(step.do):
            step.do()
        else:
            _run(step, step.do, log, log_path, say)


def _install(name: str, recipe: Recipe, torch_index: str | None, console: Console) -> None:
    folder = home(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "installed.json").unlink(missing_ok=True)
    steps = recipe.steps(folder, torch_index)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = TextColumn("[dim]{task.fields[said]}")
    with (
        (folder / "install.log").open("w", encoding="utf-8") as log,
        Progress(*columns, shown, console=console, transient=True) as progress,
    ):
        task = progress.add_task(name, total=len(steps), said="")

        def begin(number: int, step: Step) -> None:
            progress.update(task, completed=number, description=f"{name}: {step.what}", said="")
            if not console.is_terminal:
                console.print(f"{name}: {step.what}", highlight=False)

        take_steps(steps, log, folder / "install.log", begin, lambda line: progress.update(task, said=line))


def _run(step: Step, command: list[str], log: IO[str], log_path: Path, say: Say) -> None:
    log.write(f"$ {shlex.join(command)}\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    tail: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,  # so that all it starts can be ended with it
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                tail = [*tail[-200:], line.strip()]
                counted = NINJA.match(line)
                say(f"{counted[1]} of {counted[2]}" if counted else line.strip()[:60].replace("[", "\\["))
        except BaseException:
            _end(process)
            raise
    log.flush()
    if process.returncode:
        raise InstallError(_explain(step.what, process.returncode, tail, log_path))


def _end(process: subprocess.Popen[str]) -> None:
    """By SIGTERM first: ninja gives its compilers groups of their own, and ends them itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)


def _explain(what: str, status: int, tail: list[str], log: Path) -> str:
    said = "\n".join(tail)
    if NO_CPU_TORCH.search(said):
        return (
            "the package index has no CPU build of torch; add "
            "--torch-index https://download.pytorch.org/whl/cpu (make peers TORCH_INDEX=…)"
        )
    if UNREACHABLE.search(said):
        return "the package index cannot be reached; check the network and pip's settings"
    telling = [line for line in tail if re.search(r"\berror\b", line, re.IGNORECASE)] or [line for line in tail if line]
    last = f": {telling[-1][:200]}" if telling else ""
    return f"{what} ended with status {status}{last}; see {log}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stentor bench install-peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="PEER", help=f"{', '.join(PEERS)}; all of them by default")
    parser.add_argument("--torch-index", metavar="URL", help="a further package index, for a CPU build of torch")
    parser.add_argument("--again", action="store_true", help="take every step again, also where all is installed")
    return parser
