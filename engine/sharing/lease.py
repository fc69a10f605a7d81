"""The lease by which workers of several models share one device: whoever holds it computes.

A worker takes it for a step and gives it back; who waits gets it in order of *virtual time*, which is the time that a
member has held it, divided by its weight (start-time fair queueing, Goyal et al. 1996, with the lease as the link): two
that always have work get the device in proportion to their weights, and one that was idle has saved nothing up. Who
gives it back while it is still behind those that wait has it reserved for a moment, in which it comes with its next
step if it has one. A step that is long lets others in between its parts (:meth:`Member.yield_device`), so that they
wait for a slice and not for a step.

The state is a memory file without a name, passed by descriptor. Its words are u64, little-endian::

    byte
    0            mark      b"STENTORL"
    8            members   how many there are
    16           slice     nanoseconds that a holder may keep others waiting
    24           holder    number of the member that holds the lease, counted from 1; 0: it is free
    32           clock     virtual time at which the lease was last given, in nanoseconds
    40           reserved  number of the member for whom it is kept free, from 1; 0: nobody
    48           until     nanoseconds of the monotonic clock up to which that holds
    64 + 64 * m  member m: signals   counts how often it was woken; the low half is a futex
                 +8        waits     1 while it waits
                 +16       virtual   its virtual time, in nanoseconds
                 +24       weight
                 +32       memory    bytes of the device that it has taken, once it has been set up

    lock on byte LIFE + m   held by the process that is member m, as long as it lives
    lock on byte GUARD      held for the few microseconds in which the words are changed
    lock on byte SETUP      held by the member that measures and takes memory of the device

All locks are the kernel's record locks (``fcntl``), which end with the process that has them, whatever ended it: the
lease of a holder that was killed is taken over by the first that notices, and a member that died while it waited is
passed over. They belong to a process: two members in one process would not keep each other out, and each process must
hold one descriptor of the file only, for closing another would end its locks. The kernel's locks also order the words,
on every processor: who gets GUARD sees what was written under it before. Words that are read without it are hints
(:meth:`Member.is_wanted`, :func:`peek`), and the futex is compared by the kernel.
"""

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from stentor.protocols.ipc.config import MAX_LEASE_WEIGHT

SLICE_SECONDS: Final = 0.0025
"""Less than the shortest steps take: what steps take turns with others' parts comes in twice its time, evenly."""
MAX_MEMBERS: Final = 16

_MARK: Final = int.from_bytes(b"STENTORL", "little")
_SLICE, _HOLDER, _CLOCK, _RESERVED, _UNTIL = 2, 3, 4, 5, 6
_FIRST, _WORDS = 8, 8
_SIGNALS, _WAITS, _VIRTUAL, _WEIGHT, _MEMORY = 0, 1, 2, 3, 4
_BYTES: Final = 8 * (_FIRST + _WORDS * MAX_MEMBERS)
_GUARD: Final = 1 << 20
_LIFE: Final = _GUARD + 1
_SETUP: Final = _LIFE + MAX_MEMBERS

_LOOK_NS: Final = 50_000_000
"""After so long a wait the holder is looked at: it may be dead."""
_SETUP_LOOK_SECONDS: Final = 0.25
_PLACE_SECONDS: Final = 30.0
"""For a process that had our place, and was killed, to be dead."""
_PLACE_LOOK_SECONDS: Final = 0.01
_RESERVED_NS: Final = 1_000_000
"""Between two steps of a member that has more to do lies less."""

_FUTEX: Final = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98}
_FUTEX_WAIT: Final = 0
_FUTEX_WAKE: Final = 1


