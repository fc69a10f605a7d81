"""One text being spoken: its text so far, its audio, and its reader."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, NamedTuple, Self

import anyio

from ..common.task_scope import TaskScope
from .sentences import SentenceSplitter, WholeText, weight

AHEAD: Final = 3
"""Sentences that are made before they are read."""
MAX_PENDING_CHARS: Final = 1 << 16
"""Characters of a streamed text ahead of the speech."""
_SLICE: Final = 1024


class Spoken(NamedTuple):
    pcm: bytes
    """Signed 16 bits, little-endian, one channel, at the model's rate; empty where ``text`` has nothing to say."""
    text: str
    """The part of the text that begins here, or "" within a part; all parts joined are the text."""
    last: bool
    """Whether nothing follows."""


class Origin(NamedTuple):
    """The request that a text belongs to."""

    salt: str = ""
    """Texts share cached prefixes only under the same."""
    name: str = ""
    """The id of the request, for logs."""


_UNKNOWN: Final = Origin()


class Speaking:
    """An iterator of :class:`Spoken`, which must be closed. It belongs to one reader."""

    def __init__(
        self,
        text: str | AsyncIterator[str],
        voice: str,
        speed: float,
        on_change: Callable[[], None],
        on_leave: Callable[["Speaking"], None],
        origin: Origin = _UNKNOWN,
        *,
        whole: bool = False,
    ) -> None:
        """``on_change`` is called when :attr:`wants` may have become true, ``on_leave`` once it never will again.
        ``whole``: whether the text is not cut into sentences."""
        self.voice: Final = voice
        self.speed: Final = speed
        self.origin: Final = origin
        self.arrival: Final = time.monotonic()
        self.has_audio = False
        """Whether audio exists."""
        self._on_change = on_change
        self._on_leave = on_leave
        self._splitter = WholeText() if whole else SentenceSplitter(speed)
        self._text, self._at = (text, 0) if isinstance(text, str) else ("", 0)
        self._coming = not isinstance(text, str)
        """Whether more of the text may come."""
        self._pieces: deque[str] = deque()
        self._chars = 0
        """In the pieces."""
        self._room = asyncio.Event()
        self._work: anyio.CancelScope | None = None
        """Scope of the synthesis of its sentence."""
        self._made: deque[Spoken] = deque()
        self._begun = False
        """Whether parts of the sentence being made have been delivered."""
        self._news = asyncio.Event()
        self._broken: Exception | None = None
        """Error of the text's source."""
        self._failure: Exception | None = None
        self._left = False
        self._feeder = TaskScope("texts to be spoken")
        if not isinstance(text, str):
            self._feeder.start(self._feed(text))
        else:
            self._refill()

    # ---- for the reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Spoken:
        while not self._made:
            if self._failure is not None:
                raise self._failure
            if self._left:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        spoken = self._made.popleft()
        self._on_change()
        return spoken

    async def aclose(self) -> None:
        """Drops unfinished sentences, the current one included. May be called repeatedly."""
        self._made.clear()
        self._failure = None
        self._leave()
        if self._work is not None:
            self._work.cancel()
        await self._feeder.aclose()

    # ---- for the model

    @property
    def left(self) -> bool:
        """Whether it needs no more sentences."""
        return self._left

    @property
    def wants(self) -> bool:
        """Whether a sentence can be made now."""
        ahead = sum(1 for spoken in self._made if spoken.text)
        return bool(self._pieces) and not self._left and self._work is None and ahead < AHEAD

    @property
    def next_weight(self) -> float:
        """Weight of the piece that :meth:`take` would return; see :func:`.sentences.weight`."""
        return weight(self._pieces[0], self.speed)

    @property
    def rest(self) -> int:
        """Characters that have come and are not taken."""
        return self._chars + len(self._text) - min(self._at, len(self._text))

    def take(self, work: anyio.CancelScope) -> str:
        """The next piece, to be passed to :meth:`deliver` or :meth:`fail`; ``work`` cancels it."""
        self._work = work
        piece = self._pieces.popleft()
        self._chars -= len(piece)
        self._room.set()
        if not self._coming and not self._pieces:
            self._refill()
        return piece

    def deliver_part(self, piece: str, pcm: bytes) -> None:
        """Audio of a piece that is still being made."""
        if not self._left:
            self._add_audio(piece, pcm, last=False)
            self._begun = True

    def deliver(self, piece: str, pcm: bytes) -> None:
        """The audio of a piece, or what follows its parts."""
        self._work = None
        if self._left:
            return
        over = not self._coming and not self._pieces
        self._add_audio(piece, pcm, last=over and self._broken is None)
        self._begun = False
        if over:
            self._end()

    def _add_audio(self, piece: str, pcm: bytes, *, last: bool) -> None:
        self.has_audio = self.has_audio or bool(pcm)
        self._made.append(Spoken(pcm, "" if self._begun else piece, last))
        self._news.set()

    def fail(self, error: Exception | None) -> None:
        """Earlier audio can still be read. None: there is no reader any more."""
        self._work = None
        if not self._left:
            self._failure = error
            self._leave()

    # ---- the text

    def _refill(self) -> None:
        """Splits only as much of the text as a piece needs, so that a long text costs nothing ahead of time."""
        while not self._pieces and self._at < len(self._text):
            self._add(self._splitter.push(self._text[self._at : self._at + _SLICE]))
            self._at += _SLICE
            if self._at >= len(self._text):
                self._add(self._splitter.finish())
        if not self._pieces and self._work is None:
            self._end()

    async def _feed(self, text: AsyncIterator[str]) -> None:
        try:
            async for delta in text:
                self._add(self._splitter.push(delta))
                while self._chars > MAX_PENDING_CHARS:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._broken = error
        finally:
            if isinstance(text, AsyncGenerator):
                await text.aclose()
        rest = self._splitter.finish()
        self._coming = False
        self._add(rest)
        if not self._pieces and self._work is None:
            self._end()

    def _add(self, pieces: list[str]) -> None:
        self._pieces.extend(pieces)
        self._chars += sum(map(len, pieces))
        if pieces:
            self._on_change()

    def _end(self) -> None:
        """There is nothing left to make."""
        self._failure = self._broken
        self._leave()

    def _leave(self) -> None:
        self._news.set()
        if not self._left:
            self._left = True
            self._on_leave(self)
