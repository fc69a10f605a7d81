"""Encodes the engine's numbers for clients.

Numbers are not handled one by one: each call encodes a piece small enough for the event loop.
"""

import binascii
from collections.abc import Iterable, Iterator
from typing import Any, Final

from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.pooling.formats import Endianness, NumberFields, NumberType

from ..common.loop_turns import LoopTurns, Slices
from ..http.whole_answer import AnswerBudget, AnswerParts, Buffer, WholeAnswer

SLICE_NUMBERS: Final = 3 << 12
"""Numbers encoded by one call, in about 2 ms. Three bytes are four characters of base64."""
FORMAT_BYTES: Final[dict[str, int]] = {"float": 22, "base64": 6, "bytes": 4, "bytes_only": 4}
"""Bytes of one number in a response."""
_TYPES: Final[dict[NumberType, str]] = {
    "float32": "f4",
    "float16": "f2",
    "bfloat16": "u2",
    "fp8_e4m3": "u1",
    "fp8_e5m2": "u1",
}
_FP8: Final[dict[NumberType, tuple[int, int, int]]] = {"fp8_e4m3": (3, 7, 0x7E), "fp8_e5m2": (2, 15, 0x7C)}
"""Bits of the mantissa, bias of the exponent, and the largest code, without the sign: 448 and infinity."""


class NumberWriter:
    """Encodes the numbers of one response, and yields to the event loop in between.

    Its methods raise as :meth:`..http.whole_answer.AnswerBudget.add`.
    """

    def __init__(self, budget: AnswerBudget, loop_turns: LoopTurns) -> None:
        self._budget = budget
        self._slices = Slices(loop_turns)
        self._parts = AnswerParts(budget)

    async def one(self, pooled: Pooled, wanted: NumberFields, *, flat: bool) -> Any:
        """One text's numbers for a JSON answer; ``flat`` is one vector, otherwise there is a row for each token."""
        if wanted.encoding_format == "base64":
            return await self.base64(number_bytes(pooled, wanted.embed_dtype, wanted.endianness))
        if pooled.ids:
            return await self.written([encode(weights(pooled))])
        if flat:
            return await self.written([encode(floats(pooled))])
        return await self.written(_row_parts(pooled))

    async def base64(self, data: bytes) -> Any:
        step = 4 * SLICE_NUMBERS
        view = memoryview(data)
        parts = (binascii.b2a_base64(view[at : at + step], newline=False) for at in range(0, len(data), step))
        return await self.written(parts, b'"', b'"')

    async def written(self, parts: Iterable[bytes], before: bytes = b"", after: bytes = b"") -> Any:
        """JSON in parts, each made on request, for the response."""
        kept: list[Buffer] = [before]
        for part in parts:
            kept.append(part)
            self._budget.add(len(part))
            await self._slices.did(len(part))
        kept.append(after)
        return self._parts.place(kept)

    def answer(self, value: Any) -> WholeAnswer:
        """``value`` with the encoded numbers."""
        return self._parts.answer(value)


def floats(pooled: Pooled) -> list[float]:
    """All of one text, row by row."""
    found: Any = memoryview(pooled.data).cast("f").tolist()
    return found  # type: ignore[no-any-return]


def weights(pooled: Pooled) -> dict[str, float]:
    """For ``sparse``: by token id."""
    return dict(zip(map(str, memoryview(pooled.ids).cast("I").tolist()), floats(pooled), strict=True))


def _row_parts(pooled: Pooled) -> Iterator[bytes]:
    """The array of all rows, some rows at a time."""
    if not pooled.rows or not pooled.columns:
        yield encode([[] for _ in range(pooled.rows)])
        return
    data, width = memoryview(pooled.data), 4 * pooled.columns
    step = max(1, SLICE_NUMBERS // pooled.columns)
    before = b"["
    for start in range(0, pooled.rows, step):
        end = min(start + step, pooled.rows)
        some: Any = data[start * width : end * width].cast("B").cast("f", (end - start, pooled.columns))
        yield before + encode(some.tolist())[1:-1]
        before = b","
    yield b"]"


def number_bytes(pooled: Pooled, type: NumberType, order: Endianness) -> bytes:
    """The pooled numbers as bytes of this type and order; :attr:`.Pooled.data` has little-endian float32."""
    if type == "float32" and order != "big":
        return pooled.data
    import numpy as np  # late: rarely needed

    if type in _FP8:
        return _fp8(np.frombuffer(pooled.data, "<f4"), *_FP8[type])
    wanted = (">" if order == "big" else "<") + _TYPES[type]
    if type == "bfloat16":  # numpy has none: the upper half of a float32, rounded to the nearest, of two to the even
        whole = np.frombuffer(pooled.data, "<u4")
        upper: bytes = ((whole + (0x7FFF + (whole >> 16 & 1))) >> 16).astype(wanted).tobytes()
        return upper
    return np.frombuffer(pooled.data, "<f4").astype(wanted).tobytes()


def _fp8(numbers: Any, mantissa_bits: int, bias: int, end: int) -> bytes:
    """Float32 ``numbers`` as OCP's E4M3 or E5M2, rounded to the nearest, of two to the even. Larger numbers than the
    format has become ``end``, as torch converts them."""
    import numpy as np  # late: rarely needed

    codes = np.arange(end + 1)
    exponent, mantissa = codes >> mantissa_bits, codes & (1 << mantissa_bits) - 1
    lead = np.where(exponent > 0, 1 << mantissa_bits, 0)  # a subnormal number has no leading one
    values = (lead + mantissa) * 2.0 ** (np.maximum(exponent, 1) - bias - mantissa_bits)
    middles = (values[:-1] + values[1:]) / 2
    size = np.abs(numbers).astype(np.float64)
    below, up_to = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
    found = np.where(below & 1, up_to, below)  # they differ at a middle, between an even and an odd code
    found = np.where(np.isnan(size), 0x7F, found) | np.signbit(numbers).astype(np.int64) << 7
    data: bytes = found.astype("u1").tobytes()
    return data


def integers(pooled: Pooled, kind: str) -> list[int]:
    """Cohere's ``int8``, ``uint8``, ``binary`` and ``ubinary``: each number on a scale of the text's largest, or
    its sign as one bit, the first of eight highest. ``binary`` and ``int8`` are the others less 128."""
    import numpy as np  # late: rarely needed

    vector = np.frombuffer(pooled.data, "<f4")
    if kind in ("binary", "ubinary"):
        packed = np.packbits(vector >= 0).astype(np.int16)
        found: list[int] = (packed - (128 if kind == "binary" else 0)).tolist()
        return found
    largest = np.maximum(np.abs(vector).max(), np.float32(1e-12))
    scaled = np.rint(vector / largest * 127).astype(np.int16)
    found = (scaled + (128 if kind == "uint8" else 0)).tolist()
    return found
