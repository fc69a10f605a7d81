"""How a word of shared memory is read and published.

A channel needs two operations on aligned 64-bit words, both sequentially consistent: whoever sees
a stored word also sees everything written before it, and a store is visible to the other process
before any later load of this side is made. The second half is what keeps "publish, then look
whether the peer sleeps" and "say that I sleep, then look whether something was published" from
missing each other.

On x86-64 an aligned 8-byte ``mov``, which is what an item of ``memoryview.cast("Q")`` compiles to,
is already atomic, acquire when loading and release when storing (total store order). Only the
store-to-load order needs a fence, and every ``lock``-prefixed instruction is one: taking an
uncontended ``threading.Lock`` executes such an instruction, for some 50 ns. Other machines promise
less, and Python has no atomics: there a pair of functions from a C library must be injected.
"""

import operator
import platform
import threading
from collections.abc import Callable
from typing import Protocol, cast

from .errors import ChannelError


class Atomics(Protocol):
    """Sequentially consistent access to the words of a ``memoryview`` of format ``Q``."""

    def load(self, words: memoryview, index: int, /) -> int: ...

    def store(self, words: memoryview, index: int, value: int, /) -> None: ...


class X86Atomics:
    """Plain moves, and a lock of our own as the fence."""

    def __init__(self) -> None:
        self._fence = threading.Lock()

    # a built-in: a step of an engine makes a dozen of these calls
    load = staticmethod(cast("Callable[[memoryview, int], int]", operator.getitem))

    def store(self, words: memoryview, index: int, value: int, /) -> None:
        words[index] = value
        with self._fence:
            pass


def machine_atomics(machine: str | None = None) -> Atomics:
    """The atomics of this machine; raises :class:`ChannelError` where Python alone has none."""
    machine = platform.machine() if machine is None else machine
    if machine.lower() not in ("x86_64", "amd64"):
        raise ChannelError(
            f"channels need atomic loads and stores, which Python alone gives on x86-64 only; this machine is "
            f"{machine!r}: pass atomics= with load and store from a C library"
        )
    return X86Atomics()
