"""Finds the tensors in torch's ``.bin`` and ``.pt`` files without executing their pickle.

Such a file is a zip with uncompressed entries: ``data.pkl`` describes a dictionary of tensors in pickle's stack machine
code, and ``data/KEY`` are storages of numbers. Only opcodes for dictionaries, tuples and tensors are supported, and
function names are compared, never looked up; anything else is an error of one line. Storages are not read here. The
list of entries and the description are held in memory, both bounded.
"""

import math
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO, FileIO
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from .errors import CheckpointError
from .safetensors_index import DTYPES, StoredTensor

_TYPES: Final[Mapping[str, tuple[str, int]]] = {
    "torch FloatStorage": ("F32", 4),
    "torch HalfStorage": ("F16", 2),
    "torch BFloat16Storage": ("BF16", 2),
    "torch DoubleStorage": ("F64", 8),
    "torch LongStorage": ("I64", 8),
    "torch IntStorage": ("I32", 4),
    "torch ShortStorage": ("I16", 2),
    "torch CharStorage": ("I8", 1),
    "torch ByteStorage": ("U8", 1),
    "torch BoolStorage": ("BOOL", 1),
}
"""safetensors' name of a storage type, and its bytes an element."""
_TENSOR: Final = "torch._utils _rebuild_tensor_v2"
_PARAMETER: Final = "torch._utils _rebuild_parameter"
_ORDERED: Final = "collections OrderedDict"
_MOST_CODE: Final = 1 << 22
"""Bytes: about twenty thousand tensors."""
_MOST_LIST: Final = 1 << 23
"""Bytes of the list of entries, which is read at once."""
_MOST_HERE: Final = 1 << 16
"""The same bounds for one tensor in memory, which has seven entries and 200 bytes of description."""
_MOST_DIMENSIONS: Final = 64
_LOCAL: Final = struct.Struct("<4s22xHH")
"""Local file header: signature, and the lengths of the name and of the extra field."""
_BEFORE_ZIP: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of files from torch before 1.6."""
_MARK: Final = object()
_UNREADABLE: Final = (
    *(OSError, zipfile.BadZipFile, ValueError, KeyError, IndexError),
    *(TypeError, NotImplementedError, OverflowError, struct.error),
)
"""What zipfile, pickletools and the machine raise for a stranger's bytes."""


class _Storage(msgspec.Struct, frozen=True):
    dtype: str
    itemsize: int
    offset: int
    """Offset in the file."""
    count: int


class StoredView(msgspec.Struct, frozen=True):
    """A tensor as a view of a storage."""

    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements; empty where rows follow each other."""
    offset: int
    """In the file."""
    nbytes: int


Storages = Callable[[str, str, int, int], _Storage]
"""(key, dtype, bytes an element, elements) → the storage's position."""


class _Named(str):
    """A function's name in the code."""


class _BoundedFile(FileIO):
    """Limits a read to the longest list of entries, whose length comes from the file."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MOST_LIST:
            raise ValueError("its list of entries is too long")
        return super().read(_MOST_LIST if size is None or size < 0 else size)


class _BoundedBytes(BytesIO):
    """The same in memory: a list of entries takes ten times its bytes once it is read."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MOST_HERE:
            raise ValueError("its list of entries is too long")
        return super().read(_MOST_HERE if size is None or size < 0 else size)


def pt_tensor(data: bytes) -> StoredView:
    """Where the only tensor of a ``torch.save`` lies in it. Raises ValueError for anything else."""
    try:
        with zipfile.ZipFile(_BoundedBytes(data)) as archive:
            found = _described(archive, _BoundedBytes(data), len(data), _MOST_HERE)
    except _UNREADABLE as error:
        raise ValueError(_first_line(error)) from error
    if not isinstance(found, StoredView):
        raise ValueError("it holds more or other than a tensor")
    return found


def pt_tensors(file: Path) -> list[StoredTensor]:
    """All tensors with their positions. Raises :class:`CheckpointError` unless the file is a dictionary of tensors."""
    try:
        with _BoundedFile(file) as stream:
            if stream.read(len(_BEFORE_ZIP)) == _BEFORE_ZIP:
                raise CheckpointError(
                    f"Cannot load {file}: torch before 1.6 wrote it, in a form that is not read here. Where it is "
                    "trusted, load it with transformers and write safetensors by its save_pretrained()."
                )
            with zipfile.ZipFile(stream) as archive:
                found = _described(archive, stream, file.stat().st_size, _MOST_CODE)
    except _UNREADABLE as error:
        raise _refused(file, _first_line(error)) from error
    if not isinstance(found, dict) or not all(isinstance(tensor, StoredView) for tensor in found.values()):
        raise _refused(file, "it is no dictionary of tensors")
    return [
        StoredTensor(name, file, DTYPES.get(view.dtype, view.dtype), view.shape, view.offset, view.nbytes, view.strides)
        for name, view in found.items()
    ]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _refused(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"Cannot load {file}: {why[:160]}.")


