"""What live requests have brought besides tokens, in the arena, until no engine reads it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import anyio
import anyio.to_thread

from stentor.protocols.ipc.audio import SAMPLE_BYTES
from stentor.protocols.ipc.inputs import MAX_STREAM_BYTES, ArenaRef, InputSpan, Streamed, add_piece

from ..channel.arena import Arena

_INLINE_BYTES: Final = 256 << 10
"""More are written in a thread."""
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


class StagedMedia:
    """Media that lie where workers see them before their request does. Must be closed, once the request has been given
    to the engine or will not be."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._held: list[ArenaRef] = []

    def hold(self, ref: ArenaRef) -> None:
        """``ref`` has a holder that is this."""
        self._held.append(ref)

    def close(self) -> None:
        """May be called again."""
        while self._held:
            self._arena.free(self._held.pop())


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
    it says so, and one that is lost reads nothing."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._held: dict[int, list[ArenaRef]] = {}
        """By request, of those that have brought media."""
        self._writing: dict[bytes, anyio.Event] = {}
        """By digest, what is being written in a thread."""
        self._given: set[int] = set()
        """Requests that the engine at hand has, or is being sent."""

    def __len__(self) -> int:
        """Requests whose media are here."""
        return len(self._held)

    async def stage(self, media: Sequence[Media]) -> StagedMedia:
        """Puts media where workers see them, so that :meth:`place` finds them there. Large ones are written in a
        thread, while the event loop serves others. Raises :class:`..channel.arena.ArenaFull`."""
        staged = StagedMedia(self.arena)
        try:
            for one in media:
                staged.hold(await self._stage(one))
        except BaseException:
            staged.close()
            raise
        return staged

    async def _stage(self, one: Media) -> ArenaRef:
        while (event := self._writing.get(one.digest)) is not None:
            await event.wait()  # another request brings the same
        if self.arena.holds(one.digest):
            return self.arena.hold(one.digest)
        if len(one.data) <= _INLINE_BYTES:
            return self.arena.share(one.digest, one.data)
        ref = self.arena.allocate(len(one.data))
        written = self._writing[one.digest] = anyio.Event()
        try:
            with self.arena.writer(ref, one.data) as write:
                await anyio.to_thread.run_sync(write)  # also a caller that is cancelled waits for its end
        except BaseException:
            self.arena.free(ref)
            raise
        finally:
            del self._writing[one.digest]
            written.set()
        if self.arena.holds(one.digest):  # a request has been placed with it that was not staged
            self.arena.free(ref)
            return self.arena.hold(one.digest)
        self.arena.adopt(one.digest, ref)
        return ref

    def place(self, rid: int, media: Sequence[Media], each: int) -> list[InputSpan]:
        """Puts media where workers see them; ``each``: embeddings of those that do not say. Raises
        :class:`..channel.arena.ArenaFull`, with nothing placed."""
        spans: list[InputSpan] = []
        if not media:
            return spans  # nothing to be released later: the engine names only requests that brought something
        held = self._held[rid] = []
        try:
            for one in media:
                held.append(self.arena.share(one.digest, one.data))
                spans.append(InputSpan(one.start, one.length or each, one.digest, held[-1], one.grid, one.interval))
        except BaseException:
            self._free(rid)
            raise
        return spans

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
            self.arena.free(ref)
