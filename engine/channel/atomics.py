"""Atomic loads and stores of words in shared memory.

A channel needs two operations on aligned 64-bit words, both sequentially consistent. A process that reads a stored word
also sees everything written before it. A store is visible to the other process before any later load of this side. The
second property makes "publish, then check whether the peer sleeps" and "announce sleep, then check whether something
was published" safe together.

On x86-64 an aligned 8-byte ``mov``, which is what an item of ``memoryview.cast("Q")`` compiles to, is already atomic,
with acquire loads and release stores (total store order). Only the order of a store before a load needs a fence, and
every ``lock``-prefixed instruction is one: taking an uncontended ``threading.Lock`` executes such an instruction in
about 50 ns.

Other processors, such as AArch64, may reorder plain stores for other cores, and Python has no atomics. There the C11
functions of ``libatomic``, the library of GCC and Clang, are used. On AArch64 they execute ``ldar`` and ``stlr``, which
are acquire and release, and a load never moves before an earlier store.
"""

import ctypes
import operator
import platform
import threading
from collections.abc import Callable
from typing import Final, Protocol, cast

from .errors import ChannelError

_SEQ_CST: Final = 5
"""``__ATOMIC_SEQ_CST`` of GCC and Clang."""


class Atomics(Protocol):
    """Sequentially consistent access to the words of a ``memoryview`` of format ``Q``."""

    def load(self, words: memoryview, index: int, /) -> int: ...

    def store(self, words: memoryview, index: int, value: int, /) -> None: ...


class X86Atomics:
    """Plain moves, with a private lock as the fence."""

    def __init__(self) -> None:
        self._fence = threading.Lock()

    # a built-in for speed: an engine step calls it a dozen times
    load = staticmethod(cast("Callable[[memoryview, int], int]", operator.getitem))

    def store(self, words: memoryview, index: int, value: int, /) -> None:
        words[index] = value
        with self._fence:
            pass


class LibraryAtomics:
    """C11 atomics of ``libatomic``: correct on every processor, at the cost of a C call each."""

    def __init__(self, name: str = "libatomic.so.1") -> None:
        """Raises :class:`ChannelError` if the library is missing."""
        try:
            # holds the interpreter's lock: a call is shorter than releasing it
            library = ctypes.PyDLL(name)
            self._load, self._store = library["__atomic_load_8"], library["__atomic_store_8"]
        except (OSError, AttributeError) as error:
            raise ChannelError(
                f"channels need the atomic loads and stores of {name}, which comes with a C compiler: "
                f"install libatomic1 (Debian, Ubuntu) or libatomic ({error})"
            ) from error
        self._load.argtypes, self._load.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_uint64
        self._store.argtypes, self._store.restype = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int), None

    def load(self, words: memoryview, index: int, /) -> int:
        return cast("int", self._load(ctypes.byref(_word(words, index)), _SEQ_CST))

    def store(self, words: memoryview, index: int, value: int, /) -> None:
        self._store(ctypes.byref(_word(words, index)), value, _SEQ_CST)


def machine_atomics(machine: str | None = None) -> Atomics:
    """The fastest atomics of this machine. Raises :class:`ChannelError` if there are none."""
    machine = platform.machine() if machine is None else machine
    return X86Atomics() if machine.lower() in ("x86_64", "amd64") else LibraryAtomics()


def _word(words: memoryview, index: int) -> ctypes.c_uint64:
    """The word as a ctypes object. Raises ValueError if ``index`` is out of range or the memory is released."""
    return ctypes.c_uint64.from_buffer(words, 8 * index)
