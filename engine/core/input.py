"""Audio that is streamed into a running request: the bytes received, and the positions that they suffice for."""

import bisect

from stentor.protocols.ipc.audio import SAMPLE_BYTES
from stentor.protocols.ipc.inputs import ArenaRef, Streamed, StreamShape, add_piece

NO_LIMIT = 1 << 62
"""Limit on positions of a request without streamed input."""


class InputStream:
    """The whole input of one request, kept because a row that was lost reads it again from the beginning."""

    __slots__ = ("_ends", "_pieces", "_shape", "ended")

    def __init__(self, streamed: Streamed, shape: StreamShape) -> None:
        self._pieces: list[ArenaRef] = []
        self._ends: list[int] = []
        """Byte offset of the end of each piece."""
        self._shape = shape
        self.ended = streamed.ended
        """Whether the input is complete. Silence fills up its last position."""
        self.append(streamed.pieces, ended=streamed.ended)

    def __len__(self) -> int:
        """Bytes received so far."""
        return self._ends[-1] if self._ends else 0

    def append(self, pieces: list[ArenaRef], *, ended: bool) -> None:
        for piece in pieces:
            end = len(self) + piece.length
            add_piece(self._pieces, piece)
            self._ends[len(self._pieces) - 1 :] = [end]
        self.ended = ended

    def between(self, start: int, end: int) -> list[ArenaRef]:
        """The arena ranges of bytes [start, end)."""
        found = []
        for number in range(bisect.bisect(self._ends, start), len(self._pieces)):
            piece = self._pieces[number]
            first = self._ends[number] - piece.length
            if first >= end:
                break
            found.append(piece.cut(max(0, start - first), min(end, self._ends[number]) - first))
        return found

    def needed(self, positions: int) -> int:
        """Bytes that the first ``positions`` positions read, at most those received."""
        return min(len(self), SAMPLE_BYTES * (self._shape.first + self._shape.step * positions))

    @property
    def ready_len(self) -> int:
        """Positions whose audio has been received entirely."""
        return self._shape.positions(len(self) // SAMPLE_BYTES, ended=self.ended)
