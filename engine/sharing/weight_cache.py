"""The memory file where a worker leaves its prepared weights for the one that follows it.

It is an anonymous ``memfd``: it has no name, and lives as long as a process has it open. The server makes it and keeps
it, so that it outlives workers and engines; it never looks inside. A worker that finds it whole and made for the same
model maps it, any other starts it anew.

::

    byte
    0        mark    u64  b"STENTORW", little-endian, once all else is written; 0 before
    8        length  u64  of the header
    16       header, JSON (:class:`WeightHeader`)
    2 MiB    weights
"""

import os
import struct
from typing import Final

import msgspec

DATA_START: Final = 2 << 20
"""The weights begin at a large page."""

_MARK: Final = int.from_bytes(b"STENTORW", "little")
_NO_MARK: Final = 0
_WORD: Final = struct.Struct("<Q")
_FRONT: Final = struct.Struct("<QQ")


class WeightHeader(msgspec.Struct, frozen=True):
    """What the weights are, and what the worker settled that prepared them."""

    key: str
    """A digest of all that they were made from and for."""
    layout: str
    """A digest of where each lies."""
    nbytes: int
    """Of the weights."""
    max_model_len: int
    num_blocks: int
    num_states: int = 0


_decode: Final = msgspec.json.Decoder(WeightHeader).decode


def create_weight_file() -> int:
    """A new, empty file; its descriptor is the caller's to close. Raises OSError."""
    return os.memfd_create("stentor-weights", os.MFD_CLOEXEC)


def read_header(fd: int) -> WeightHeader | None:
    """The header of a file that is whole; None for any other."""
    front = os.pread(fd, _FRONT.size, 0)
    if len(front) < _FRONT.size:
        return None
    mark, length = _FRONT.unpack(front)
    if mark != _MARK or length > DATA_START - _FRONT.size:
        return None
    try:
        header = _decode(os.pread(fd, length, _FRONT.size))
    except msgspec.MsgspecError:
        return None
    return header if os.fstat(fd).st_size >= DATA_START + header.nbytes else None


def clear(fd: int, capacity: int) -> None:
    """Empties the file, and makes room for ``capacity`` bytes of weights. Raises OSError."""
    os.ftruncate(fd, 0)
    os.ftruncate(fd, DATA_START + capacity)


def write_header(fd: int, header: WeightHeader) -> None:
    """Marks the file as whole; the last thing that is written. Raises OSError."""
    text = msgspec.json.encode(header)
    os.pwrite(fd, _FRONT.pack(_NO_MARK, len(text)) + text, 0)
    os.pwrite(fd, _WORD.pack(_MARK), 0)
