"""What is on its way to an engine and has not left yet."""

import asyncio
from collections import OrderedDict

from stentor.protocols.actors import Abort, Ping, Submit
from stentor.protocols.codec import encoder

from .channel import Endpoint, PeerDied

_NOBODY = -1


class Outbox:
    """Messages in order. Bounded by the live requests, also for as long as the engine does not read: one that is given
    up before its Submit has left takes it out again."""

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[int, int | None], bytes | Submit] = OrderedDict()
        """By rid, and the index of an Abort or None for the Submit."""
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._frames)

    def submit(self, rid: int, request: bytes | Submit) -> None:
        """A Submit is encoded when its turn comes: many of them at once would hold up the loop."""
        self._frames[rid, None] = request
        self._filled.set()

    def withdraw(self, rid: int) -> bool:
        """Takes a Submit out again; false where it has left."""
        return self._frames.pop((rid, None), None) is not None

    def abort(self, rid: int, index: int) -> None:
        self._frames[rid, index] = encoder.encode(Abort(rid, index))
        self._filled.set()

    def ping(self) -> None:
        self._frames[_NOBODY, None] = encoder.encode(Ping())
        self._filled.set()

    def clear(self) -> None:
        self._frames.clear()

    async def send_all(self, engine: Endpoint) -> None:
        """Sends whatever comes. Returns when the engine is gone; the receiving side is told of that."""
        while True:
            try:
                while self._frames:
                    _, message = self._frames.popitem(last=False)
                    await engine.send(encoder.encode(message) if isinstance(message, Submit) else message)
            except PeerDied:
                return
            self._filled.clear()
            await self._filled.wait()
