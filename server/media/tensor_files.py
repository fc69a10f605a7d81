"""A client's tensors in the files that clients write: base64 of safetensors, of numpy's ``.npy`` or of ``torch.save``.

Each has a dtype and a shape, followed by numbers. What ``torch.save`` writes is described by a pickle, whose code is
compared with that of a tensor and never run; pickles of other programs are refused.
"""

import base64
import binascii
import json
import math
import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stentor.engine.loading.pt_file import pt_tensor

from .refusal import Refusal

_FLOATS: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
_WHOLES: Final = {"I64": "<i8", "I32": "<i4"}
_NPY_MAGIC: Final = b"\x93NUMPY"
_NPY_HEADER: Final = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|=a-zA-Z0-9]{1,8})', 'fortran_order': False, "
    rb"'shape': \((?P<shape>[0-9]{0,12}(?:, ?[0-9]{0,12}){0,4})\), \}\s*"
)
_NPY_NUMBERS: Final = ("<f4", "<f2", "<f8", "<i8", "<i4")
_TORCH: Final = b"PK\x03\x04"
_PICKLE: Final = b"\x80"
_MAX_HEADER: Final = 4096
_FORMS: Final = "base64 of a safetensors file with one tensor, of a .npy file, or of what torch.save writes of a tensor"


def read_tensor(text: str, *, whole: bool) -> npt.NDArray[Any]:
    """float32 of any shape, or int64 where ``whole`` numbers are expected. Raises :class:`.refusal.Refusal`."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(f"it is no base64; expected {_FORMS}") from None
    if data.startswith(_PICKLE):
        raise Refusal(f"it is a pickle, which is never read; send {_FORMS}")
    if data.startswith(_TORCH):
        values = _torch(data, whole=whole)
    elif data.startswith(_NPY_MAGIC):
        values = _npy(data)
    else:
        values = _safetensors(data, whole=whole)
    wanted = "iu" if whole else "f"
    if values.dtype.kind not in wanted:
        raise Refusal(f"the tensor is of {values.dtype}; expected {'whole numbers' if whole else 'floats'}")
    return values.astype(np.int64 if whole else np.float32)


def _npy(data: bytes) -> npt.NDArray[Any]:
    """Not read by numpy, whose header parser evaluates a client's text as Python."""
    wide = data[6:7] != b"\x01"
    begin = 12 if wide else 10
    length = int.from_bytes(data[8:begin], "little")
    found = _NPY_HEADER.fullmatch(data[begin : begin + length]) if length <= _MAX_HEADER else None
    if found is None:
        raise Refusal("its .npy header cannot be read; expected a tensor of numbers by rows")
    dtype = found["dtype"].decode()
    if dtype not in _NPY_NUMBERS:
        raise Refusal(f"the tensor is of {dtype}; expected one of {', '.join(_NPY_NUMBERS)}")
    left = memoryview(data)[begin + length :]
    shape = tuple(int(size) for size in found["shape"].split(b",") if size.strip())
    _check_size(shape, np.dtype(dtype).itemsize, len(left))
    return np.frombuffer(left, dtype).reshape(shape)


def _torch(data: bytes, *, whole: bool) -> npt.NDArray[Any]:
    try:
        found = pt_tensor(data)
    except ValueError as error:
        raise Refusal(f"torch.save's file cannot be read: {error}; expected {_FORMS}") from None
    if found.strides:
        raise Refusal("its numbers do not lie by rows; send `tensor.contiguous()`")
    return _numbers(memoryview(data)[found.offset : found.offset + found.nbytes], found.dtype, found.shape, whole=whole)


def _safetensors(data: bytes, *, whole: bool) -> npt.NDArray[Any]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER, len(data) - 8):
        raise Refusal(f"it is neither safetensors nor .npy; expected {_FORMS}")
    try:
        header = json.loads(data[8 : 8 + length])
        (found,) = [entry for name, entry in header.items() if name != "__metadata__"]
        dtype, shape, (begin, end) = found["dtype"], found["shape"], found["data_offsets"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refusal(f"its header does not describe one tensor; expected {_FORMS}") from None
    left = memoryview(data)[8 + length :]
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise Refusal("the tensor has no shape")
    if (begin, end) != (0, len(left)):
        raise Refusal("the tensor does not lie where its header says")
    return _numbers(left, dtype, tuple(shape), whole=whole)


def _numbers(left: memoryview, dtype: object, shape: tuple[int, ...], *, whole: bool) -> npt.NDArray[Any]:
    """``dtype`` as safetensors names it."""
    kinds = _WHOLES if whole else _FLOATS
    if not isinstance(dtype, str) or dtype not in kinds:
        raise Refusal(f"the tensor is of {str(dtype)[:16]}; expected one of {', '.join(kinds)}")
    _check_size(shape, np.dtype(kinds[dtype]).itemsize, len(left))
    values = np.frombuffer(left, kinds[dtype]).reshape(shape)
    if dtype == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    return values


def _check_size(shape: tuple[int, ...], itemsize: int, nbytes: int) -> None:
    if len(shape) > 4 or math.prod(shape) * itemsize != nbytes:
        raise Refusal(f"a tensor of shape {list(shape)[:4]} does not have {nbytes} bytes")
