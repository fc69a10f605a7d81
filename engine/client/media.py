"""The media of live requests in the arena, kept until no engine reads them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import anyio
import anyio.to_thread

from stentor.protocols.ipc.audio import SAMPLE_BYTES
from stentor.protocols.ipc.inputs import MAX_STREAM_BYTES, ArenaRef, InputSpan, Streamed, add_piece

from ..channel.arena import Arena

_INLINE_BYTES: Final = 256 << 10
"""Larger media are written in a thread, once the engine asks for them."""
_CHUNK_BYTES: Final = 64 << 10
"""Allocation unit of streamed audio: two seconds."""


class Media(NamedTuple):
    """One medium of a request; see :class:`stentor.protocols.ipc.inputs.InputSpan`."""

    data: bytes | bytearray
    digest: bytes
    start: int = -1
    length: int = 0
    """Positions; 0: the model's fixed number."""
    grid: tuple[int, int, int] | None = None
    interval: float = 1.0
    runs: tuple[tuple[int, int], ...] = ()
    field: str = ""
    causal: bool = False


class StreamedMedia:
    """The streamed audio of one request, kept whole because another engine needs it from the beginning."""

    def __init__(self, arena: Arena, held: list[ArenaRef]) -> None:
        """``held``: gets the allocations."""
        self._arena = arena
        self._held = held
        self._pieces: list[ArenaRef] = []
        self._size = 0
        self._left = 0
        """Unwritten bytes of the last allocation."""
        self._ended = False

    def append(self, pcm: bytes, *, last: bool, live: bool = True) -> list[ArenaRef]:
        """Append audio; returns where it lies, or [] if ``live`` is false. ``last``: the audio is complete.

        Raises ValueError for invalid audio, and :class:`..channel.arena.ArenaFull`.
        """
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
    """The media of all requests. They are freed once the request has ended and no engine reads them.

    The engine that got a request reports when it no longer reads its media; a lost engine reads nothing. Large media
    are allocated with the request, and written when the engine asks for them. It does not ask if it has them encoded.
    """

    def __init__(self, arena: Arena, inline_bytes: int = _INLINE_BYTES) -> None:
        """``inline_bytes``: larger media are not written at once."""
        self.arena = arena
        self._inline_bytes = inline_bytes
        self._held: dict[int, list[ArenaRef]] = {}
        """Allocations by request, of requests with media."""
        self._unwritten: dict[int, Media] = {}
        """Allocated media that are not written, by start."""
        self._writing: dict[int, anyio.Event] = {}
        """Media being written in a thread, by start."""
        self._given: set[int] = set()
        """Requests that the present engine has or is being sent."""

    def __len__(self) -> int:
        """Number of requests with media."""
        return len(self._held)

    def place(self, rid: int, media: Sequence[Media], each: int) -> list[InputSpan]:
        """Allocate a request's media; ``each``: embeddings of media without a length.

        Raises :class:`..channel.arena.ArenaFull`, with nothing allocated.
        """
        spans: list[InputSpan] = []
        if not media:
            return spans  # without media there is nothing to release
        held = self._held[rid] = []
        try:
            for one in media:
                ref = self._place(one)
                held.append(ref)
                written = ref.start not in self._unwritten
                length = one.length or each
                made = InputSpan(
                    one.start,
                    length,
                    one.digest,
                    ref,
                    one.grid,
                    one.interval,
                    written,
                    one.runs,
                    one.field,
                    one.causal,
                )
                spans.append(made)
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
        """Write all media of a request in a thread; does nothing if the request is gone. Raises OSError."""
        for ref in [*self._held.get(rid, ())]:
            while (event := self._writing.get(ref.start)) is not None:
                await event.wait()  # another request brought the same medium
            if rid in self._held and (one := self._unwritten.get(ref.start)) is not None:
                await self._write(ref, one)

    async def _write(self, ref: ArenaRef, one: Media) -> None:
        self.arena.hold(one.digest)  # its request may end meanwhile
        written = self._writing[ref.start] = anyio.Event()
        try:
            with self.arena.writer(ref, one.data) as write:
                await anyio.to_thread.run_sync(write)  # waits for its end even if cancelled
            del self._unwritten[ref.start]
        finally:
            del self._writing[ref.start]
            written.set()
            self._give_back(ref)

    def stream(self, rid: int, begin: bytes = b"") -> StreamedMedia:
        """Start a request's streamed audio with its first bytes. Raises as :meth:`StreamedMedia.append` does."""
        audio = StreamedMedia(self.arena, self._held.setdefault(rid, []))
        audio.append(begin, last=False)
        return audio

    def given(self, rid: int) -> None:
        """Record that the present engine gets the request."""
        if rid in self._held:
            self._given.add(rid)

    def taken_back(self, rid: int) -> None:
        """Record that the request was withdrawn before it was sent."""
        self._given.discard(rid)

    def released(self, rids: Iterable[int]) -> None:
        """Free the media of requests that the engine no longer reads."""
        for rid in rids:
            self._given.discard(rid)
            self._free(rid)

    def lost(self) -> None:
        """Record that the present engine is gone."""
        self._given.clear()

    def sweep(self, lives: Callable[[int], bool]) -> None:
        """Free the media of ended requests that no engine has."""
        for rid in [rid for rid in self._held if rid not in self._given and not lives(rid)]:
            self._free(rid)

    def _free(self, rid: int) -> None:
        for ref in self._held.pop(rid, ()):
            self._give_back(ref)

    def _give_back(self, ref: ArenaRef) -> None:
        if self.arena.free(ref):
            self._unwritten.pop(ref.start, None)