class LeaseError(Exception):
    """The lease cannot be made, or a descriptor is none; one line."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def create_lease(weights: Sequence[int], slice_seconds: float = SLICE_SECONDS) -> int:
    """A lease for as many members as there are ``weights``; its descriptor is the caller's to close.

    Weights are whole numbers from 1 to :data:`MAX_LEASE_WEIGHT`. Raises :class:`LeaseError` and OSError.
    """
    if not 1 <= len(weights) <= MAX_MEMBERS or not all(1 <= weight <= MAX_LEASE_WEIGHT for weight in weights):
        raise LeaseError(
            f"a lease is for 1 to {MAX_MEMBERS} models with shares from 1 to {MAX_LEASE_WEIGHT}, not {list(weights)}"
        )
    _futex_number()
    words = [0] * (_BYTES // 8)
    words[:4] = _MARK, len(weights), round(slice_seconds * 1e9), 0
    for number, weight in enumerate(weights):
        words[_FIRST + _WORDS * number + _WEIGHT] = weight
    fd = os.memfd_create("stentor-lease", os.MFD_CLOEXEC)
    try:
        os.write(fd, b"".join(word.to_bytes(8, "little") for word in words))
    except BaseException:
        os.close(fd)
        raise
    return fd


class Seen(NamedTuple):
    """A member, as one sees it who is none."""

    waits: bool
    holds: bool
    virtual: int
    """Grows with the time for which it has held the lease."""


def peek(fd: int) -> list[Seen]:
    """All members at about the same time."""
    words = struct.unpack(f"<{_BYTES // 8}Q", os.pread(fd, _BYTES, 0))
    places = [_FIRST + _WORDS * number for number in range(words[1])]
    return [
        Seen(bool(words[place + _WAITS]), words[_HOLDER] == number, words[place + _VIRTUAL])
        for number, place in enumerate(places, 1)
    ]


class Member:
    """This process as one of those that share a device. One thread at a time may use it."""

    def __init__(self, fd: int, number: int) -> None:
        """``number`` counts from 0; a process that had it before must be dead. Takes ``fd`` over.

        Raises :class:`LeaseError`.
        """
        if os.fstat(fd).st_size != _BYTES:
            raise LeaseError(f"descriptor {fd} is no lease: it has {os.fstat(fd).st_size} bytes")
        self._fd = fd
        self._map = mmap.mmap(fd, _BYTES)
        self._words = words = memoryview(self._map).cast("Q")
        if words[0] != _MARK or not 0 <= number < words[1]:
            raise LeaseError(f"descriptor {fd} is no lease with a member {number}")
        self._number = number
        self._own = _FIRST + _WORDS * number
        self._members = int(words[1])
        self._slice = int(words[_SLICE])
        self._since = 0
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._futex = _futex_number()
        self._signals = [
            ctypes.c_uint32.from_buffer(self._map, 8 * (_FIRST + _WORDS * member + _SIGNALS))
            for member in range(self._members)
        ]
        self._take_place()

    def acquire(self) -> None:
        """Waits for the lease. It must not be held."""
        words, own = self._words, self._own
        with self._guarded():
            wait = self._retry_ns()
            if not wait:
                self._begin()
                return
            words[own + _VIRTUAL] = max(words[own + _VIRTUAL], words[_CLOCK])
            words[own + _WAITS] = 1
            signals = int(words[own + _SIGNALS])
        while True:
            self._sleep(signals, wait)
            with self._guarded():
                if words[_HOLDER] == self._number + 1:  # it was handed over
                    self._since = time.monotonic_ns()
                    return
                wait = self._retry_ns()
                if not wait:
                    self._begin()
                    return
                signals = int(words[own + _SIGNALS])

    def release(self) -> None:
        """Gives it to the one whose turn it is. It must be held."""
        words, own = self._words, self._own
        with self._guarded():
            held = time.monotonic_ns() - self._since
            words[own + _VIRTUAL] += held // words[own + _WEIGHT]
            woken = self._hand_over()
        if woken is not None:
            self._wake(woken)

    def yield_device(self) -> None:
        """To be called between the parts of a long step: lets others in, where they have waited for a slice."""
        if self.is_wanted():
            self.release()
            self.acquire()

    def is_wanted(self) -> bool:
        """Whether others wait, and it has been held for a slice. It must be held."""
        return time.monotonic_ns() - self._since >= self._slice and self._anyone_waits()

    @contextmanager
    def setting_up(self, while_waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """One member at a time: what one measures of the device's memory, another must not change meanwhile.

        ``while_waiting`` is called again and again until it is our turn.
        """
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _SETUP)
                break
            except OSError:
                while_waiting()
                time.sleep(_SETUP_LOOK_SECONDS)
        try:
            self._words[self._own + _MEMORY] = 0
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _SETUP)

    def note_memory(self, taken: int) -> None:
        """So many bytes of the device are ours. To be called at the end of a set-up."""
        self._words[self._own + _MEMORY] = max(taken, 0)

    def memory_of_others(self) -> int:
        """Bytes of the device that the living members before us have taken."""
        with self._guarded():
            others = [m for m in range(self._members) if m != self._number and not self._is_dead(m)]
            return sum(int(self._words[_FIRST + _WORDS * m + _MEMORY]) for m in others)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # ---- the words; all of these but the last two need the guard

    def _take_place(self) -> None:
        """As member ``number``, whatever state a process before has left it in. Raises :class:`LeaseError`."""
        deadline = time.monotonic() + _PLACE_SECONDS
        while self._is_taken(self._number):
            if time.monotonic() >= deadline:
                raise LeaseError(f"the process that was member {self._number} before does not die")
            time.sleep(_PLACE_LOOK_SECONDS)
        woken = None
        with self._guarded():
            self._words[self._own + _WAITS] = 0
            if self._words[_HOLDER] == self._number + 1:
                self._words[_HOLDER] = 0
                woken = self._first_waiting()
        if woken is not None:
            self._wake(woken)

    def _retry_ns(self) -> int:
        """Nanoseconds after which to look again whether the lease can be taken; 0: it can be."""
        words = self._words
        if words[_HOLDER]:
            return 0 if self._is_dead(int(words[_HOLDER]) - 1) else _LOOK_NS
        if words[_RESERVED] in (0, self._number + 1):
            return 0
        return max(0, int(words[_UNTIL]) - time.monotonic_ns())

    def _begin(self) -> None:
        """Now it is ours, and nobody handed it to us."""
        words, own = self._words, self._own
        words[own + _WAITS] = 0
        words[own + _VIRTUAL] = words[_CLOCK] = max(words[own + _VIRTUAL], words[_CLOCK])
        words[_RESERVED] = 0
        words[_HOLDER] = self._number + 1
        self._since = time.monotonic_ns()

    def _hand_over(self) -> int | None:
        """To the first of those that wait, or to nobody; who has to be woken, if anyone."""
        words = self._words
        words[_RESERVED] = 0
        words[_HOLDER] = 0
        heir = self._first_waiting()
        if heir is None:
            return None
        base = _FIRST + _WORDS * heir
        words[base + _SIGNALS] += 1
        if words[self._own + _VIRTUAL] < words[base + _VIRTUAL]:
            words[_RESERVED] = self._number + 1
            words[_UNTIL] = time.monotonic_ns() + _RESERVED_NS
        else:
            words[base + _WAITS] = 0
            words[_CLOCK] = max(words[_CLOCK], words[base + _VIRTUAL])
            words[_HOLDER] = heir + 1
        return heir

    def _first_waiting(self) -> int | None:
        """The living member of the least virtual time among those that wait; the dead wait no more."""
        words = self._words
        waiting = [m for m in range(self._members) if words[_FIRST + _WORDS * m + _WAITS]]
        for member in sorted(waiting, key=lambda m: (words[_FIRST + _WORDS * m + _VIRTUAL], m)):
            if not self._is_dead(member):
                return member
            words[_FIRST + _WORDS * member + _WAITS] = 0
        return None

    def _is_dead(self, member: int) -> bool:
        if member == self._number or self._is_taken(member):
            return False
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _LIFE + member)
        return True

    def _is_taken(self, member: int) -> bool:
        """Whether another process lives as this member; where none does, its lock is ours from now on."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LIFE + member)
        except OSError:
            return True
        return False

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _GUARD)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _GUARD)

    def _anyone_waits(self) -> bool:
        words = self._words
        return any(words[_FIRST + _WORDS * m + _WAITS] for m in range(self._members))

    # ---- the futex

    def _sleep(self, signals: int, nanoseconds: int) -> None:
        """Until we are woken, unless that has been since ``signals`` were counted, or the time is over."""
        timeout = _Timespec(0, nanoseconds)
        word, seen = ctypes.byref(self._signals[self._number]), ctypes.c_uint32(signals & 0xFFFFFFFF)
        self._syscall(self._futex, word, _FUTEX_WAIT, seen, ctypes.byref(timeout), None, 0)

    def _wake(self, member: int) -> None:
        self._syscall(self._futex, ctypes.byref(self._signals[member]), _FUTEX_WAKE, 1, None, None, 0)


def _futex_number() -> int:
    number = _FUTEX.get(platform.machine().lower())
    if number is None:
        raise LeaseError(f"models cannot share a device on {platform.machine()}: serve one model a process")
    return number
