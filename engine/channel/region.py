"""The shared memory of a channel: one ring for each direction in an anonymous ``memfd``.

::

    byte
    0      magic    u64  b"STENTOR1", little-endian
    8      capacity u64  bytes of one ring, a power of two
    64     control of the ring parent → child (see below)
    320    control of the ring child → parent
    4096   data of the ring parent → child, ``capacity`` bytes
    4096 + capacity
           data of the ring child → parent, ``capacity`` bytes

    control of one ring, two lines of u64, each written by one side only
    +0     writer: position (tail), waits, closed
    +128   reader: position (head), waits, closed

The memory has no name. It is sealed against resizing, since shrinking would send the other side a SIGBUS. All of it is
allocated at creation, so that a lack of memory is reported then, not by a signal within a frame. Sizes are checked at
creation and when attaching.
"""

import fcntl
import mmap
import os
import sys
from typing import Final, Self

from .errors import ChannelError, CorruptChannel

MAGIC: Final = int.from_bytes(b"STENTOR1", "little")
DATA_START: Final = 4096
CONTROL_START: Final = 64
CONTROL_BYTES: Final = 256
READER_LINE: Final = 128
MIN_CAPACITY: Final = 1 << 6
MAX_CAPACITY: Final = 1 << 30

_MFD_NOEXEC_SEAL: Final = 0x8
"""From linux/memfd.h; the os module does not name it. Kernels before 6.3 refuse it."""


def require_linux(platform: str = sys.platform) -> None:
    """Raise :class:`ChannelError` on other systems than Linux."""
    if platform != "linux":
        raise ChannelError(f"Stentor runs on Linux only (it needs memfd, eventfd and pidfd); this is {platform!r}")


class Region:
    """A mapped channel memory: ``data`` is all of it as bytes, ``words`` as u64."""

    def __init__(self, memfd: int, capacity: int) -> None:
        self.memfd = memfd
        self.capacity = capacity
        self._map = mmap.mmap(memfd, region_bytes(capacity))
        self.data = memoryview(self._map)
        self.words = self.data.cast("Q")

    @classmethod
    def create(cls, capacity: int) -> Self:
        """Make a region with rings of ``capacity`` bytes each. Raises :class:`ChannelError`, for example without
        memory."""
        require_linux()
        if not MIN_CAPACITY <= capacity <= MAX_CAPACITY or capacity & (capacity - 1):
            raise ChannelError(
                f"a channel's capacity must be a power of two in [{MIN_CAPACITY}, {MAX_CAPACITY}] bytes, not {capacity}"
            )
        memfd = make_memfd("stentor-channel")
        try:
            os.posix_fallocate(memfd, 0, region_bytes(capacity))
            fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            region = cls(memfd, capacity)
        except OSError as error:
            os.close(memfd)
            raise ChannelError(
                f"cannot get the {region_bytes(capacity)} bytes of shared memory that a channel needs: "
                f"{error.strerror}; free memory, or raise the limit of this process or container"
            ) from error
        except BaseException:
            os.close(memfd)
            raise
        region.words[1] = capacity
        region.words[0] = MAGIC
        return region

    @classmethod
    def attach(cls, memfd: int) -> Self:
        """Map a region made by another process. Raises :class:`CorruptChannel` if it is none."""
        require_linux()
        size = os.fstat(memfd).st_size
        capacity = (size - DATA_START) // 2
        if capacity < MIN_CAPACITY or capacity & (capacity - 1) or size != region_bytes(capacity):
            raise CorruptChannel(f"descriptor {memfd} is no channel memory: it has {size} bytes")
        region = cls(memfd, capacity)
        found = (region.words[0], region.words[1])
        if found != (MAGIC, capacity):
            region.unmap()
            raise CorruptChannel(f"descriptor {memfd} is no channel memory: its header reads {found}")
        return region

    def unmap(self) -> None:
        """Release the mapping; the descriptor stays open. Using the views afterwards raises ValueError."""
        self.words.release()
        self.data.release()
        self._map.close()


def region_bytes(capacity: int) -> int:
    """Bytes of a region whose rings hold ``capacity`` bytes each."""
    return DATA_START + 2 * capacity


def make_memfd(name: str) -> int:
    """An anonymous file that can be sealed and not executed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError:
        return os.memfd_create(name, flags)
