"""A client's own embeddings of a picture (``image_embeds``), in the form of the model's encoder output.

A tensor comes as base64 of a safetensors file with one tensor, or of numpy's ``.npy``: both have a dtype and a shape,
followed by numbers. A pickle, which ``torch.save`` writes, can execute code and is never read.
"""

import base64
import binascii
import io
import json
import math
import re
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .parts import Embeds
from .processed_cache import ProcessedMedia, content_digest, media_digest
from .refusal import Refusal

Grid = tuple[int, int, int]

GIVEN: Final = "image_embeds"
"""The tensor of a payload that no encoder need look at."""
_FLOATS: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
_WHOLES: Final = {"I64": "<i8", "I32": "<i4"}
_NPY_MAGIC: Final = b"\x93NUMPY"
_NPY_HEADER: Final = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|=a-zA-Z0-9]{1,8})', 'fortran_order': False, "
    rb"'shape': \((?P<shape>[0-9]{0,12}(?:, ?[0-9]{0,12}){0,4})\), \}\s*"
)
_NPY_NUMBERS: Final = ("<f4", "<f2", "<f8", "<i8", "<i4")
_PICKLES: Final = (b"PK\x03\x04", b"\x80")
_MAX_HEADER: Final = 4096
_FORMS: Final = "base64 of a safetensors file with one tensor, or of a .npy file"


@cache
def dot() -> bytes:
    """Any picture, for the replacement text of the model's processor."""
    from PIL import Image  # late: few servers need it here

    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    return file.getvalue()


def made_of_embeds(given: Embeds, hidden: int, sample: ProcessedMedia, placeholder: str) -> ProcessedMedia:
    """The model's input for them. ``sample`` is the result for any picture, which has the text around the placeholders,
    and ``hidden`` the width of an embedding. Raises :class:`.refusal.Refusal`."""
    from safetensors.numpy import save  # late, as above

    values = read_tensor(given.data, whole=False)
    if values.ndim == 3 and len(values) == 1:
        values = values[0]
    if values.ndim != 2 or values.shape[1] != hidden or not len(values):
        raise Refusal(f"the tensor has shape {list(values.shape)}; the model takes [embeddings, {hidden}]")
    if not np.isfinite(values).all():
        raise Refusal("the tensor holds values that are not finite")
    before, count, behind = _around(sample.replacement, placeholder)
    if not count:
        raise Refusal("the model's pictures are of several parts, for which no embeddings are taken")
    grid = _grid(given, len(values)) if sample.grid is not None else None
    content = content_digest(f"{given.data}\0{given.grid}".encode())
    digest = media_digest("image", content, {GIVEN: True}, alone=True)
    payload = save({GIVEN: np.ascontiguousarray(values, np.float32)}, {"modality": "image"})
    return ProcessedMedia("image", digest, payload, sample.written, before + placeholder * len(values) + behind, grid)


def read_tensor(text: str, *, whole: bool) -> npt.NDArray[Any]:
    """float32 of any shape, or int64 where ``whole`` numbers are expected. Raises :class:`.refusal.Refusal`."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(f"it is no base64; expected {_FORMS}") from None
    if data.startswith(_PICKLES):
        raise Refusal(f"it is in the form of torch.save or pickle, which is never read; send {_FORMS}")
    values = _npy(data) if data.startswith(_NPY_MAGIC) else _safetensors(data, whole=whole)
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
    kinds = _WHOLES if whole else _FLOATS
    if dtype not in kinds:
        raise Refusal(f"the tensor is of {str(dtype)[:16]}; expected one of {', '.join(kinds)}")
    left = memoryview(data)[8 + length :]
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise Refusal("the tensor has no shape")
    if (begin, end) != (0, len(left)):
        raise Refusal("the tensor does not lie where its header says")
    _check_size(tuple(shape), np.dtype(kinds[dtype]).itemsize, len(left))
    values = np.frombuffer(left, kinds[dtype]).reshape(shape)
    if dtype == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    return values


def _check_size(shape: tuple[int, ...], itemsize: int, nbytes: int) -> None:
    if len(shape) > 4 or math.prod(shape) * itemsize != nbytes:
        raise Refusal(f"a tensor of shape {list(shape)[:4]} does not have {nbytes} bytes")


def _around(replacement: str, placeholder: str) -> tuple[str, int, str]:
    """The text before the run of placeholders, its length, and the text behind; 0 if they are no run."""
    count = replacement.count(placeholder)
    before, found, behind = replacement.partition(placeholder * count)
    return (before, count, behind) if found else ("", 0, "")


def _grid(given: Embeds, count: int) -> Grid:
    """Frames, rows and columns of embeddings, from the grid of patches."""
    if not given.grid:
        raise Refusal("the model tells embeddings apart by where they lie; give `image_grid_thw` with them")
    frames, rows, columns = _three(read_tensor(given.grid, whole=True))
    merge = math.isqrt(frames * rows * columns // count)
    if not merge or rows % merge or columns % merge or frames * rows * columns != count * merge * merge:
        raise Refusal(f"an `image_grid_thw` of {frames} x {rows} x {columns} is not that of {count} embeddings")
    return frames, rows // merge, columns // merge


def _three(values: npt.NDArray[Any]) -> Grid:
    numbers = values.ravel().tolist()
    if len(numbers) != 3 or not all(0 < number < 1 << 16 for number in numbers):
        raise Refusal("`image_grid_thw` must be frames, rows and columns of patches")
    return numbers[0], numbers[1], numbers[2]
