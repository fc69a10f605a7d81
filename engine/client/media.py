"""What live requests have brought besides tokens, in the arena, until no engine reads it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import anyio
import anyio.to_thread

from stentor.protocols.ipc.audio import SAMPLE_BYTES
from stentor.protocols.ipc.inputs import MAX_STREAM_BYTES, ArenaRef, InputSpan, Streamed, add_piece

from ..channel.arena import Arena

_INLINE_BYTES: Final = 256 << 10
"""More are written when the engine asks for them, in a thread."""
_CHUNK_BYTES: Final = 64 << 10
"""Of what is streamed, taken of the arena at once: two seconds."""


class Media(NamedTuple):
    """One piece of media of a request, see :class:`stentor.protocols.ipc.inputs.InputSpan`."""

    data: bytes | bytearray
    digest: bytes
    start: int = -1
    length: int = 0
    """Positions; 0: as many as the model makes of any."""
    grid: tuple[int, int, int] | None = None
    interval: float = 1.0


class StreamedMedia:
    """All the audio of a request: another engine would need it from its begin."""

    def __init__(self, arena: Arena, held: list[ArenaRef]) -> None:
        """``held``: what has been taken of the arena is added to it."""
        self._arena = arena
        self._held = held
        self._pieces: list[ArenaRef] = []
        self._size = 0
        self._left = 0
        """Bytes of the last that is held which have not been written."""
        self._ended = False

    def append(self, pcm: bytes, *, last: bool, live: bool = True) -> list[ArenaRef]:
        """Where it lies; nowhere, if nobody needs it. Raises ValueError for what no request may have, and
        :class:`..channel.arena.ArenaFull`."""
        if self._ended:
            raise ValueError("the request's audio has had its end: nothing can be appended to it")
        if len(pcm) % SAMPLE_BYTES:
            raise ValueError(f"audio of {len(pcm)} bytes was appended; expected are whole samples of {SAMPLE_BYTES}")
        if self._size + len(pcm) > MAX_STREAM_BYTES:
            raise ValueError(f"a request takes at most {MAX_STREAM_BYTES} bytes of audio: end it, and begin another")
        written = self._write(pcm) if live else []
        self._size += len(pcm)
        self._ended = last
        return written

    def streamed(self) -> Streamed:
        return Streamed([*self._pieces], self._ended)

    def _write(self, pcm: bytes) -> list[ArenaRef]:
        written: list[ArenaRef] = []
        while pcm:
            if not self._left:
                self._held.append(self._arena.allocate(max(_CHUNK_BYTES, len(pcm))))
                self._left = self._held[-1].length
            chunk = self._held[-1]
            some, pcm = pcm[: self._left], pcm[self._left :]
            piece = self._arena.write(chunk, some, chunk.length - self._left)
            self._left -= len(some)
            written.append(piece)
            add_piece(self._pieces, piece)
        return written


class MediaStore:
    """Who has brought what. A request's media are freed once it has ended, and no engine reads them: the one that got
    it says so, and one that is lost reads nothing.

    Large media get their place with the request, and are written once its engine asks for them: not where it finds
    what was made of them before.
    """

    def __init__(self, arena: Arena, inline_bytes: int = _INLINE_BYTES) -> None:
        """``inline_bytes``: of media that are written at once, at most."""
        self.arena = arena
        self._inline_bytes = inline_bytes
        self._held: dict[int, list[ArenaRef]] = {}
        """By request, of those that have brought media."""
        self._unwritten: dict[int, Media] = {}
        """What has a place and is not there yet, by where that begins."""
        self._writing: dict[int, anyio.Event] = {}
        """By the same, what is being written in a thread."""
        self._given: set[int] = set()
        """Requests that the engine at hand has, or is being sent."""

    def __len__(self) -> int:
        """Requests whose media are here."""
        return len(self._held)

    def place(self, rid: int, media: Sequence[Media], each: int) -> list[InputSpan]:
        """Gives media their places where workers see them; ``each``: embeddings of those that do not say. Raises
        :class:`..channel.arena.ArenaFull`, with nothing placed."""
        spans: list[InputSpan] = []
        if not media:
            return spans  # nothing to be released later: the engine names only requests that brought something
        held = self._held[rid] = []
        try:
            for one in media:
                ref = self._place(one)
                held.append(ref)
                written = ref.start not in self._unwritten
                spans.append(InputSpan(one.start, one.length or each, one.digest, ref, one.grid, one.interval, written))
        except BaseException:
            self._free(rid)
            raise
        return spans

    def _place(self, one: Media) -> ArenaRef:
        if self.arena.holds(one.digest) or len(one.data) <= self._inline_bytes:
            return self.arena.share(one.digest, one.data)
        ref = self.arena.allocate(len(one.data))
        self.arena.adopt(one.digest, ref)
        self._unwritten[ref.start] = one
        return ref

    async def write(self, rid: int) -> None:
        """Returns once all that the request has brought is written, in a thread while the event loop serves others;
        nothing happens where it has gone. Raises OSError."""
        for ref in [*self._held.get(rid, ())]:
            while (event := self._writing.get(ref.start)) is not None:
                await event.wait()  # another request has brought the same
            if rid in self._held and (one := self._unwritten.get(ref.start)) is not None:
                await self._write(ref, one)

    async def _write(self, ref: ArenaRef, one: Media) -> None:
        self.arena.hold(one.digest)  # whoever has brought it may go meanwhile
        written = self._writing[ref.start] = anyio.Event()
        try:
            with self.arena.writer(ref, one.data) as write:
                await anyio.to_thread.run_sync(write)  # also a caller that is cancelled waits for its end
            del self._unwritten[ref.start]
        finally:
            del self._writing[ref.start]
            written.set()
            self._give_back(ref)

    def stream(self, rid: int, begin: bytes = b"") -> StreamedMedia:
        """Of a request whose audio comes piece by piece, and begins so. Raises as :meth:`StreamedMedia.append` does."""
        audio = StreamedMedia(self.arena, self._held.setdefault(rid, []))
        audio.append(begin, last=False)
        return audio

    def given(self, rid: int) -> None:
        """The engine at hand gets the request."""
        if rid in self._held:
            self._given.add(rid)

    def taken_back(self, rid: int) -> None:
        """It has not got it after all."""
        self._given.discard(rid)

    def released(self, rids: Iterable[int]) -> None:
        """The engine reads them no more."""
        for rid in rids:
            self._given.discard(rid)
            self._free(rid)

    def lost(self) -> None:
        """The engine at hand is gone."""
        self._given.clear()

    def sweep(self, lives: Callable[[int], bool]) -> None:
        """Frees what ended while no engine had it."""
        for rid in [rid for rid in self._held if rid not in self._given and not lives(rid)]:
            self._free(rid)

    def _free(self, rid: int) -> None:
        for ref in self._held.pop(rid, ()):
            self._give_back(ref)

    def _give_back(self, ref: ArenaRef) -> None:
        if self.arena.free(ref):
            self._unwritten.pop(ref.start, None)
