"""Reader of GGUF headers, versions 2 and 3, little endian.

    magic "GGUF" | u32 version | u64 tensor count | u64 key count
    key count    * string key | u32 value type | value
    tensor count * string name | u32 dimensions | u64 * dimensions | u32 type | u64 offset
    padding to the alignment, then the data that the offsets count from

A string is a u64 length and UTF-8 bytes; an array is a u32 element type, a u64 count and the elements. The file is not
trusted: every length is checked against the remaining bytes before anything is allocated, and every error is a
:class:`CheckpointError`.
"""

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn

import msgspec
from msgspec.structs import replace

from ..errors import CheckpointError
from ..split_names import part_names
from .types import GGMLType, row_bytes

MAX_KEYS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 20
MAX_NAME_BYTES: Final = 1 << 16
MAX_DIMENSIONS: Final = 4
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 1 << 20

STRING: Final = 8
ARRAY: Final = 9
BOOL: Final = 7
SCALARS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    BOOL: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
U32: Final = SCALARS[4]
U64: Final = SCALARS[10]

MIN_KEY_BYTES: Final = 8 + 4 + 1
MIN_TENSOR_BYTES: Final = 8 + 4 + 8 + 4 + 8


class GGUFTensor(msgspec.Struct, frozen=True):
    """The position of one tensor. ``shape`` is in GGUF's order, fastest-running dimension first."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    """Bytes from the start of the file."""
    nbytes: int
    file: Path


class _Array(msgspec.Struct, frozen=True):
    """An array that has been measured but not decoded."""

    type: int
    count: int
    offset: int


class GGUFMetadata(Mapping[str, object]):
    """The key-value part of a file. Arrays are decoded at each access."""

    def __init__(self, cursor: "_Cursor", values: dict[str, object]) -> None:
        self._cursor = cursor
        self._values = values

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        return self._cursor.decode_array(value) if isinstance(value, _Array) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values


class GGUFFile:
    """An open GGUF file: ``version``, ``metadata``, ``tensors`` by name in file order. The first file of a split model
    stands for all: ``files``.

    Use it as a context manager, or close it: its memory map backs the lazily decoded metadata. Raises
    :class:`CheckpointError` if the file cannot be read or is invalid.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self._cursor = _Cursor(path)
        try:
            self.version, values, self.tensors = _read_header(self._cursor)
            self.metadata = GGUFMetadata(self._cursor, values)
            self._add_parts()
        except BaseException:
            self.close()
            raise

    def _add_parts(self) -> None:
        """Add the tensors of the other files of a split model."""
        count, fail = self.metadata.get("split.count", 1), self._cursor.fail
        if not isinstance(count, int) or count < 2:
            return
        names = part_names(self.path.name)
        if names[0] != self.path.name or len(names) != count:
            first = names[0] if len(names) == count else f"a file whose name ends with -00001-of-{count:05d}.gguf"
            fail(f"it is one of {count} parts of a model, of which the first is to be named: {first}")
        self.files = tuple(self.path.with_name(name) for name in names)
        for number, file in enumerate(self.files[1:], 1):
            if not file.is_file():
                fail(f"its part {file.name} is missing, of {count}; fetch it again")
            cursor = _Cursor(file)
            try:
                _, values, tensors = _read_header(cursor)
            finally:
                cursor.close()
            if (values.get("split.no"), values.get("split.count")) != (number, count):
                fail(f"{file.name} is no part of the same model; fetch it again")
            if again := self.tensors.keys() & tensors.keys():
                fail(f"the tensor {min(again)!r} stands in two of its parts")
            self.tensors |= tensors

    def read(self, tensor: GGUFTensor) -> bytes:
        """A copy of the bytes of a tensor."""
        try:
            with tensor.file.open("rb") as file:
                file.seek(tensor.offset)
                found = file.read(tensor.nbytes)
        except OSError as error:
            raise CheckpointError(f"Cannot read {tensor.file}: {error.strerror or error}.") from error
        if len(found) < tensor.nbytes:
            raise CheckpointError(f"Cannot read {tensor.file}: it was cut short.")
        return found

    def close(self) -> None:
        """Unmap the file. Arrays in ``metadata`` cannot be decoded afterwards."""
        self._cursor.close()

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_header(cursor: "_Cursor") -> tuple[int, dict[str, object], dict[str, GGUFTensor]]:
    """Returns the version, the metadata and the tensors by name."""
    if cursor.take(4) != b"GGUF":
        cursor.fail("it does not begin with the GGUF magic, so it is no GGUF file")
    version = cursor.u32()
    if version not in (2, 3):
        if version & 0xFFFF == 0 and version:
            cursor.fail("it is big-endian, and only little-endian files can be read; convert it again")
        cursor.fail(f"its GGUF version is {version}, and only 2 and 3 can be read; convert it again")
    tensor_count = cursor.count("tensors", MIN_TENSOR_BYTES, MAX_TENSORS)
    key_count = cursor.count("metadata keys", MIN_KEY_BYTES, MAX_KEYS)

    values: dict[str, object] = {}
    for _ in range(key_count):
        key = cursor.name("a metadata key")
        if key in values:
            cursor.fail(f"the metadata key {key!r} stands in it twice")
        values[key] = cursor.value(key)

    found = [cursor.tensor() for _ in range(tensor_count)]
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}, expected a power of two up to {MAX_ALIGNMENT}")
    start = -(-cursor.position // alignment) * alignment

    tensors: dict[str, GGUFTensor] = {}
    for tensor in found:
        if tensor.name in tensors:
            cursor.fail(f"the tensor {tensor.name!r} stands in it twice")
        if tensor.offset % alignment:
            cursor.fail(f"the tensor {tensor.name!r} is not aligned to {alignment} bytes")
        offset = start + tensor.offset
        if offset + tensor.nbytes > cursor.size:
            cursor.fail(
                f"the tensor {tensor.name!r} ends at byte {offset + tensor.nbytes} of {cursor.size}; "
                "the file is cut short, fetch it again"
            )
        tensors[tensor.name] = replace(tensor, offset=offset)
    for before, after in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
        if before.offset + before.nbytes > after.offset:
            cursor.fail(f"the tensors {before.name!r} and {after.name!r} overlap; fetch it again")
    return version, values, tensors


class _Cursor:
    """Bounds-checked sequential reads of a mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                if not self.size:
                    raise CheckpointError(f"Cannot read {path} as GGUF: it is empty; fetch it again.")
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"Cannot open {path}: {error}.") from error

    def close(self) -> None:
        self.data.close()

    def fail(self, why: str) -> NoReturn:
        one_line = " ".join(why.splitlines())  # names come from the file
        raise CheckpointError(f"Cannot read {self.path} as GGUF: {one_line}.")

    def _advance(self, count: int) -> int:
        """Skip ``count`` bytes; returns where they begin."""
        start = self.position
        if count > self.size - start:
            self.fail(f"{count} bytes are expected at byte {start}, but it has only {self.size}")
        self.position = start + count
        return start

    def take(self, count: int) -> bytes:
        start = self._advance(count)
        return self.data[start : start + count]

    def u32(self) -> int:
        value: int = U32.unpack_from(self.data, self._advance(4))[0]
        return value

    def u64(self) -> int:
        value: int = U64.unpack_from(self.data, self._advance(8))[0]
        return value

    def count(self, what: str, least_bytes: int, limit: int) -> int:
        """A number of items of at least ``least_bytes`` each."""
        count = self.u64()
        if count > limit or count * least_bytes > self.size - self.position:
            self.fail(f"it claims {count} {what}, more than {min(limit, self.size // least_bytes)} is not possible")
        return count

    def name(self, what: str) -> str:
        length = self.u64()
        if not 0 < length <= MAX_NAME_BYTES:
            self.fail(f"{what} is {length} bytes long, expected 1 to {MAX_NAME_BYTES}")
        return self._text(self.take(length), what)

    def _text(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8")

    def value(self, key: str) -> object:
        """The next value: a decoded scalar, or a measured array."""
        kind = self.u32()
        if kind == STRING:
            return self._text(self.take(self.u64()), key)
        if kind == ARRAY:
            return self._measure_array(key)
        return self._scalar(kind, key)

    def _scalar(self, kind: int, key: str) -> object:
        layout = SCALARS.get(kind)
        if layout is None:
            self.fail(f"{key} has the unknown value type {kind}")
        value: int | float = layout.unpack_from(self.data, self._advance(layout.size))[0]
        return bool(value) if kind == BOOL else value

    def _measure_array(self, key: str) -> _Array:
        kind = self.u32()
        count = self.u64()
        found = _Array(kind, count, self.position)
        if kind == STRING:
            if count * 8 > self.size - self.position:
                self.fail(f"{key} claims {count} strings, more than the file can hold")
            self._skip_strings(count, key)
        elif kind in SCALARS:
            self._advance(count * SCALARS[kind].size)
        else:
            self.fail(f"{key} is an array of the unsupported value type {kind}")
        return found

    def _skip_strings(self, count: int, key: str) -> None:
        data, unpack, size, position = self.data, U64.unpack_from, self.size, self.position
        for _ in range(count):
            if position > size - 8:
                self.fail(f"{key} is cut short")
            position += 8 + unpack(data, position)[0]
        if position > size:
            self.fail(f"{key} is cut short")
        self.position = position

    def decode_array(self, array: _Array) -> list[object]:
        """The elements of a measured array."""
        if array.type != STRING:
            layout = SCALARS[array.type]
            values = struct.unpack_from(f"<{array.count}{layout.format[-1]}", self.data, array.offset)
            return [bool(value) for value in values] if array.type == BOOL else list(values)
        data, unpack, position = self.data, U64.unpack_from, array.offset
        texts: list[object] = []
        for _ in range(array.count):
            start = position + 8
            position = start + unpack(data, position)[0]
            texts.append(self._text(data[start:position], "a string of an array"))
        return texts

    def tensor(self) -> GGUFTensor:
        """The next tensor's entry, with its offset still relative to the start of the data."""
        name = self.name("a tensor's name")
        dimensions = self.u32()
        if not 0 < dimensions <= MAX_DIMENSIONS:
            self.fail(f"the tensor {name!r} has {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")
        shape = tuple(self.u64() for _ in range(dimensions))
        number = self.u32()
        offset = self.u64()
        kind = next((kind for kind in GGMLType if kind == number), None)
        if kind is None:
            self.fail(f"the tensor {name!r} has the unknown type {number}")
        if shape[0] % kind.elements:
            self.fail(
                f"rows of the tensor {name!r} hold {shape[0]} elements, not whole {kind.name} blocks of {kind.elements}"
            )
        if 0 in shape:
            self.fail(f"the tensor {name!r} is empty")
        return GGUFTensor(name, shape, kind, offset, row_bytes(kind, math.prod(shape)), self.path)
