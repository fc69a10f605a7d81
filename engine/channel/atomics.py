"""How a word of shared memory is read and published.

A channel needs two operations on aligned 64-bit words, both sequentially consistent: whoever sees
a stored word also sees everything written before it, and a store is visible to the other process
before any later load of this side is made. The second half is what keeps "publish, then look
whether the peer sleeps" and "say that I sleep, then look whether something was published" from
missing each other.

On x86-64 an aligned 8-byte ``mov``, which is what an item of ``memoryview.cast("Q")`` compiles to,
is already atomic, acquire when loading and release when storing (total store order). Only the
store-to-load order needs a fence, and every ``lock``-prefixed instruction is one: taking an
uncontended ``threading.Lock`` executes such an instruction, for some 50 ns.

Other processors, AArch64 among them, let other cores see plain stores in another order, and Python has no
atomics. There ``libatomic`` has them, the library of GCC and Clang for C11's: its functions take an address and
a memory order. On AArch64 they execute ``ldar`` and ``stlr``, which are acquire and release, and of which a load is
never made before a store that precedes it.
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
    """Plain moves, and a lock of our own as the fence."""

    def __init__(self) -> None:
        self._fence = threading.Lock()

    # a built-in: a step of an engine makes a dozen of these calls
    load = staticmethod(cast("Callable[[memoryview, int], int]", operator.getitem))

    def store(self, words: memoryview, index: int, value: int, /) -> None:
        words[index] = value
        with self._fence:
            pass


class LibraryAtomics:
    """C11's atomics, out of ``libatomic``: right on every processor, and a call of a C library each time."""

    def __init__(self, name: str = "libatomic.so.1") -> None:
        """Raises :class:`ChannelError` where there is no such library."""
        try:
            # keeps the interpreter's lock: a call takes less time than giving it up
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
    """The atomics of this machine; raises :class:`ChannelError` where it has none."""
    machine = platform.machine() if machine is None else machine
    return X86Atomics() if machine.lower() in ("x86_64", "amd64") else LibraryAtomics()


def _word(words: memoryview, index: int) -> ctypes.c_uint64:
    """The word itself; raises ValueError behind the last, and where the memory has been given back."""
    return ctypes.c_uint64.from_buffer(words, 8 * index)
