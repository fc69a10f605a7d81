"""A client over WebRTC: aiortc, as a browser would be, which says what it is given and keeps what it hears."""

import asyncio
import json
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import httpx
import pytest
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame

from stentor.tests.server.realtime.wire import Ledger

RATE = 48_000
FRAME = RATE // 50
CALLS = "/v1/realtime/calls"


class Microphone(MediaStreamTrack):
    """Says what is in :attr:`waiting`, and nothing else; a frame every 20 ms."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.waiting = b""
        """pcm at 48 kHz."""
        self.frames = 0
        self._began: float | None = None

    async def recv(self) -> AudioFrame:
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        await asyncio.sleep(self._began + self.frames * 0.02 - now)
        part, self.waiting = self.waiting[: 2 * FRAME], self.waiting[2 * FRAME :]
        frame = AudioFrame(format="s16", layout="mono", samples=FRAME)
        frame.planes[0].update(part.ljust(2 * FRAME, b"\0"))
        frame.sample_rate, frame.time_base, frame.pts = RATE, Fraction(1, RATE), self.frames * FRAME
        self.frames += 1
        return frame


class Client:
    """One call. :meth:`dial` it, and :meth:`hang_up`."""

    def __init__(self, address: str, path: str = CALLS) -> None:
        self._url = f"http://{address}{path}"
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.microphone = Microphone()
        self.channel = self.connection.createDataChannel("oai-events")
        self.events: list[dict[str, Any]] = []
        self.loudness: list[int] = []
        """Of each frame of 20 ms that was heard, its loudest sample."""
        self.lost = 0
        """Packets."""
        self.answer: httpx.Response | None = None
        self._read = 0
        self._listening: asyncio.Task[None] | None = None
        self.connection.addTrack(self.microphone)
        self.connection.on("track", self._track)
        self.channel.on("message", lambda text: self.events.append(json.loads(text)))

    def _track(self, track: MediaStreamTrack) -> None:
        self._listening = asyncio.create_task(self._listen(track))

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, AudioFrame)
            samples = memoryview(bytes(frame.planes[0])).cast("h")
            self.loudness.append(max(map(abs, samples)))

    async def offer(self) -> str:
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return self.connection.localDescription.sdp

    async def post(self, sdp: str, session: dict[str, Any] | None = None, **options: Any) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            if session is None:
                options["headers"] = {"content-type": "application/sdp", **options.get("headers", {})}
                return await http.post(self._url, content=sdp, **options)
            return await http.post(
                self._url, files={"sdp": (None, sdp), "session": (None, json.dumps(session))}, **options
            )

    async def dial(self, session: dict[str, Any] | None = None, **options: Any) -> "Client":
        self.answer = await self.post(await self.offer(), session, **options)
        assert self.answer.status_code == 201, self.answer.text
        await self.connection.setRemoteDescription(RTCSessionDescription(self.answer.text, "answer"))
        await self.until("session.created")
        return self

    def lose(self, share: float) -> None:
        """From now on that share of what the microphone sends does not come."""
        transport = self.connection.getSenders()[0].transport.transport
        send, dice = transport._send, random.Random(4)

        async def lossy(data: bytes) -> None:
            is_sound = 127 < data[0] < 192 and data[1] & 0x7F in range(96, 127)  # and no RTCP
            if is_sound and dice.random() < share:
                self.lost += 1
            else:
                await send(data)

        transport._send = lossy

    def check(self) -> None:
        """Every event against the SDK's types, and the order of the protocol."""
        ledger = Ledger()
        for event in self.events:
            ledger.take(event)

    def say(self, **event: Any) -> None:
        self.channel.send(json.dumps(event))

    async def until(self, kind: str, seconds: float = 60.0) -> dict[str, Any]:
        """Waits for the first event of that type behind the one that was waited for last."""
        async with asyncio.timeout(seconds):
            while True:
                for place, event in enumerate(self.events[self._read :], self._read):
                    if event["type"] == kind:
                        self._read = place + 1
                        return event
                await asyncio.sleep(0.005)

    async def when(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    async def hang_up(self) -> None:
        await self.connection.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have an address where the machine has no other."""
    monkeypatch.setattr("aioice.ice.get_host_addresses", lambda **_families: ["127.0.0.1"])
