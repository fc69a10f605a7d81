"""The lease by which workers of several models share one device: only its holder computes.

A worker takes it for a step and releases it. Waiting members get it in order of *virtual time*: the time for which a
member has held it, divided by its weight (start-time fair queueing, Goyal et al. 1996). Two members that always have
work get the device in proportion to their weights; an idle member saves nothing up. If a member releases the lease
while its virtual time is behind that of those waiting, the lease stays reserved for it for a moment, in which its next
step usually comes. A long step yields between its parts (:meth:`Member.yield_device`), so that others wait for a slice,
not for a step.

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

All locks are the kernel's record locks (``fcntl``), which end with their process. So the lease of a killed holder is
taken over by the first member that notices, and a member that died waiting is passed over. Record locks belong to a
process: a process must have one member only, and one descriptor of the file, because closing another would release its
locks. The locks also order the words on every processor: the holder of GUARD sees what was written under it before.
Words read without it are hints (:meth:`Member.is_wanted`, :func:`peek`); the kernel compares the futex.
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
"""Shorter than the shortest steps, so that steps which alternate with parts of others take about twice their time,
evenly."""
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
"""Interval at which a waiting member checks whether the holder is dead."""
_SETUP_LOOK_SECONDS: Final = 0.25
_PLACE_SECONDS: Final = 30.0
"""How long to wait for the death of the killed process that had the same member number."""
_PLACE_LOOK_SECONDS: Final = 0.01
_RESERVED_NS: Final = 1_000_000
"""Longer than the gap between two steps of a busy member."""

_FUTEX: Final = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98}
_FUTEX_WAIT: Final = 0
_FUTEX_WAKE: Final = 1


class LeaseError(Exception):
    """The lease cannot be made, or a descriptor is not a lease; the message is one line."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def create_lease(weights: Sequence[int], slice_seconds: float = SLICE_SECONDS) -> int:
    """Make a lease for one member per weight. The caller closes the descriptor.

    Weights are integers from 1 to :data:`MAX_LEASE_WEIGHT`. Raises :class:`LeaseError` and OSError.
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


class MemberState(NamedTuple):
    """A member's state, for a process that is not a member."""

    waits: bool
    holds: bool
    virtual: int
    """Nanoseconds; grows while it holds the lease."""


def peek(fd: int) -> list[MemberState]:
    """The state of all members, read without a lock."""
    words = struct.unpack(f"<{_BYTES // 8}Q", os.pread(fd, _BYTES, 0))
    places = [_FIRST + _WORDS * number for number in range(words[1])]
    return [
        MemberState(bool(words[place + _WAITS]), words[_HOLDER] == number, words[place + _VIRTUAL])
        for number, place in enumerate(places, 1)
    ]


class Member:
    """This process as a member of a lease. Usable by one thread at a time."""

    def __init__(self, fd: int, number: int) -> None:
        """``number`` counts from 0; the process that had it before must be dead. Takes ownership of ``fd``.

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
        """Wait for the lease. It must not be held."""
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
        """Pass the lease to the next member. It must be held."""
        words, own = self._words, self._own
        with self._guarded():
            held = time.monotonic_ns() - self._since
            words[own + _VIRTUAL] += held // words[own + _WEIGHT]
            woken = self._hand_over()
        if woken is not None:
            self._wake(woken)

    def yield_device(self) -> None:
        """Let others compute if they have waited for a slice. Call it between the parts of a long step."""
        if self.is_wanted():
            self.release()
            self.acquire()

    def is_wanted(self) -> bool:
        """Whether others wait and the lease has been held for a slice. It must be held."""
        return time.monotonic_ns() - self._since >= self._slice and self._anyone_waits()

    @contextmanager
    def setting_up(self, while_waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Context for one member at a time, in which no other member changes the device's memory.

        ``while_waiting`` is called repeatedly until the context is entered.
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
        """Record the device memory of this member, in bytes, at the end of its set-up."""
        self._words[self._own + _MEMORY] = max(taken, 0)

    def memory_of_others(self) -> int:
        """Bytes of device memory recorded by the other living members."""
        with self._guarded():
            others = [m for m in range(self._members) if m != self._number and not self._is_dead(m)]
            return sum(int(self._words[_FIRST + _WORDS * m + _MEMORY]) for m in others)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # ---- the words; all but the last two need the guard

    def _take_place(self) -> None:
        """Become member ``number``, in whatever state a former process left it. Raises :class:`LeaseError`."""
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
        """Nanoseconds until the next attempt to take the lease; 0: it can be taken now."""
        words = self._words
        if words[_HOLDER]:
            return 0 if self._is_dead(int(words[_HOLDER]) - 1) else _LOOK_NS
        if words[_RESERVED] in (0, self._number + 1):
            return 0
        return max(0, int(words[_UNTIL]) - time.monotonic_ns())

    def _begin(self) -> None:
        """Take the free lease."""
        words, own = self._words, self._own
        words[own + _WAITS] = 0
        words[own + _VIRTUAL] = words[_CLOCK] = max(words[own + _VIRTUAL], words[_CLOCK])
        words[_RESERVED] = 0
        words[_HOLDER] = self._number + 1
        self._since = time.monotonic_ns()

    def _hand_over(self) -> int | None:
        """Pass the lease to the first waiting member, or free it; returns the member to wake, if any."""
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
        """The living waiting member with the least virtual time; dead members are unmarked."""
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
        """Whether another living process is this member. If not, this process gets the member's lock."""
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
        """Sleep until woken or until the time is over; returns at once if woken since ``signals`` was read."""
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
