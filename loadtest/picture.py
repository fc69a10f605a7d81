"""Draws what a command shows on a terminal: how the README's pictures are made.

stentor bench picture serve.svg --seconds 8 -- stentor serve
"""

import argparse
import io
import os
import pty
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text


def capture(command: Sequence[str], columns: int, seconds: float) -> str:
    """What the command writes to a terminal of its own in ``seconds``, shown meanwhile; it is interrupted then."""
    written = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 1 << 16)
        written.extend(data)
        return data

    environment = [f"COLUMNS={columns}", "LINES=60", "TERM=xterm-256color", "COLORTERM=truecolor"]
    pty.spawn(["env", *environment, "timeout", "--foreground", "--signal=INT", f"{seconds}", *command], read)
    return written.decode(errors="replace")


def settle(output: str) -> str:
    """What is left on the screen: bars that were redrawn appear once, as they were last seen or not at all."""
    lines: list[str] = []
    for line in output.replace("\r\n", "\n").split("\n"):
        if erased := line.count("\x1b[1A"):
            del lines[-erased:]
        lines.append(line.rpartition("\x1b[2K")[2].rpartition("\r")[2])
    return "\n".join(line.replace("\x1b[?25l", "").replace("\x1b[?25h", "") for line in lines if line.strip())


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="stentor bench picture", description=__doc__)
    parser.add_argument("picture", type=Path, help="an .svg file")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    shown = settle(capture(args.command, args.columns, args.seconds))
    console = Console(record=True, width=args.columns, force_terminal=True, file=io.StringIO())
    console.print(Text.from_ansi(f"$ {shlex.join(args.command)}\n{shown}"))
    args.picture.write_text(console.export_svg(title="stentor"))
    return 0
