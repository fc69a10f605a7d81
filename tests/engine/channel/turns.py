"""Two processes that keep out of each other's way by nothing but loads and stores of shared words (Peterson 1981).

That holds only where both are sequentially consistent: where a load overtakes an earlier store, both get in at once,
and where what was stored before a word is seen after it, one counts on from an old number. The interpreter takes longer
between two accesses than a store buffer keeps a store, so that few processors show it who lack a fence.
"""

import mmap
import os
import sys

from stentor.engine.channel.atomics import Atomics, LibraryAtomics, machine_atomics

WANTS, TURN, COUNT, WORDS = (0, 16), 32, 48, 64
"""Words that each process sets while it wants to count, the one that says who waits, and the number: a line each."""
KINDS = (machine_atomics, LibraryAtomics)


def count(memory: memoryview, me: int, rounds: int) -> None:
    """Adds one to the number of each kind so many times, by plain moves."""
    for place, kind in enumerate(KINDS):
        _count(memory[8 * WORDS * place : 8 * WORDS * (place + 1)].cast("Q"), me, rounds, kind())


def _count(words: memoryview, me: int, rounds: int, atomics: Atomics) -> None:
    mine, theirs = WANTS[me], WANTS[1 - me]
    for _ in range(rounds):
        atomics.store(words, mine, 1)
        atomics.store(words, TURN, 1 - me)
        while atomics.load(words, theirs) and atomics.load(words, TURN) == 1 - me:
            os.sched_yield()
        words[COUNT] += 1
        atomics.store(words, mine, 0)


if __name__ == "__main__":
    shared = memoryview(mmap.mmap(int(sys.argv[1]), 8 * WORDS * len(KINDS)))
    print("ready", flush=True)
    count(shared, 1, int(sys.argv[2]))
