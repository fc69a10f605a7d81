"""Audio that comes piece by piece while its request runs: what there is of it, and how far a row may go with it."""

import bisect

from stentor.protocols.ipc.audio import SAMPLE_BYTES
from stentor.protocols.ipc.inputs import ArenaRef, Streamed, StreamShape, add_piece

NO_LIMIT = 1 << 62
"""Positions that a row may compute where nothing is streamed."""


class InputStream:
    """The input of one request, whole: a row that was lost is fed from the beginning again."""

    __slots__ = ("_ends", "_pieces", "_shape", "ended")

    def __init__(self, streamed: Streamed, shape: StreamShape) -> None:
        self._pieces: list[ArenaRef] = []
        self._ends: list[int] = []
        """Of each piece, the bytes up to its end."""
        self._shape = shape
        self.ended = streamed.ended
        """Whether nothing comes any more; what is missing of the last position is silence."""
        self.append(streamed.pieces, ended=streamed.ended)

    def __len__(self) -> int:
        """Bytes so far."""
        return self._ends[-1] if self._ends else 0

    def append(self, pieces: list[ArenaRef], *, ended: bool) -> None:
        for piece in pieces:
            end = len(self) + piece.length
            add_piece(self._pieces, piece)
            self._ends[len(self._pieces) - 1 :] = [end]
        self.ended = ended

    def between(self, start: int, end: int) -> list[ArenaRef]:
        """Where bytes [start, end) lie."""
        found = []
        for number in range(bisect.bisect(self._ends, start), len(self._pieces)):
            piece = self._pieces[number]
            first = self._ends[number] - piece.length
            if first >= end:
                break
            found.append(piece.cut(max(0, start - first), min(end, self._ends[number]) - first))
        return found

    def needed(self, positions: int) -> int:
        """Bytes that so many positions hear, of those that there are; with the last position all of them."""
        return min(len(self), SAMPLE_BYTES * (self._shape.first + self._shape.step * positions))

    @property
    def ready_len(self) -> int:
        """Positions for which there is all that they hear."""
        samples = len(self) // SAMPLE_BYTES
        if self.ended:
            return -(-samples // self._shape.step)
        return 0 if samples < self._shape.first else 1 + (samples - self._shape.first) // self._shape.step
