"""Reads the tensor index of a safetensors file from its header.

u64 header length | header as JSON | data
"""

import json
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec

from .errors import CheckpointError

_LFS_POINTER = b"version "
"""The first bytes of a pointer, which a clone without Git LFS has in place of a large file. As the length of a header
they would be more than any file has."""
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

DTYPES: Mapping[str, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
"""Stored float types by torch's names."""


QUANTIZED_DTYPES = ("F8_E4M3", "F8_E8M0", "I8", "U8", "I32", "I64")
"""Types of quantised weights, zero points, shapes and group indices."""


class StoredTensor(msgspec.Struct, frozen=True):
    name: str
    file: Path
    dtype: str
    """torch's name for floats, the file's own for anything else."""
    shape: tuple[int, ...]
    offset: int
    """Offset in its file."""
    nbytes: int
    """Bytes of its elements."""
    strides: tuple[int, ...] = ()
    """In elements, by dimension; empty if it is stored row by row."""


def safetensors_tensors(file: Path) -> list[StoredTensor]:
    """All tensors of one file, in the order of its header. Raises :class:`CheckpointError`."""
    try:
        with file.open("rb") as stream:
            return tensors_in(stream, file.stat().st_size, file)
    except OSError as error:
        raise CheckpointError(f"Cannot load {file}: {error.strerror or error}.") from error


def tensors_in(stream: BinaryIO, size: int, file: Path, max_header: int = MAX_HEADER_BYTES) -> list[StoredTensor]:
    """The tensors in an open file of ``size`` bytes, positioned at its beginning. Raises :class:`CheckpointError`,
    OSError."""

    def broken(why: str) -> CheckpointError:
        return CheckpointError(f"Cannot load {file}: {why}; fetch it again.")

    prefix = stream.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if prefix == _LFS_POINTER:
        raise CheckpointError(f"Cannot load {file}: it is a pointer of Git LFS in place of the file; run git lfs pull.")
    if not 2 <= length <= min(max_header, size - 8):
        raise broken("it has no safetensors header")
    try:
        header = msgspec.json.decode(stream.read(length))  # not json, which holds the interpreter's lock longer
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise broken("its safetensors header is malformed") from error
    if not isinstance(header, dict):
        raise broken("its safetensors header is malformed")

    tensors = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
                pass
            case _:
                raise broken(f"the header's entry of {name[:200]!r} is malformed")
        if not all(isinstance(n, int) and n >= 0 for n in shape) or not 0 <= begin <= end:
            raise broken(f"the header's entry of {name[:200]!r} is malformed")
        if 8 + length + end > size:
            raise broken(f"{name[:200]!r} ends at byte {8 + length + end} of {size}, so the file is cut short")
        type = DTYPES.get(dtype, dtype)
        tensors.append(StoredTensor(name, file, type, tuple(shape), 8 + length + begin, end - begin))
    for before, after in pairwise(sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes))):
        if before.offset + before.nbytes > after.offset:
            raise broken(f"{before.name[:200]!r} and {after.name[:200]!r} overlap")
    return tensors


def read_json(file: Path) -> dict[str, object]:
    """The object in a JSON file. Raises :class:`CheckpointError`."""
    found = _read(file)
    if not isinstance(found, dict):
        raise CheckpointError(f"Cannot read {file}: expected a JSON object.")
    return found


def read_json_list(file: Path) -> list[dict[str, object]]:
    """The array of objects in a JSON file. Raises :class:`CheckpointError`."""
    found = _read(file)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise CheckpointError(f"Cannot read {file}: expected a JSON array of objects.")
    return found


def _read(file: Path) -> object:
    try:
        found: object = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"Cannot read {file}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"Cannot read {file}: it is not valid JSON ({error}).") from error
    return found
