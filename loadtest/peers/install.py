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
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from rich.console import Console
from rich.markup import escape

from ..record import save_record
from ..tool import FAILED, INTERRUPTED, MISUSED, complain
from .places import home, installed
from .recipes import RECIPES, InstallError, Step

Say = Callable[[str], None]

STOP_SECONDS: Final = 5.0
NINJA: Final = re.compile(r"\[(\d+)/(\d+)\]")
UNREACHABLE: Final = re.compile(r"Temporary failure in name resolution|Connection refused|Network is unreachable")
NO_CPU_TORCH: Final = re.compile(r"No matching distribution found for torch==\S+\+cpu")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="stentor bench install-peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="PEER", help=f"{', '.join(RECIPES)}; all of them by default")
    parser.add_argument("--torch-index", metavar="URL", help="a further package index, for a CPU build of torch")
    parser.add_argument("--again", action="store_true", help="take every step again, also where all is installed")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.names if name not in RECIPES]
    if unknown:
        return complain(parser.prog, f"no peer is called {unknown[0]}; expected {', '.join(RECIPES)}", MISUSED)
    console = Console()
    failed = 0
    for name in dict.fromkeys(arguments.names or RECIPES):
        version = RECIPES[name].version
        try:
            if installed(name) != version or arguments.again:
                _install(name, arguments.torch_index, console)
            console.print(f"{name} {version} is installed in {home(name)}", highlight=False)
        except KeyboardInterrupt:
            return complain(parser.prog, f"{name} was interrupted; run the same again to go on", INTERRUPTED)
        except (InstallError, OSError) as error:
            failed = complain(parser.prog, f"{name} could not be installed: {error}", FAILED)
    return failed


def _install(name: str, torch_index: str | None, console: Console) -> None:
    folder, recipe = home(name), RECIPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "installed.json"
    mark.unlink(missing_ok=True)
    with console.status(name) as status:

        def begin(what: str) -> None:
            console.print(f"{name}: {what}", highlight=False)

        take_steps(recipe.steps(folder, torch_index), folder / "install.log", begin, status.update)
    save_record({"peer": name, "version": recipe.version}, mark)


def take_steps(steps: Sequence[Step], log_path: Path, begin: Say, say: Say) -> None:
    """Takes every step in turn, with all output in ``log_path``; ``say`` gets each line of it.

    Raises :class:`InstallError` at the first that fails.
    """
    with log_path.open("w", encoding="utf-8") as log:
        for step in steps:
            begin(step.what)
            log.write(f"\n==> {step.what}\n")
            if callable(step.do):
                step.do()
            else:
                _run(step.what, step.do, log, say)


def _run(what: str, command: list[str], log: IO[str], say: Say) -> None:
    log.write(f"$ {shlex.join(command)}\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    tail: deque[str] = deque(maxlen=200)
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
                tail.append(line.strip())
                counted = NINJA.match(line)
                say(f"{counted[1]} of {counted[2]}" if counted else escape(line.strip()[:60]))
        except BaseException:
            _end(process)
            raise
    if process.returncode:
        raise InstallError(_explain(what, process.returncode, tail, log.name))


def _end(process: subprocess.Popen[str]) -> None:
    """By SIGTERM first: ninja gives its compilers groups of their own, and ends them itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)


def _explain(what: str, status: int, tail: Sequence[str], log: str) -> str:
    said = "\n".join(tail)
    if NO_CPU_TORCH.search(said):
        return "the package index has no CPU build of torch; add --torch-index https://download.pytorch.org/whl/cpu"
    if UNREACHABLE.search(said):
        return "the package index cannot be reached; check the network and pip's settings"
    telling = [line for line in tail if re.search(r"\berror\b", line, re.IGNORECASE)] or [line for line in tail if line]
    last = f": {telling[-1][:200]}" if telling else ""
    return f"{what} ended with status {status}{last}; see {log}"