def _described(archive: zipfile.ZipFile, stream: BinaryIO | FileIO, size: int, most_code: int) -> object:
    """The object described by a file of ``size`` bytes, in ``most_code`` bytes at most."""
    code = next((name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1), None)
    if code is None:
        raise ValueError("it has no data.pkl")
    folder = code.removesuffix("data.pkl")
    order = archive.NameToInfo.get(f"{folder}byteorder")

    def place(entry: zipfile.ZipInfo) -> int:
        """Start of an entry's data, which must be uncompressed and lie in the file."""
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename[:60]!r} is compressed or encrypted, which torch writes nothing as")
        stream.seek(entry.header_offset)
        begins = stream.read(_LOCAL.size)
        mark, name, extra = _LOCAL.unpack(begins) if len(begins) == _LOCAL.size else (b"", 0, 0)
        begin: int = entry.header_offset + _LOCAL.size + name + extra
        if mark != b"PK\3\4" or begin + entry.file_size > size:
            raise ValueError(f"{entry.filename[:60]!r} goes beyond its end; fetch it again")
        return begin

    def read(entry: zipfile.ZipInfo, most: int) -> bytes:
        if entry.file_size > most:
            raise ValueError(f"{entry.filename[:60]!r} is too long")
        stream.seek(place(entry))
        return stream.read(entry.file_size)

    def storage(key: str, dtype: str, itemsize: int, count: int) -> _Storage:
        entry = archive.getinfo(f"{folder}data/{key}")
        if entry.file_size != count * itemsize:
            raise ValueError(f"storage {key[:40]!r} has {entry.file_size} bytes, expected {count * itemsize}")
        return _Storage(dtype, itemsize, place(entry), count)

    if order is not None and read(order, 16).strip() != b"little":
        raise ValueError("its numbers do not lie in little-endian order")
    return _Machine(storage).run(read(archive.getinfo(code), most_code))


class _Machine:
    """The part of the pickle machine that describes tensors. Raises ValueError for the rest."""

    def __init__(self, storage: Storages) -> None:
        self._storage = storage
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def run(self, code: bytes) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # warnings about escapes that torch does not write
            try:
                for opcode, argument, _ in pickletools.genops(code):
                    if opcode.name == "STOP":
                        return self._stack.pop()
                    self._step(opcode.name, argument)
            except Warning as warning:
                raise ValueError(str(warning)) from warning
        raise ValueError("its description has no end")

    def _step(self, name: str, argument: object) -> None:
        stack = self._stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                stack.append(_MARK)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST":
                stack.append([])
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            case "BINPUT" | "LONG_BINPUT":
                assert isinstance(argument, int)
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                assert isinstance(argument, int)
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(_Named(argument))
            case "STACK_GLOBAL":
                stack[-2:] = [_Named(f"{stack[-2]} {stack[-1]}")]
            case "TUPLE":
                stack.append(tuple(self._to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "SETITEM":
                self._fill(stack[-3], [stack[-2], stack[-1]])
                del stack[-2:]
            case "SETITEMS":
                items = self._to_mark()
                self._fill(stack[-1], items)
            case "BINPERSID":
                stack.append(self._stored(stack.pop()))
            case "REDUCE":
                given = stack.pop()
                stack.append(self._made(stack.pop(), given))
            case "BUILD":
                stack.pop()  # attributes of a dictionary: the version in state dictionaries
            case _:
                raise ValueError(f"it asks for {name}, which is more than tensors need")

    def _to_mark(self) -> list[object]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("its description is broken")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _fill(self, target: object, items: list[object]) -> None:
        if not isinstance(target, dict):
            raise ValueError("it fills what is no dictionary")
        for name, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(name, str):  # other keys may take for ever to hash
                raise ValueError("it is no dictionary of tensors by name")
            target[name] = value

    def _stored(self, described: object) -> _Storage:
        match described:
            case ("storage", _Named() as kind, str() as key, str(), int() as count) if kind in _TYPES and count >= 0:
                return self._storage(key, *_TYPES[kind], count)
        raise ValueError("it refers to what is no storage of floats, integers or truth values")

    def _made(self, function: object, given: object) -> object:
        if not isinstance(function, _Named):
            raise ValueError("it calls what has no name")
        if function == _ORDERED and given == ():
            return {}
        if function == _TENSOR:
            match given:
                case (_Storage() as storage, int() as offset, tuple() as size, tuple() as stride, *_):
                    return _viewed(storage, offset, size, stride)
        if function == _PARAMETER:
            match given:
                case (StoredView() as tensor, *_):
                    return tensor
        raise ValueError(f"it calls {str(function)[:60]!r}, which is not done")


def _viewed(storage: _Storage, offset: int, size: tuple[object, ...], stride: tuple[object, ...]) -> StoredView:
    shape = tuple(each for each in size if isinstance(each, int) and each >= 0)
    strides = tuple(each for each in stride if isinstance(each, int) and each >= 0)
    if not len(shape) == len(size) == len(strides) == len(stride) <= _MOST_DIMENSIONS or offset < 0:
        raise ValueError("a tensor's shape is broken")
    count = math.prod(shape)
    if count > storage.count:
        raise ValueError("a tensor is larger than its storage")
    if count and offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) >= storage.count:
        raise ValueError("a tensor goes beyond its storage")
    by_row, expected = True, 1
    for n, step in zip(reversed(shape), reversed(strides), strict=True):
        by_row = by_row and (n == 1 or step == expected)
        expected *= n
    itemsize = storage.itemsize
    begin = storage.offset + offset * itemsize if count else storage.offset
    return StoredView(storage.dtype, shape, () if by_row or not count else strides, begin, count * itemsize)
