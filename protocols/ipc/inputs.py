"""Media of a request: stored in shared memory, referenced in messages.

The server writes bytes of a client (audio samples) once into an arena that workers map as well. Messages carry their
address. The bytes stay until the engine reports that no step will read them (``Released``). Large media get their space
at once and are written when the engine asks for them (``MediaWanted``), which it does not if it has their embeddings or
tokens cached.
"""

import msgspec

MAX_STREAM_BYTES = 32 << 20
"""Bytes of a request with streamed audio, at most: more than a quarter of an hour."""


class ArenaRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes [start, start + length) of the arena."""

    start: int
    length: int

    def cut(self, start: int, end: int) -> "ArenaRef":
        """Bytes [start, end) of these."""
        return ArenaRef(self.start + start, end - start)


class InputSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One piece of media of a request, to be encoded to embeddings.

    The engine stores encodings by digest, so several requests over the same media (another temperature of a transcript,
    a turn of a chat) share them.
    """

    start: int
    """Position in the prompt at which its embeddings replace tokens; -1: nowhere, all positions attend to it."""
    length: int
    """Positions from its first embedding to its last. Text tokens may lie between: embeddings replace the model's
    placeholder tokens."""
    digest: bytes
    """Names the media: equal digests are equal media. 16 bytes."""
    data: ArenaRef
    grid: tuple[int, int, int] | None = None
    """Frames, rows and columns of its embeddings, for models with rotary positions in a picture."""
    interval: float = 1.0
    """How far the positions of two frames are apart, where frames have a time."""
    written: bool = True
    """Whether the bytes are written; otherwise they are once :class:`.actors.MediaWritten` names the request."""
    runs: tuple[tuple[int, int], ...] = ()
    """Its embeddings without the text between them: [first, end), counted from ``start``. Empty: there is no text."""
    field: str = ""
    """The field of the request that brought it, for errors."""
    causal: bool = False
    """Whether its tokens see those before them alone, in models too in which tokens of a picture see each other:
    sounds."""

    @property
    def end(self) -> int:
        """The prompt position behind its last, if it has any."""
        return self.start + self.length

    @property
    def whole_parts(self) -> list[tuple[int, int]]:
        """The prompt positions [first, end) of embeddings that stand next to each other and may see each other."""
        if self.causal:
            return []
        return [(self.start + first, self.start + end) for first, end in self.runs or ((0, self.length),)]


class StreamShape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How positions of a streaming transcription model follow the samples."""

    first: int
    """Samples that must be there before the first position can be computed; at least 1."""
    step: int
    """Further samples for each further position."""
    tail: bool = False
    """Whether the end of an input is one more position, of what is left then; otherwise its last positions are those
    that begin in it."""

    def positions(self, samples: int, *, ended: bool) -> int:
        """Positions that can be computed with so many samples, which are all if the input has ended."""
        if ended and not self.tail:
            return -(-samples // self.step)
        return (0 if samples < self.first else 1 + (samples - self.first) // self.step) + ended


class Streamed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Marks a request whose audio arrives in pieces, by :class:`.actors.Append`; has the pieces so far."""

    pieces: list[ArenaRef] = []
    """In order, see :data:`.audio.SAMPLE_BYTES`; up to :data:`MAX_STREAM_BYTES`, with all that follows."""
    ended: bool = False
    """Whether nothing follows."""


def add_piece(pieces: list[ArenaRef], piece: ArenaRef) -> None:
    """Appends, as one with the last where the two adjoin; mutates."""
    if pieces and pieces[-1].start + pieces[-1].length == piece.start:
        pieces[-1] = ArenaRef(pieces[-1].start, pieces[-1].length + piece.length)
    else:
        pieces.append(piece)


def total_bytes(pieces: list[ArenaRef]) -> int:
    """Bytes of all pieces together."""
    return sum(piece.length for piece in pieces)
