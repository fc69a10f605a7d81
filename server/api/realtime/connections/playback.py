"""Plays answers piece by piece for transports that carry sound, and knows how much was heard."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

import anyio

from ..common.audio_budget import AudioShare, unbounded
from ..common.interfaces import OnPlayed, PlayedItems

BYTES_A_MS: Final = 48
"""Bytes of pcm at 24 kHz."""


class _ResponseAudio:
    """Audio of one response; satisfies :class:`..common.interfaces.Pacer`."""

    def __init__(self, ahead_ms: float) -> None:
        self._ahead_ms = ahead_ms
        self.pieces: deque[tuple[str, bytes]] = deque()
        """Items, and audio of them."""
        self.size = 0
        """Bytes of those."""
        self.played: dict[str, int] = {}
        """Bytes of each of its items."""
        self.begun = False
        self.finished = False
        self._less = anyio.Event()

    @property
    def unplayed_ms(self) -> float:
        return self.size / BYTES_A_MS

    async def admit(self, ms: float) -> None:
        while self.size and self.unplayed_ms + ms > self._ahead_ms:
            self._less = anyio.Event()
            await self._less.wait()

    def push(self, item_id: str, audio: bytes) -> None:
        self.pieces.append((item_id, audio))
        self.size += len(audio)
        self.played.setdefault(item_id, 0)

    def take(self, size: int, on_played: OnPlayed | None = None) -> bytes:
        """Up to ``size`` bytes."""
        taken = bytearray()
        while self.pieces and len(taken) < size:
            item_id, audio = self.pieces.popleft()
            part, rest = audio[: size - len(taken)], audio[size - len(taken) :]
            if rest:
                self.pieces.appendleft((item_id, rest))
            taken += part
            self.played[item_id] += len(part)
            if on_played is not None:
                on_played(item_id, self.played[item_id] // BYTES_A_MS)
        self.size -= len(taken)
        self._less.set()
        return bytes(taken)

    def clear(self) -> None:
        self.pieces.clear()
        self.size = 0
        self._less.set()


class CallPlayer:
    """Plays one response after another; satisfies :class:`..common.interfaces.Player`.

    A response is heard to its end when it has finished and :meth:`next_frame` finds nothing left of it. Until then it
    is known how much of each of its items was heard.
    """

    def __init__(
        self,
        on_started: Callable[[str], None],
        on_stopped: Callable[[str], None],
        ahead_seconds: float,
        share: AudioShare | None = None,
        on_played: OnPlayed | None = None,
    ) -> None:
        """``ahead_seconds`` of a response may wait for playback. ``share`` counts stored audio. ``on_played`` is
        called with each piece."""
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._ahead_ms = ahead_seconds * 1000
        self._hold = (share or unbounded()).hold()
        self._on_played = on_played
        self._news = anyio.Event()
        self._silent = anyio.Event()
        self._responses: dict[str, _ResponseAudio] = {}
        """Responses that are incomplete or not fully played."""
        self._playing: OrderedDict[str, _ResponseAudio] = OrderedDict()
        """Responses with audio, in order."""

    def pacer(self, response_id: str) -> _ResponseAudio:
        return self._responses.setdefault(response_id, _ResponseAudio(self._ahead_ms))

    def play(self, response_id: str, item_id: str, audio: bytes) -> None:
        response = self.pacer(response_id)
        self._playing[response_id] = response
        response.push(item_id, audio)
        self._hold.set(self._hold.bytes + len(audio))
        self._news.set()

    def finish(self, response_id: str) -> None:
        response = self._responses.pop(response_id, None)
        if response is not None:
            response.finished = True
        self._news.set()

    def stop(self) -> PlayedItems:
        begun = next((id for id, response in self._playing.items() if response.begun), None)
        items: dict[str, int] = {}
        for id, response in list(self._playing.items()):
            items |= {item: size // BYTES_A_MS for item, size in response.played.items()}
            response.clear()
            if response.finished:
                del self._playing[id]
            response.begun = False
        self._hold.set(0)
        return PlayedItems(begun, items)

    async def drained(self) -> None:
        while self._responses or self._playing:
            self._silent = anyio.Event()
            await self._silent.wait()

    async def news(self) -> None:
        """Waits until there is more to play, or a response has finished."""
        self._news = anyio.Event()
        await self._news.wait()

    def next_frame(self, size: int) -> bytes:
        """The next ``size`` bytes to play, filled up with silence."""
        piece = self.next_piece(size)
        return piece + bytes(size - len(piece))

    def next_piece(self, size: int) -> bytes:
        """Up to ``size`` bytes to play; none if nothing is there."""
        while self._playing:
            id, response = next(iter(self._playing.items()))
            if response.size:
                if not response.begun:
                    response.begun = True
                    self._on_started(id)
                piece = response.take(size, self._on_played)
                self._hold.set(self._hold.bytes - len(piece))
                return piece
            if not response.finished:
                break
            del self._playing[id]
            if response.begun:
                self._on_stopped(id)
        self._silent.set()
        return b""
