"""The queue of messages to an engine."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

import anyio

from stentor.protocols.ipc.actors import Abort, Append, Control, MediaWritten, Ping, Submit, Vocabulary
from stentor.protocols.ipc.adapters import WarmAdapter
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.inputs import ArenaRef, add_piece

from ..channel import Endpoint, PeerDied
from ..channel.pieces import submit_frames

logger = logging.getLogger(__name__)

_NOBODY = -1
_APPEND = -2
_CONTROL = -3
_MEDIA = -4
_ADAPTER = -5
_LOOK_SECONDS = 0.5
_IDLE_LOOKS = 3

_Message = bytes | tuple[bytes, ...] | Submit | list[Append]
"""One frame, several in order, or a message that is encoded when it is sent."""

VocabularySource = Callable[[], Iterable[Vocabulary]]
"""Returns the pieces of the vocabulary; called in another thread."""


class SendQueue:
    """Messages to the engine, in order.

    Its size is bounded by the live requests even if the engine does not read: aborting a request whose Submit has not
    been sent removes it. The vocabulary goes before the first request that needs it, anew for each engine.
    """

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[int, int | None], _Message] = OrderedDict()
        """By rid and: None for the Submit, an Abort's index, :data:`_APPEND` for appended audio, :data:`_MEDIA` for the
        answer about written media."""
        self._filled = asyncio.Event()
        self._needing: set[int] = set()
        """Rids of queued Submits that need the vocabulary."""
        self._source: VocabularySource | None = None
        self._vocabulary: list[bytes] | None = None
        """The vocabulary as frames, once it was needed."""
        self._vocabulary_sent = False
        self._offered = False
        """Whether to send the vocabulary before it is needed."""

    def set_vocabulary(self, source: VocabularySource) -> None:
        """Set the source of the vocabulary."""
        self._source = source
        self._vocabulary = None
        self._vocabulary_sent = False

    def __len__(self) -> int:
        return len(self._frames)

    def submit(self, rid: int, request: tuple[bytes, ...] | Submit, *, needs_vocabulary: bool = False) -> None:
        """Queue a Submit. It is encoded when it is sent, since encoding many at once would block the loop."""
        self._frames[rid, None] = request
        if needs_vocabulary:
            self._needing.add(rid)
        self._filled.set()

    def withdraw(self, rid: int) -> bool:
        """Remove a queued Submit; False if it has been sent."""
        self._needing.discard(rid)
        left = self._frames.pop((rid, None), None) is None
        if not left:
            self._frames.pop((rid, _APPEND), None)
        return not left

    def holds(self, rid: int) -> bool:
        """Whether a Submit is still queued."""
        return (rid, None) in self._frames

    def append(self, more: Append) -> None:
        """Queue audio behind its Submit; queued pieces are sent as one message."""
        waiting = self._frames.setdefault((more.rid, _APPEND), [])
        assert isinstance(waiting, list)
        waiting.append(more)
        self._filled.set()

    def media_written(self, rid: int, error: str = "") -> None:
        """Queue the answer about written media."""
        self._frames[rid, _MEDIA] = encoder.encode(MediaWritten(rid, error))
        self._filled.set()

    def abort(self, rid: int, index: int) -> None:
        self._frames[rid, index] = encoder.encode(Abort(rid, index))
        self._filled.set()

    def ping(self) -> None:
        self._frames[_NOBODY, None] = encoder.encode(Ping())
        self._filled.set()

    def control(self, control: Control) -> None:
        self._frames[_CONTROL, control.number] = encoder.encode(control)
        self._filled.set()

    def warm(self, message: WarmAdapter) -> None:
        self._frames[_ADAPTER, message.ticket] = encoder.encode(message)
        self._filled.set()

    async def offer_vocabulary(self, is_idle: Callable[[], bool]) -> None:
        """Queue the vocabulary ahead of need, once there was no request for a while: preparing for grammars delays the
        engine. Ignored if there is none, or this engine has it."""
        idle = 0
        while idle < _IDLE_LOOKS:
            await anyio.sleep(_LOOK_SECONDS)
            idle = idle + 1 if is_idle() else 0
        self._offered = self._source is not None and not self._vocabulary_sent
        self._filled.set()

    def clear(self) -> None:
        """Drop all messages: the engine is gone."""
        self._frames.clear()
        self._needing.clear()
        self._vocabulary_sent = self._offered = False

    async def send_all(self, engine: Endpoint) -> None:
        """Send messages as they come; returns when the engine is gone, which the receiving side reports."""
        while True:
            try:
                while self._frames:
                    (rid, index), message = next(iter(self._frames.items()))
                    if index is None and rid in self._needing and not self._vocabulary_sent:
                        await self._send_vocabulary(engine)
                        continue  # the queue may have changed meanwhile
                    del self._frames[rid, index]
                    if index is None:
                        self._needing.discard(rid)
                    for frame in _frames_of(message):
                        await engine.send(frame)
                if self._offered:
                    await self._send_vocabulary(engine)
                    continue
            except PeerDied:
                return
            self._filled.clear()
            await self._filled.wait()

    async def _send_vocabulary(self, engine: Endpoint) -> None:
        if self._vocabulary is None:
            source = self._source
            self._vocabulary = [] if source is None else await anyio.to_thread.run_sync(_vocabulary_frames, source)
        for frame in self._vocabulary:
            await engine.send(frame)
        self._vocabulary_sent = True
        self._offered = False


def _frames_of(message: _Message) -> Iterable[bytes]:
    match message:
        case bytes():
            return (message,)
        case tuple():
            return message
        case Submit():
            return submit_frames(message)
        case pieces:
            last = pieces[-1]
            refs: list[ArenaRef] = []
            for piece in (piece for each in pieces for piece in each.pieces):
                add_piece(refs, piece)
            return (encoder.encode(Append(last.rid, refs, last.last)),)


def _vocabulary_frames(source: VocabularySource) -> list[bytes]:
    """The vocabulary's frames; empty if it cannot be made: the engine then refuses only requests that need it."""
    try:
        return [encoder.encode(piece) for piece in source()]
    except Exception:
        logger.exception("the model's tokens cannot be sent to the engine: grammars and thinking budgets are refused")
        return []
