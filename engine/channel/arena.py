"""Shared memory for media: one anonymous ``memfd`` that the server writes and workers read.

Messages only name where media lie (:class:`stentor.protocols.ipc.inputs.ArenaRef`), since media would fill the
channels. The file has the size of the largest total of media. Memory is used only where it was written, and freed
memory goes back to the system. The file cannot shrink under a reader.
"""

import bisect
import contextlib
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from stentor.protocols.ipc.inputs import ArenaRef

from .errors import ChannelError, CorruptChannel
from .region import make_memfd, require_linux

ARENA_BYTES: Final = 4 << 30
"""Default size: more than the server admits of media at once."""


class ArenaFull(ChannelError):
    """There is no space until some media are freed."""


class ArenaReader:
    """A worker's read-only view of an arena."""

    def __init__(self, fd: int) -> None:
        """Map the arena and close ``fd``. Raises :class:`CorruptChannel` if it is no arena."""
        require_linux()
        self.size = os.fstat(fd).st_size
        if not self.size or not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise CorruptChannel(f"descriptor {fd} is no arena")
        self._data = memoryview(mmap.mmap(fd, self.size, prot=mmap.PROT_READ))
        os.close(fd)  # the mapping holds the file

    def read(self, ref: ArenaRef) -> memoryview:
        """A view of the bytes, valid until their request is released. Raises :class:`CorruptChannel`."""
        if not 0 <= ref.start <= ref.start + ref.length <= self.size:
            raise CorruptChannel(f"the arena has {self.size} bytes, and {ref} is not among them")
        return self._data[ref.start : ref.start + ref.length]


class Arena:
    """The server's view: allocates whole pages, first fit, and frees them.

    Media with equal digests are stored once, however many requests bring them.
    """

    def __init__(self, size: int = ARENA_BYTES) -> None:
        """``size``: bytes, a multiple of the page size. Raises :class:`.errors.ChannelError`."""
        require_linux()
        self.fd = make_memfd("stentor-arena")
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self.fd, size)
        except OSError as error:
            os.close(self.fd)
            raise ChannelError(
                f"cannot get the {size} bytes of shared memory that media may take: {error.strerror}; "
                "raise the limit of this process or container"
            ) from error
        self._close = weakref.finalize(self, os.close, self.fd)
        self.size = size
        self.used = 0
        """Bytes of allocated pages."""
        self._free: list[tuple[int, int]] = [(0, size)]
        """(start, bytes) in order; no two adjoin."""
        self._shared: dict[bytes, ArenaRef] = {}
        self._holders: dict[int, tuple[bytes, int]] = {}
        """(digest, number of holders) of shared media, by start."""

    def close(self) -> None:
        """Close the file and its mapping; mappings of readers stay valid. No call may follow."""
        self._map.close()
        self._close()

    def share(self, digest: bytes, data: bytes | bytearray) -> ArenaRef:
        """Store media, or add a holder if they are stored. Each caller must :meth:`free` them. Raises
        :class:`ArenaFull`."""
        if self.holds(digest):
            return self.hold(digest)
        ref = self.allocate(len(data))
        self.write(ref, data)
        self.adopt(digest, ref)
        return ref

    def allocate(self, length: int) -> ArenaRef:
        """Allocate ``length`` bytes, at least 1. Raises :class:`ArenaFull`."""
        needed = _pages(length)
        for index, (start, room) in enumerate(self._free):
            if room >= needed:
                self._free[index : index + 1] = [(start + needed, room - needed)] if room > needed else []
                self.used += needed
                return ArenaRef(start, length)
        raise ArenaFull(
            f"there is no room for {length} bytes of media: requests that have not ended hold {self.used} of "
            f"{self.size} bytes; send fewer at once"
        )

    def holds(self, digest: bytes) -> bool:
        """Whether media with this digest are shared."""
        return digest in self._shared

    def hold(self, digest: bytes) -> ArenaRef:
        """Add a holder of shared media."""
        ref = self._shared[digest]
        self._holders[ref.start] = digest, self._holders[ref.start][1] + 1
        return ref

    def adopt(self, digest: bytes, ref: ArenaRef) -> None:
        """Share allocated and written media under a digest, with one holder."""
        self._shared[digest] = ref
        self._holders[ref.start] = digest, 1

    @contextlib.contextmanager
    def writer(self, ref: ArenaRef, data: bytes | bytearray) -> Iterator[Callable[[], None]]:
        """Yield a function that writes ``data`` to ``ref``; it must return before the block ends.

        It may run in any thread and releases the interpreter's lock. Tens of megabytes take as many milliseconds.
        """
        fd = os.dup(self.fd)  # the arena may be closed meanwhile, and its descriptor reused

        def write() -> None:
            written = 0
            while written < len(data):
                written += os.pwrite(fd, memoryview(data)[written:], ref.start + written)

        try:
            yield write
        finally:
            os.close(fd)

    def write(self, ref: ArenaRef, data: bytes | bytearray, at: int = 0) -> ArenaRef:
        """Write into an allocation from byte ``at`` on; returns the range."""
        written = ref.cut(at, at + len(data))
        self._map[written.start : written.start + written.length] = data
        return written

    def free(self, ref: ArenaRef) -> bool:
        """Remove a holder of shared media, or free an allocation; nobody may read it afterwards. Returns whether it was
        freed."""
        digest, holders = self._holders.get(ref.start, (b"", 1))
        if holders > 1:
            self._holders[ref.start] = digest, holders - 1
            return False
        if self._holders.pop(ref.start, None) is not None:
            del self._shared[digest]
        start, end = ref.start, ref.start + _pages(ref.length)
        # Without support in the kernel the memory stays allocated for the next writer. A closed arena has freed it.
        with contextlib.suppress(OSError, ValueError):
            self._map.madvise(mmap.MADV_REMOVE, start, end - start)
        self.used -= end - start
        index = bisect.bisect(self._free, (start, 0))
        if index < len(self._free) and self._free[index][0] == end:
            end += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == start:
            index -= 1
            start = self._free.pop(index)[0]
        self._free.insert(index, (start, end - start))
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError, with the inconsistency, if there is one."""
        assert self.used + sum(room for _, room in self._free) == self.size, "bytes are lost, or counted twice"
        ends = [start + room for start, room in self._free]
        starts = [start for start, _ in self._free[1:]]
        assert all(end < start for end, start in zip(ends, starts, strict=False)), "free places touch or overlap"
        assert {ref.start for ref in self._shared.values()} == set(self._holders), "shared media and holders differ"


def _pages(length: int) -> int:
    """``length`` bytes rounded up to whole pages, at least one."""
    return -(-max(1, length) // mmap.PAGESIZE) * mmap.PAGESIZE
