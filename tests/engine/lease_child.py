"""A process that is one member of a lease; what it does is said by its arguments."""

import mmap
import os
import struct
import sys
import time

from stentor.engine.sharing.lease import Member

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
            time.sleep(seconds)
            member.note_memory(NOTED)
        print("noted", flush=True)
        sys.stdin.read()
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what == "steps":
            with member:
                _inside(board, number, 0.002)
        elif what == "long":
            with member:
                for _ in range(100):
                    _inside(board, number, 0.003)
                    member.yield_device()
        elif what == "rarely":
            began = time.monotonic()
            with member:
                waited = time.monotonic() - began
                _inside(board, number, 0.001)
            print(f"{waited:.6f}", flush=True)
            time.sleep(0.03)


def _inside(board: mmap.mmap, number: int, seconds: float) -> None:
    """Raises AssertionError if another is here too; adds the time to the member's own."""
    assert _WORD.unpack_from(board, 0)[0] == 0, "two members held the lease at once"
    _WORD.pack_into(board, 0, os.getpid())
    began = time.monotonic_ns()
    time.sleep(seconds)
    assert _WORD.unpack_from(board, 0)[0] == os.getpid(), "another member came in"
    _WORD.pack_into(board, 0, 0)
    place = 64 + 8 * number
    _WORD.pack_into(board, place, _WORD.unpack_from(board, place)[0] + time.monotonic_ns() - began)


if __name__ == "__main__":
    main()
