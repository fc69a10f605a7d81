"""A session that hears and speaks, and what it has sent."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from stentor.server.api.realtime.conversation.session import SessionRules
from stentor.tests.fakes import FakeEngine, says
from stentor.tests.server.realtime.session_fakes import FakeInputAudio, Running, voice_state
from stentor.tests.server.realtime.wire import Ledger

ANSWER = "This is the first sentence. And this is the second one."
TRANSCRIBED: dict[str, Any] = {"audio": {"input": {"transcription": {"model": "fake-whisper"}}}}
MANUAL: dict[str, Any] = {"audio": {"input": {"turn_detection": None}}}


@asynccontextmanager
async def session(
    answer: str = ANSWER, *, transcribes: bool = False, engine: FakeEngine | None = None, **update: Any
) -> AsyncIterator[Running]:
    """Every event of it is held against the protocol when it ends."""

    def transcription(rules: SessionRules) -> Any:
        return rules.transcription("sess_1", 1)

    engine = engine or FakeEngine(answer=says(answer), max_model_len=4096)
    running = Running(voice_state(engine), transcription if transcribes else None)
    running.start()
    await running.until("session.created")
    if update:
        running.say(type="session.update", session={"type": "realtime", **update})
        await running.until("session.updated")
    yield running
    await running.end()
    ledger = Ledger()
    for event in running.sent:
        ledger.take(event)
    assert not ledger.open
    assert ledger.order == [entry.item.id for entry in running.connection.conversation]


def hear(running: Running, sound: str) -> None:
    running.say(type="input_audio_buffer.append", audio=base64.b64encode(sound.encode()).decode())


def input_audio_of(running: Running) -> FakeInputAudio:
    assert running.input_audio is not None
    return running.input_audio


def kinds_of(running: Running, *, but: tuple[str, ...] = ()) -> list[str]:
    """Of all events, deltas once."""
    kinds: list[str] = []
    for event in running.sent:
        kind = event["type"]
        if kind not in but and not (kind.endswith(".delta") and kind in kinds[-2:]):
            kinds.append(kind)
    return kinds


def audio_of(running: Running, response: str) -> bytes:
    deltas = [
        event["delta"]
        for event in running.sent
        if event["type"] == "response.output_audio.delta" and event["response_id"] == response
    ]
    return b"".join(map(base64.b64decode, deltas))
