"""Numbers as clients read them, from the bytes that the engine sends.

Nothing is done for one number at a time: bytes become text by one call each. What is large is written in a thread, a
text at a time, so that the event loop goes on in between.
"""

import binascii
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import anyio
import msgspec

from stentor.protocols.pooling import Pooled
from stentor.protocols.pooling_api.formats import EncodingFormat, Endianness, NumberType

T = TypeVar("T")

INLINE_BYTES: Final = 1 << 16
"""Of numbers: fewer are written where they are, in less time than a thread would be waited for."""
_TYPES: Final[dict[NumberType, str]] = {"float32": "f4", "float16": "f2"}

_encode: Final = msgspec.json.Encoder().encode


async def off_the_loop(many: Sequence[Pooled], write: Callable[[], T]) -> T:
    """What ``write`` makes of ``many``, in a thread if there is much of them."""
    if sum(len(each.data) for each in many) <= INLINE_BYTES:
        return write()
    return await anyio.to_thread.run_sync(write)


def floats(pooled: Pooled) -> list[float]:
    """All of one text, row by row."""
    found: Any = memoryview(pooled.data).cast("f").tolist()
    return found  # type: ignore[no-any-return]


def rows(pooled: Pooled) -> list[list[float]]:
    if not pooled.rows or not pooled.columns:
        return [[] for _ in range(pooled.rows)]
    found: Any = memoryview(pooled.data).cast("B").cast("f", (pooled.rows, pooled.columns)).tolist()
    return found  # type: ignore[no-any-return]


def weights(pooled: Pooled) -> dict[str, float]:
    """Of ``sparse``: by the ids of tokens."""
    return dict(zip(map(str, memoryview(pooled.ids).cast("I").tolist()), floats(pooled), strict=True))


def base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def number_bytes(pooled: Pooled, type: NumberType, order: Endianness) -> bytes:
    """As :attr:`.Pooled.data`, of another type or order of bytes."""
    if type == "float32" and order != "big":
        return pooled.data
    import numpy as np  # late: hardly anybody asks for these

    wanted = (">" if order == "big" else "<") + _TYPES[type]
    return np.frombuffer(pooled.data, "<f4").astype(wanted).tobytes()


def raw(value: Any) -> Any:
    """JSON that has been written, in place of what it stands for: one text's numbers are then held up for alone."""
    return msgspec.Raw(_encode(value))


def one(pooled: Pooled, format: EncodingFormat, type: NumberType, order: Endianness, *, flat: bool) -> Any:
    """One text's numbers for a JSON answer; ``flat`` is one vector, otherwise there is a row for each token."""
    if format == "base64":
        return raw(base64(number_bytes(pooled, type, order)))
    if pooled.ids:
        return raw(weights(pooled))
    return raw(floats(pooled) if flat else rows(pooled))


def integers(many: Sequence[Pooled], kind: str) -> list[list[int]]:
    """Cohere's ``int8``, ``uint8``, ``binary`` and ``ubinary``: each number on a scale of its own text's largest, or
    its sign as one bit, the first of eight highest. ``binary`` and ``int8`` are the others less 128."""
    import numpy as np  # late: hardly anybody asks for these

    vectors = np.stack([np.frombuffer(each.data, "<f4") for each in many])
    if kind in ("binary", "ubinary"):
        packed = np.packbits(vectors >= 0, axis=1).astype(np.int16)
        found: list[list[int]] = (packed - (128 if kind == "binary" else 0)).tolist()
        return found
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    scaled = np.rint(vectors / largest * 127).astype(np.int16)
    found = (scaled + (128 if kind == "uint8" else 0)).tolist()
    return found
