"""Cuts a growing sequence of codes into stretches for the codec, each with the frames that its samples depend on."""

from typing import Final, NamedTuple

from stentor.engine.tts.codecs import Codec

FIRST_SECONDS: Final = 0.25
"""Of the first stretch, so that audio begins early; each other one is twice as long, so that less is decoded twice."""
MOST_SECONDS: Final = 2.0


class Chunk(NamedTuple):
    """See :class:`~stentor.protocols.ipc.speech.DecodeCodes`."""

    codes: list[int]
    first: int
    skip: int
    keep: int
    last: bool
    """Whether nothing follows."""


class CodeChunks:
    """The codes of one sentence. The samples of all chunks joined are those of the whole sentence."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._codes: list[int] = []
        self._sent = 0
        """Frames whose stretches have been taken."""
        self._ended = False
        self._seconds = FIRST_SECONDS

    @property
    def frames(self) -> int:
        """Complete frames so far."""
        return len(self._codes) // self._codec.frame_codes

    def add(self, codes: list[int]) -> None:
        self._codes += codes

    def end(self) -> None:
        """Nothing more comes; an incomplete frame is dropped."""
        self._ended = True

    def take(self) -> Chunk | None:
        """The next stretch; None until there are enough frames, and after the last one."""
        context, known = self._codec.context, self.frames
        left = known - self._sent
        if context is None or (self._ended and left <= self._size() + context):
            if not self._ended or not left:
                return None
            return self._cut(left, left, context, last=True)
        size = self._size()
        if left < size + context:
            return None
        chunk = self._cut(size, size + context, context, last=False)
        self._seconds = min(MOST_SECONDS, 2 * self._seconds)
        return chunk

    def _size(self) -> int:
        """Frames of the next stretch."""
        return max(1, round(self._seconds * self._codec.frames_a_second))

    def _cut(self, keep: int, until: int, context: int | None, *, last: bool) -> Chunk:
        begin = self._sent
        first = 0 if context is None else max(0, begin - context)
        per = self._codec.frame_codes
        self._sent += keep
        return Chunk(self._codes[first * per : (begin + until) * per], first, begin - first, keep, last)
