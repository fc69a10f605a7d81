"""Audio that comes piece by piece while its request runs: what there is of it, and how far a row may go with it."""

from stentor.protocols.ipc.audio import SAMPLE_BYTES, Streamed, StreamShape

NO_LIMIT = 1 << 62
"""Positions that a row may compute where nothing is streamed."""


class InputStream:
    """The input of one request, whole: a row that was lost is fed from the beginning again."""

    __slots__ = ("_pcm", "_shape", "ended")

    def __init__(self, streamed: Streamed, shape: StreamShape) -> None:
        self._pcm = bytearray(streamed.pcm)
        self._shape = shape
        self.ended = streamed.ended
        """Whether nothing comes any more; what is missing of the last position is silence."""

    def __len__(self) -> int:
        """Bytes so far."""
        return len(self._pcm)

    def append(self, pcm: bytes, *, ended: bool) -> None:
        self._pcm += pcm
        self.ended = ended

    def between(self, start: int, end: int) -> bytes:
        """Bytes [start, end)."""
        return bytes(memoryview(self._pcm)[start:end])

    def needed(self, positions: int) -> int:
        """Bytes that so many positions hear, of those that there are; with the last position all of them."""
        return min(len(self._pcm), SAMPLE_BYTES * (self._shape.first + self._shape.step * positions))

    @property
    def ready_len(self) -> int:
        """Positions for which there is all that they hear."""
        samples = len(self._pcm) // SAMPLE_BYTES
        if self.ended:
            return -(-samples // self._shape.step)
        return 0 if samples < self._shape.first else 1 + (samples - self._shape.first) // self._shape.step
