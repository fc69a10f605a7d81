"""What large requests took goes back to the system once they are over."""

import subprocess
import sys

from stentor.engine.processes.freed_memory import GROWN
from stentor.server.overload.memory_budget import Trimmer

MiB = 1 << 20


class Process:
    """So much lives, and so much has been freed and is still there."""

    def __init__(self) -> None:
        self.live = 60 * MiB
        self.freed = 0
        self.trims = 0

    def resident(self) -> int:
        return self.live + self.freed

    def give_back(self) -> None:
        self.freed = 0
        self.trims += 1


def looks(trimmer: Trimmer, count: int) -> None:
    for _ in range(count):
        if trimmer.is_due():
            trimmer.trim()


def test_what_has_been_freed_goes_back_at_the_next_look_and_an_idle_server_is_left_alone() -> None:
    process = Process()
    trimmer = Trimmer(process.resident, process.give_back)
    looks(trimmer, 100)
    assert process.trims == 0
    process.freed = 500 * MiB
    looks(trimmer, 1)
    assert (process.trims, process.resident()) == (1, 60 * MiB)
    process.freed = GROWN - 1
    looks(trimmer, 100)
    assert process.trims == 1


def test_what_was_in_use_at_first_goes_back_within_a_minute() -> None:
    process = Process()
    trimmer = Trimmer(process.resident, process.give_back)
    process.live += 500 * MiB
    looks(trimmer, 3)
    assert process.trims == 1, "it is not tried at every look"
    process.live, process.freed = 60 * MiB, 500 * MiB
    looks(trimmer, 12)
    assert process.resident() == 60 * MiB


def test_a_process_that_made_many_small_things_is_as_small_as_before() -> None:
    program = (
        "from stentor.engine.processes.freed_memory import GROWN, grown_since, resident_bytes\n"
        "import ctypes\n"
        "libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p; libc.free.argtypes = [ctypes.c_void_p]\n"
        "born = resident_bytes()\n"
        "made = [libc.malloc(4000) for _ in range(30_000)]\n"
        "for place in made: ctypes.memset(place, 1, 4000)\n"
        "last = made.pop()\n"  # what lives at the end of the heap keeps all below it
        "for place in made: libc.free(place)\n"
        "assert resident_bytes() - born > 2 * GROWN\n"
        "assert grown_since(born) < GROWN\n"
    )
    program = program.replace("for place in made: ctypes.memset(place, 1, 4000)\n", _FILL)
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


_FILL = "for place in made: ctypes.memset(ctypes.c_void_p(place), 1, 4000)\n"
