"""Whole answers that may be large: encoded in parts, bounded, counted, and sent as the client reads.

Parts that are equal among the choices of an answer are stored once and sent as often as they occur.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from stentor.protocols.common.bounds import ANSWER_TOO_LARGE
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest

from ..overload.memory_budget import MemoryBudget, MemoryShare

Buffer = bytes | bytearray

PIECE_BYTES: Final = 128 << 10
"""Bytes handed to the connection at a time."""
_MARK: Final = b"\x01"
"""JSON never holds this byte: in a string it is escaped."""


class AnswerBudget:
    """Memory of one answer until it is sent: at most ``most`` bytes, which ``share`` counts."""

    def __init__(self, most: int, share: MemoryShare) -> None:
        self.most: Final = most
        self._share = share
        self._held = 0

    def add(self, size: int) -> None:
        """Raises BadRequest if the answer becomes too large, and the errors of ``share`` if the server is full."""
        self._held += size
        self.check(self._held)
        self._share.add(size)

    def check(self, size: int) -> None:
        if size > self.most:
            raise BadRequest(
                f"The answer has more than the {self.most} bytes that one may have; ask for fewer tokens, "
                "log-probabilities or choices.",
                None,
                ANSWER_TOO_LARGE,
            )


class JsonList:
    """A JSON array that grows. ``data`` is without its brackets."""

    __slots__ = ("_budget", "data")

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self.data = bytearray()

    def extend(self, items: Sequence[Any]) -> bytes:
        """Returns the array of ``items`` alone. Raises as :meth:`AnswerBudget.add`."""
        written = encode(items)
        if items:
            self._budget.add(len(written))
            if self.data:
                self.data += b","
            self.data += memoryview(written)[1:-1]
        return written

    def taken(self) -> Any:
        """The whole array, for an object; afterwards it is empty."""
        data, self.data = self.data, bytearray()
        return msgspec.Raw(b"[" + data + b"]") if data else []


def without_bound() -> AnswerBudget:
    return AnswerBudget(sys.maxsize, MemoryBudget(0).share())


def array(*lists: JsonList) -> list[Buffer]:
    """One JSON array of the elements of all lists, in parts to be written one after the other."""
    parts: list[Buffer] = [b"["]
    for one in lists:
        if one.data:
            parts += [one.data] if len(parts) == 1 else [b",", one.data]
    return [*parts, b"]"]


class AnswerParts:
    """Parts that are encoded separately from their object."""

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._parts: list[Sequence[Buffer]] = []

    def place(self, parts: Sequence[Buffer]) -> Any:
        """To be put into the object in place of the JSON that ``parts`` make together."""
        self._parts.append(parts)
        return msgspec.Raw(b"%b%d%b" % (_MARK, len(self._parts) - 1, _MARK))

    def answer(self, value: Any) -> "WholeAnswer":
        """``value`` with its parts. Raises BadRequest where they are too large together."""
        texts = encode(value).split(_MARK)
        segments: list[Buffer] = []
        for number, text in enumerate(texts):
            segments += self._parts[int(text)] if number % 2 else (text,)
        answer = WholeAnswer(segments)
        self._budget.check(answer.size)
        return answer


class WholeAnswer:
    """An ASGI response of JSON. It is sent in pieces, the next one when the client has taken enough of those before."""

    def __init__(self, segments: Sequence[Buffer], media_type: str = "application/json") -> None:
        self._segments = segments
        self._media_type = media_type
        self.headers: dict[str, str] = {}
        self.size: Final = sum(map(len, segments))
        """In bytes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"content-length": str(self.size), "content-type": self._media_type, **self.headers}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": raw})
        for piece in self.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # a client that is as fast as we are must not keep the loop from all others
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def pieces(self) -> Iterator[bytes]:
        """Pieces of about :data:`PIECE_BYTES` each."""
        waiting = bytearray()
        for segment in self._segments:
            if len(waiting) + len(segment) <= PIECE_BYTES:
                waiting += segment
                continue
            view = memoryview(segment)
            for start in range(0, len(view), PIECE_BYTES):
                waiting += view[start : start + PIECE_BYTES]
                if len(waiting) >= PIECE_BYTES:
                    yield bytes(waiting)
                    waiting.clear()
        if waiting:
            yield bytes(waiting)
