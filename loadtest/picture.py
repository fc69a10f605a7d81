"""Draws what a command shows on a terminal: how the README's pictures are made.

stentor bench picture serve.svg --seconds 8 -- stentor serve
"""

import argparse
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import termios
import time
from fcntl import ioctl
from pathlib import Path

from rich.console import Console
from rich.text import Text

_ROWS = 60
_READ_BYTES = 1 << 16


def capture(command: list[str], columns: int, seconds: float) -> str:
    """What the command writes to a terminal of its own in ``seconds``; it is interrupted then."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([ours], [], [], left)[0]:
            break
        try:
            data = os.read(ours, _READ_BYTES)
        except OSError:  # the other side is closed: the command has ended
            break
        written += data
    process.send_signal(signal.SIGINT)
    process.wait()
    os.close(ours)
    return written.decode(errors="replace")


def settle(output: str) -> str:
    """What is left on the screen: bars that were redrawn appear once, as they were last seen or not at all."""
    lines: list[str] = []
    for line in output.replace("\r\n", "\n").split("\n"):
        erased = line.rpartition("\x1b[2K")[2] if "\x1b[2K" in line else line
        for _ in range(line.count("\x1b[1A")):
            if lines:
                lines.pop()
        lines.append(erased.rpartition("\r")[2])
    return "\n".join(line.replace("\x1b[?25l", "").replace("\x1b[?25h", "") for line in lines if line.strip())


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench picture", description=__doc__)
    parser.add_argument("picture", type=Path, help="an .svg file")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    shown = settle(capture(args.command, args.columns, args.seconds))
    console = Console(record=True, width=args.columns, force_terminal=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(f"$ {shlex.join(args.command)}\n{shown}"))
    args.picture.write_text(console.export_svg(title="stentor"))
    return 0
