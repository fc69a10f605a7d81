"""Reads the tensors of a ``.pt`` or ``.bin`` file without running what is in it.

Such a file is a zip: ``data.pkl`` describes a dictionary of tensors in a stack machine's code, whose numbers lie beside
it, one entry a storage. Of that code only what makes dictionaries, tuples and tensors is understood, and names of
functions are compared, never looked up: whatever else it asks for ends the reading with one line.
"""

import math
import pickletools
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch

from .errors import CheckpointError

_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch DoubleStorage": torch.float64,
    "torch LongStorage": torch.int64,
    "torch BoolStorage": torch.bool,
}
_TENSOR: Final = "torch._utils _rebuild_tensor_v2"
_PARAMETER: Final = "torch._utils _rebuild_parameter"
_ORDERED: Final = "collections OrderedDict"
_MOST_BYTES: Final = 1 << 30
_MOST_CODE: Final = 1 << 22
_MARK: Final = object()

Storages = Callable[[str, torch.dtype, int], torch.Tensor]
"""(key, dtype, numbers) → one storage, flat."""


class _Named(str):
    """What the code calls by name."""


def read_pt(file: Path) -> list[tuple[str, torch.Tensor]]:
    """Every tensor by its name. Raises :class:`CheckpointError` for anything else than a dictionary of tensors."""
    try:
        with zipfile.ZipFile(file) as archive:
            code = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
            if code is None:
                raise _refused(file, "it has no data.pkl")
            if archive.getinfo(code).file_size > _MOST_CODE:
                raise _refused(file, "its description is too long")
            folder = code.removesuffix("data.pkl")

            def storage(key: str, dtype: torch.dtype, count: int) -> torch.Tensor:
                entry = archive.getinfo(f"{folder}data/{key}")
                if entry.file_size != count * dtype.itemsize or entry.file_size > _MOST_BYTES:
                    raise ValueError(f"storage {key[:40]} has {entry.file_size} bytes")
                data = bytearray(archive.read(entry))
                return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)

            found = _Machine(storage).run(archive.read(code))
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
        raise _refused(file, str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in found.items()
    ):
        raise _refused(file, "it is no dictionary of tensors")
    return [*found.items()]


def _refused(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"Cannot read {file}: {why[:120]}.")


class _Machine:
    """As much of the stack machine as describes tensors. Raises ValueError for all else."""

    def __init__(self, storage: Storages) -> None:
        self._storage = storage
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def run(self, code: bytes) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of escapes in texts of a kind that torch does not write
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
                stack.pop()  # attributes of a dictionary: the version that state dictionaries carry
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
        target.update(zip(items[::2], items[1::2], strict=True))

    def _stored(self, described: object) -> torch.Tensor:
        match described:
            case ("storage", _Named() as kind, str() as key, str(), int() as count) if kind in _DTYPES and count >= 0:
                return self._storage(key, _DTYPES[kind], count)
        raise ValueError("it refers to what is no storage of floats, int64 or truth values")

    def _made(self, function: object, given: object) -> object:
        if not isinstance(function, _Named):
            raise ValueError("it calls what has no name")
        if function == _ORDERED and given == ():
            return {}
        if function == _TENSOR:
            match given:
                case (torch.Tensor() as flat, int() as offset, tuple() as size, tuple() as stride, *_):
                    return _viewed(flat, offset, size, stride)
        if function == _PARAMETER:
            match given:
                case (torch.Tensor() as tensor, *_):
                    return tensor
        raise ValueError(f"it calls {str(function)[:60]!r}, which is not done")


def _viewed(flat: torch.Tensor, offset: int, size: tuple[object, ...], stride: tuple[object, ...]) -> torch.Tensor:
    sizes = [each for each in size if isinstance(each, int) and each >= 0]
    strides = [each for each in stride if isinstance(each, int) and each >= 0]
    if len(sizes) != len(size) or len(strides) != len(stride) or len(sizes) != len(strides) or offset < 0:
        raise ValueError("a tensor's shape is broken")
    if math.prod(sizes) > len(flat):
        raise ValueError("a tensor is larger than its storage")
    if all(sizes) and offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) >= len(flat):
        raise ValueError("a tensor goes beyond its storage")
    return flat.as_strided(sizes, strides, offset).clone()
