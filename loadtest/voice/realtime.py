"""A realtime client that sends speech in real time and notes the time of each event."""

import asyncio
import base64
import json
import time
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from ..server_process import HOST

RATE: Final = 24_000
_PIECE_SECONDS: Final = 0.04
_PIECE: Final = 2 * RATE * 40 // 1000
"""Bytes that are sent at a time."""
_VOICED_SHARE: Final = 0.05
"""Of a clip's loudest sample: what is below is not speech any more."""


@dataclass(frozen=True)
class Speech:
    """Pcm of 24 kHz, and where speech ends in it."""

    pcm: bytes
    text: str
    voiced_ms: float

    @property
    def ms(self) -> float:
        return len(self.pcm) / 2 / RATE * 1000


@dataclass(frozen=True)
class Event:
    """One event of the server; ``at`` is by ``time.monotonic()``."""

    at: float
    body: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.body["type"])


def speech_of(path: Path, text: str) -> Speech:
    """A clip at the rate of sessions."""
    import numpy as np
    import soxr

    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        samples = soxr.resample(samples, file.getframerate(), RATE)
    loudness = np.abs(samples.astype(np.int32))
    loud = np.flatnonzero(loudness > _VOICED_SHARE * loudness.max())
    return Speech(samples.astype("<i2").tobytes(), text, float(loud[-1] + 1) / RATE * 1000)


class RealtimeClient:
    """One session. What the server tells is in :attr:`events`, in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.speed = 1.0
        """How many times faster than it is spoken audio is sent."""
        self.events: list[Event] = []
        self._more = asyncio.Event()
        self.error: str | None = None

    async def send(self, **event: Any) -> None:
        await self._socket.send(json.dumps(event))

    async def append(self, pcm: bytes) -> None:
        await self.send(type="input_audio_buffer.append", audio=base64.b64encode(pcm).decode())

    async def speak(self, pcm: bytes) -> float:
        """Sends it at :attr:`speed`; returns when its first sample was spoken, by ``time.monotonic()``."""
        began = time.monotonic()
        for number, at in enumerate(range(0, len(pcm), _PIECE), 1):
            # a piece is there once it has been spoken
            await asyncio.sleep(max(0.0, began + number * _PIECE_SECONDS / self.speed - time.monotonic()))
            await self.append(pcm[at : at + _PIECE])
        return began

    async def be_silent(self, until: Callable[[], bool], seconds: float) -> bool:
        """Sends silence at :attr:`speed` until something holds; returns whether it did within so many seconds."""
        due = time.monotonic()
        deadline = due + seconds
        while not until():
            if time.monotonic() > deadline:
                return False
            due += _PIECE_SECONDS / self.speed
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self.append(bytes(_PIECE))
        return True

    async def wait(self, kind: str, since: int = 0, seconds: float = 30.0, **fields: Any) -> Event:
        """The first such event at or after position ``since``. Raises ``TimeoutError``."""
        async with asyncio.timeout(seconds):
            while True:
                for event in self.events[since:]:
                    if event.type == kind and all(event.body.get(name) == value for name, value in fields.items()):
                        return event
                self._more.clear()
                await self._more.wait()

    def first(self, kind: str, since: int = 0) -> Event | None:
        return next((event for event in self.events[since:] if event.type == kind), None)

    async def read(self) -> None:
        """Until the connection ends."""
        async for message in self._socket:
            event = Event(time.monotonic(), json.loads(message))
            if event.type == "error":
                self.error = json.dumps(event.body["error"])
            self.events.append(event)
            self._more.set()


@asynccontextmanager
async def session(port: int, query: str, **settings: Any) -> AsyncIterator[RealtimeClient]:
    """An open session with ``settings`` as its ``session.update``."""
    async with connect(
        f"ws://{HOST}:{port}/v1/realtime?{query}", compression=None, proxy=None, max_size=None
    ) as socket:
        client = RealtimeClient(socket)
        reading = asyncio.create_task(client.read())
        try:
            await client.wait("session.created")
            await client.send(type="session.update", session=settings)
            await client.wait("session.updated")
            yield client
        finally:
            await socket.close()
            await asyncio.gather(reading, return_exceptions=True)
