"""A process that is one member of a lease; what it does is said by its arguments."""

import mmap
import os
import struct
import sys
import time
from types import SimpleNamespace
from typing import Any

from stentor.engine.sharing import lease
from stentor.engine.sharing.lease import Member

CLOCK = 8
"""Offset on the board of nanoseconds: the time of one that does what it is told."""
HOLDS = 16
"""Offset on the board of the number, from 1, of one that does what it is told and knows that it has the lease."""
STEPS = 50
"""Of one that does nothing else."""
NOTED = 300 << 20
"""Bytes that one which sets up says that it has taken."""
_WORD = struct.Struct("<Q")


def main() -> None:
    fd, board_fd, number = (int(part) for part in sys.argv[1:4])
    what, seconds = sys.argv[4], float(sys.argv[5])
    board = mmap.mmap(board_fd, 4096)
    member = Member(fd, number)
    print("ready", flush=True)
    if what == "hold":
        member.acquire()
        print("held", flush=True)
        time.sleep(seconds)
        return
    if what == "sets-up":
        with member.setting_up():
            print("begun", flush=True)
            sys.stdin.readline()
            member.note_memory(NOTED)
        print("noted", flush=True)
        sys.stdin.read()
        return
    if what == "directed":
        clock: Any = SimpleNamespace(monotonic_ns=lambda: _WORD.unpack_from(board, CLOCK)[0])
        vars(lease)["time"] = clock
        member.acquire()
        _WORD.pack_into(board, HOLDS, number + 1)
        for line in sys.stdin:
            _WORD.pack_into(board, HOLDS, 0)
            if line == "yield\n":
                member.yield_device()
                print("done", flush=True)
            else:
                member.release()
                print("done", flush=True)
                member.acquire()
            _WORD.pack_into(board, HOLDS, number + 1)
        return
    for _ in range(STEPS):
        with member:
            inside(board)


def inside(board: mmap.mmap) -> None:
    """A step of 2 ms. Raises AssertionError if another is here too."""
    assert _WORD.unpack_from(board, 0)[0] == 0, "two members held the lease at once"
    _WORD.pack_into(board, 0, os.getpid())
    time.sleep(0.002)
    assert _WORD.unpack_from(board, 0)[0] == os.getpid(), "another member came in"
    _WORD.pack_into(board, 0, 0)


if __name__ == "__main__":
    main()
