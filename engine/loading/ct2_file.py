"""Reader of CTranslate2's model.bin, binary versions 1 to 6, little endian.

    u32 version | from version 2 on: string kind of model, u32 revision of it
    u32 count of variables * (string name | u8 dimensions | u32 * dimensions | type and size | data)
    from version 3 on: u32 count of aliases * (string alias | string name)

A string is a u16 length and that many bytes, the last of them zero. Type and size are a u8 type and a u32 number of
bytes from version 4 on; before, a u8 size of an element and a u32 number of elements. The file is not trusted: every
length is checked against the remaining bytes, and every error is a :class:`CheckpointError`.
"""

import math
import struct
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from .errors import CheckpointError

NEWEST: Final = 6
MAX_VARIABLES: Final = 1 << 16
MAX_DIMENSIONS: Final = 4

ITEM_BYTES: Final[Mapping[str, int]] = {
    "float32": 4,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
}
"""Types by torch's names, in the order of the file's numbers."""
_TYPES: Final = tuple(ITEM_BYTES)
_OLD_TYPES: Final = {4: "float32", 2: "int16", 1: "int8"}


class CT2Variable(msgspec.Struct, frozen=True):
    """The position of one variable. Without dimensions it is one value."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


class CT2File(msgspec.Struct, frozen=True):
    """The header of a file. Its data is read by the caller."""

    path: Path
    version: int
    kind: str
    """The class that wrote it, such as ``WhisperSpec``."""
    revision: int
    variables: Mapping[str, CT2Variable]
    """By name, in the file's order."""
    aliases: Mapping[str, str]
    """Other names of variables."""

    def scalar(self, name: str) -> int:
        """The integer in a variable without dimensions. Raises :class:`CheckpointError`."""
        variable = self.variables.get(name)
        if variable is None or math.prod(variable.shape) != 1 or variable.dtype not in ("int8", "int16", "int32"):
            raise CheckpointError(f"Cannot read {self.path}: expected {name} to be one whole number.")
        with self.path.open("rb") as file:
            file.seek(variable.offset)
            return int.from_bytes(file.read(variable.nbytes), "little", signed=True)


def read_ct2(path: Path) -> CT2File:
    """Read the header. Raises :class:`CheckpointError` if the file cannot be read or is invalid."""
    try:
        with path.open("rb") as file:
            return _read(_Cursor(path, file))
    except OSError as error:
        raise CheckpointError(f"Cannot open {path}: {error.strerror or error}.") from error


def _read(cursor: "_Cursor") -> CT2File:
    version = cursor.u32()
    if not 1 <= version <= NEWEST:
        cursor.fail(f"its binary version is {version}, and 1 to {NEWEST} can be read; is it a CTranslate2 model?")
    kind, revision = (cursor.text("the kind of model"), cursor.u32()) if version >= 2 else ("TransformerBase", 1)
    count = cursor.u32()
    if count > MAX_VARIABLES:
        cursor.fail(f"it claims {count} variables, expected at most {MAX_VARIABLES}")
    variables: dict[str, CT2Variable] = {}
    for _ in range(count):
        variable = cursor.variable(typed=version >= 4)
        if variable.name in variables:
            cursor.fail(f"the variable {variable.name!r} stands in it twice")
        variables[variable.name] = variable
    aliases: dict[str, str] = {}
    for _ in range(cursor.u32() if version >= 3 else 0):
        alias, name = cursor.text("an alias"), cursor.text("an alias's variable")
        if name not in variables or alias in variables:
            cursor.fail(f"the alias {alias!r} of {name!r} leads nowhere, or hides a variable")
        aliases[alias] = name
    return CT2File(cursor.path, version, kind, revision, variables, aliases)


class _Cursor:
    """Bounds-checked sequential reads of an open file."""

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self.path = path
        self._file = file
        self._size = file.seek(0, 2)
        self._position = 0
        file.seek(0)

    def fail(self, why: str) -> NoReturn:
        raise CheckpointError(f"Cannot read {self.path} as a CTranslate2 model: {why}.")

    def _need(self, count: int) -> None:
        if count > self._size - self._position:
            self.fail(
                f"{count} bytes are expected at byte {self._position}, but it has only {self._size}; fetch it again"
            )

    def _take(self, count: int) -> bytes:
        self._need(count)
        found = self._file.read(count)
        if len(found) != count:
            self.fail("it was cut short while it was read; fetch it again")
        self._position += count
        return found

    def _u8(self) -> int:
        return self._take(1)[0]

    def u32(self) -> int:
        value: int = struct.unpack("<I", self._take(4))[0]
        return value

    def text(self, what: str) -> str:
        length: int = struct.unpack("<H", self._take(2))[0]
        raw = self._take(length)
        if raw[-1:] != b"\0":
            self.fail(f"{what} does not end with a zero byte")
        try:
            return raw[:-1].decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8")

    def variable(self, *, typed: bool) -> CT2Variable:
        """The next variable's entry; skips its data."""
        name = self.text("a variable's name")
        dimensions = self._u8()
        if dimensions > MAX_DIMENSIONS:
            self.fail(f"the variable {name!r} has {dimensions} dimensions, expected at most {MAX_DIMENSIONS}")
        shape = struct.unpack(f"<{dimensions}I", self._take(4 * dimensions))
        number, size = self._u8(), self.u32()
        if typed:
            dtype = _TYPES[number] if number < len(_TYPES) else None
        else:
            dtype = _OLD_TYPES.get(number)
            size *= number
        if dtype is None:
            self.fail(f"the variable {name!r} has the unknown type {number}")
        if math.prod(shape) * ITEM_BYTES[dtype] != size:
            self.fail(f"the variable {name!r} of shape {shape} in {dtype} takes {size} bytes, which does not fit")
        self._need(size)
        offset = self._position
        self._position = self._file.seek(size, 1)
        return CT2Variable(name, shape, dtype, offset, size)
