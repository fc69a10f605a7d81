"""A client of the Live API: the openai SDK, whose every event is held against its own types and the API's order."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.resources.live.live import AsyncLiveConnection
from openai.types.live import ServerEvent

from stentor.server.api.realtime.connections.serving import RealtimeServing
from stentor.server.app.state import ServerState
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.tests.fakes import FakeEngine, says
from stentor.tests.server.realtime.session_fakes import voice_state
from stentor.tests.server.realtime.sounds import LoudnessDetector, Model, silence, words
from stentor.tests.server.responses.sockets import serving
from stentor.tests.wire.validate import check_event

RATE = 24_000
ANSWER = "One two three. Four five six."
SPOKEN = words(1, 2, rate=RATE) + silence(5000, RATE)
"""Two words, and a pause after which every kind of turn has ended."""


class LiveClient:
    """A connection of the SDK, and what came by it."""

    def __init__(self, connection: AsyncLiveConnection) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []

    async def until(self, *kinds: str) -> dict[str, Any]:
        """The next event of one of these types; an error that is none of them fails."""
        while True:
            event: dict[str, Any] = json.loads(await asyncio.wait_for(self.connection.recv_bytes(), 60))
            self.take(event)
            if event["type"] in kinds:
                return event
            assert event["type"] != "error", event

    def take(self, event: dict[str, Any]) -> None:
        check_event(ServerEvent, event)
        if "start_ms" in event:
            assert 0 <= event["start_ms"] <= event["end_ms"]
            before = self.of(event["type"])
            assert not before or before[-1]["end_ms"] <= event["start_ms"] or not event["type"].endswith(".delta")
        if "event_id" in event:
            assert event["event_id"] not in [other.get("event_id") for other in self.events]
        self.events.append(event)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def transcript(self, of: str) -> str:
        """Of ``input`` or ``output``."""
        return "".join(event["delta"] for event in self.of(f"session.{of}_transcript.delta"))

    @property
    def audio(self) -> bytes:
        return b"".join(base64.b64decode(event["delta"]) for event in self.of("session.output_audio.delta"))

    async def start(self, **session: Any) -> dict[str, Any]:
        """The session that has started."""
        await self.connection.session.start(session={"model": "fake", **session})  # type: ignore[typeddict-item]
        started: dict[str, Any] = (await self.until("session.started"))["session"]
        return started

    async def speak(self, audio: bytes = SPOKEN) -> None:
        await self.connection.session.input_audio.append(audio=base64.b64encode(audio).decode())

    async def send(self, **event: Any) -> None:
        await self.connection.send(event)  # type: ignore[arg-type]  # also what the SDK has no method for

    async def refused(self, **event: Any) -> dict[str, Any]:
        """The error that an event gets."""
        await self.send(**event)
        error: dict[str, Any] = (await self.until("error"))["error"]
        return error

    async def close(self) -> dict[str, Any]:
        await self.connection.session.close(event_id="the end")
        return await self.until("session.closed")


@asynccontextmanager
async def live_server(
    monkeypatch: pytest.MonkeyPatch, engine: FakeEngine | None = None, hears: Model | None = None, **fields: Any
) -> AsyncIterator[tuple[ServerState, str]]:
    """A server that understands loudness, and its address."""
    hears = hears or Model()
    monkeypatch.setattr(RealtimeServing, "transcriber", lambda self, caller: hears)
    monkeypatch.setattr("stentor.server.api.realtime.connections.serving.SpeechProbabilities", LoudnessDetector)
    fields.setdefault("output", OutputFormat(tools=TOOL_FORMATS["hermes"]))
    state = voice_state(engine or FakeEngine(answer=says(ANSWER), max_model_len=4096), **fields)
    assert state.auxiliary.speech is not None
    speaking = asyncio.create_task(state.auxiliary.speech.run())
    try:
        async with serving(state) as address:
            yield state, address
    finally:
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[LiveClient]:
    sdk = openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0)
    async with sdk, sdk.live.connect() as connection:
        yield LiveClient(connection)
