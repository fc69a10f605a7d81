"""Media on their way to a worker: one anonymous ``memfd`` that the server writes and workers read.

Channels carry messages, and media would fill them: a message names where they lie
(:class:`stentor.protocols.ipc.inputs.ArenaRef`). The file is as large as all of its media may become, and takes memory
only where it has been written: what is freed goes back to the system. It cannot shrink under a reader.
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
"""Of an arena, at most: more than the server admits of media at once."""


class ArenaFull(ChannelError):
    """There is no room for more media until some have been freed."""


class ArenaReader:
    """What a worker sees of an arena."""

    def __init__(self, fd: int) -> None:
        """Takes the descriptor over. Raises :class:`CorruptChannel` if it is no arena."""
        require_linux()
        self.size = os.fstat(fd).st_size
        if not self.size or not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise CorruptChannel(f"descriptor {fd} is no arena")
        self._data = memoryview(mmap.mmap(fd, self.size, prot=mmap.PROT_READ))
        os.close(fd)  # the mapping has one of its own

    def read(self, ref: ArenaRef) -> memoryview:
        """The bytes themselves, which stay until their request is released. Raises :class:`CorruptChannel`."""
        if not 0 <= ref.start <= ref.start + ref.length <= self.size:
            raise CorruptChannel(f"the arena has {self.size} bytes, and {ref} is not among them")
        return self._data[ref.start : ref.start + ref.length]


class Arena:
    """What its owner sees: hands out bytes by whole pages, the first that fit, and takes them back.

    Media of one digest lie there once, however many requests bring them.
    """

    def __init__(self, size: int = ARENA_BYTES) -> None:
        """``size``: a whole number of pages. Raises :class:`.errors.ChannelError`."""
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
        """Bytes that are somebody's, whole pages."""
        self._free: list[tuple[int, int]] = [(0, size)]
        """(start, bytes) in order; no two adjoin."""
        self._shared: dict[bytes, ArenaRef] = {}
        self._holders: dict[int, tuple[bytes, int]] = {}
        """By start: the digest of what is shared, and how many hold it."""

    def close(self) -> None:
        """Gives memory and descriptors back; readers keep what they have mapped. Nothing else may follow."""
        self._map.close()
        self._close()

    def share(self, digest: bytes, data: bytes | bytearray) -> ArenaRef:
        """Where these media lie, to be freed by everyone who asks. Raises :class:`ArenaFull`."""
        if self.holds(digest):
            return self.hold(digest)
        ref = self.allocate(len(data))
        self.write(ref, data)
        self.adopt(digest, ref)
        return ref

    def allocate(self, length: int) -> ArenaRef:
        """Room for so many bytes, at least 1. Raises :class:`ArenaFull`."""
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
        """Whether these media lie there for all."""
        return digest in self._shared

    def hold(self, digest: bytes) -> ArenaRef:
        """One holder more of media that it :meth:`holds`."""
        ref = self._shared[digest]
        self._holders[ref.start] = digest, self._holders[ref.start][1] + 1
        return ref

    def adopt(self, digest: bytes, ref: ArenaRef) -> None:
        """What was allocated and has been written lies there for all from now on, with one holder."""
        self._shared[digest] = ref
        self._holders[ref.start] = digest, 1

    @contextlib.contextmanager
    def writer(self, ref: ArenaRef, data: bytes | bytearray) -> Iterator[Callable[[], None]]:
        """What writes into what was allocated, from any thread and without the interpreter's lock: tens of megabytes
        take as many milliseconds. It must have returned when the block ends."""
        fd = os.dup(self.fd)  # the arena may be closed meanwhile, and its number be another file's

        def write() -> None:
            written = 0
            while written < len(data):
                written += os.pwrite(fd, memoryview(data)[written:], ref.start + written)

        try:
            yield write
        finally:
            os.close(fd)

    def write(self, ref: ArenaRef, data: bytes | bytearray, at: int = 0) -> ArenaRef:
        """Writes into what was allocated, from its byte ``at`` on; returns where it lies."""
        written = ref.cut(at, at + len(data))
        self._map[written.start : written.start + written.length] = data
        return written

    def free(self, ref: ArenaRef) -> bool:
        """One holder fewer of what is shared, or the end of what was allocated, which nothing may read any more; says
        whether it was the last."""
        digest, holders = self._holders.get(ref.start, (b"", 1))
        if holders > 1:
            self._holders[ref.start] = digest, holders - 1
            return False
        if self._holders.pop(ref.start, None) is not None:
            del self._shared[digest]
        start, end = ref.start, ref.start + _pages(ref.length)
        # a kernel that cannot keeps the memory for the next that is written there; one that is closed has given it back
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
        """Raise AssertionError with what is wrong, if anything is."""
        assert self.used + sum(room for _, room in self._free) == self.size, "bytes are lost, or counted twice"
        ends = [start + room for start, room in self._free]
        starts = [start for start, _ in self._free[1:]]
        assert all(end < start for end, start in zip(ends, starts, strict=False)), "free places touch or overlap"
        assert {ref.start for ref in self._shared.values()} == set(self._holders), "shared media and holders differ"


def _pages(length: int) -> int:
    """Bytes of the whole pages that ``length`` bytes take."""
    return -(-max(1, length) // mmap.PAGESIZE) * mmap.PAGESIZE
