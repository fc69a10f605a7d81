"""What a request brings besides its tokens: media, which lie in shared memory and are named in messages.

Bytes that a client sends (samples of audio) are written once, by the server, into an arena that workers map as well.
Messages carry where they lie. They stay until the engine has said that no step will read them (``Released``). Those of
large media have their place from the beginning, and are written once the engine asks for them (``MediaWanted``), which
it does not where it finds what was made of them.
"""

import msgspec

MAX_STREAM_BYTES = 32 << 20
"""Of a request whose audio comes piece by piece, at most: a good quarter of an hour."""


class ArenaRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes [start, start + length) of the arena."""

    start: int
    length: int

    def cut(self, start: int, end: int) -> "ArenaRef":
        """Bytes [start, end) of these."""
        return ArenaRef(self.start + start, end - start)


class InputSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One piece of media of a request, which an encoder makes embeddings of.

    The engine keeps what was encoded by the digest, so several requests over the same media (a temperature of a
    transcript, a turn of a chat) share it.
    """

    start: int
    """Position of the prompt at which its embeddings stand in place of tokens; -1: at none, all positions attend to
    it."""
    length: int
    """Positions from its first embedding to its last. Tokens of text may stand between: embeddings stand where the
    prompt has the model's placeholder token."""
    digest: bytes
    """Names the media: equal digests are equal media. 16 bytes."""
    data: ArenaRef
    grid: tuple[int, int, int] | None = None
    """Frames, rows and columns of its embeddings, where the model turns positions by where they lie in a picture."""
    interval: float = 1.0
    """How far the positions of two frames are apart, where frames have a time."""
    written: bool = True
    """Whether the bytes are there; if not, they are once the request is named by :class:`.actors.MediaWritten`."""

    @property
    def end(self) -> int:
        """The position of the prompt behind its last, where it stands at any."""
        return self.start + self.length


class StreamShape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How positions of a streaming transcription model follow the samples."""

    first: int
    """Samples that must be there before the first position can be computed; at least 1."""
    step: int
    """Further samples for each further position; the whole of an input are as many positions as begin in it."""


class Streamed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Says that a request's audio comes piece by piece, by :class:`.actors.Append`; and what has come of it."""

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
    """Of all of them together."""
    return sum(piece.length for piece in pieces)
