"""The memory file in which a worker leaves its prepared weights for its successor.

It is an anonymous ``memfd``, which lives as long as a process has it open. The server creates it and keeps it open, so
that it outlives workers and engines, but never reads it. A worker that finds it complete and made for its model maps
it; otherwise the worker starts it anew.

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
"""A large page's boundary."""

_MARK: Final = int.from_bytes(b"STENTORW", "little")
_NO_MARK: Final = 0
_WORD: Final = struct.Struct("<Q")
_FRONT: Final = struct.Struct("<QQ")


class WeightHeader(msgspec.Struct, frozen=True):
    """Identifies the weights, and holds what their worker determined at set-up."""

    key: str
    """Digest of all inputs of the preparation."""
    layout: str
    """Digest of the positions of all weights."""
    nbytes: int
    """Size of the weights."""
    max_model_len: int
    num_blocks: int
    num_states: int = 0


_decode: Final = msgspec.json.Decoder(WeightHeader).decode


def create_weight_file() -> int:
    """Make an empty file; the caller closes its descriptor. Raises OSError."""
    return os.memfd_create("stentor-weights", os.MFD_CLOEXEC)


def read_header(fd: int) -> WeightHeader | None:
    """The header of a complete file; None for any other."""
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
    """Empty the file and reserve ``capacity`` bytes for weights. Raises OSError."""
    os.ftruncate(fd, 0)
    os.ftruncate(fd, DATA_START + capacity)


def write_header(fd: int, header: WeightHeader) -> None:
    """Mark the file as complete; call it last. Raises OSError."""
    text = msgspec.json.encode(header)
    os.pwrite(fd, _FRONT.pack(_NO_MARK, len(text)) + text, 0)
    os.pwrite(fd, _WORD.pack(_MARK), 0)
