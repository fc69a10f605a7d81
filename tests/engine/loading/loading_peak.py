"""Loads each checkpoint that is named, in a process of its own, and prints the bytes by which its memory grew at most.

Run as a module. The first checkpoint is loaded before each, so that libraries have what they take once.
"""

import gc
import os
import sys
from pathlib import Path

import torch

from stentor.tests.parity.paged import PagedDecoder


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (size,) = [int(line.split()[1]) for line in lines if line.startswith(f"{name}:")]
    return size << 10


def _load(folder: str) -> PagedDecoder:
    return PagedDecoder(Path(folder), dtype=torch.bfloat16)


def _print_growth(folder: str) -> None:
    _load(sys.argv[1])
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = _status("VmRSS")
    _load(folder)
    print(_status("VmHWM") - before, flush=True)


def main() -> None:
    for folder in sys.argv[2:]:
        if (child := os.fork()) == 0:
            _print_growth(folder)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
