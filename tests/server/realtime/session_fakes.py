"""A session over an engine without a model, ears that are told what they hear, and a voice that says bytes."""

import asyncio
import json
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from stentor.engine.tts.backend import Part
from stentor.engine.tts.client import SentenceFailed, SpeechClient
from stentor.engine.tts.voices import Voices
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.speech import SpeechPiece, VoicePlace
from stentor.protocols.openai.realtime.client import AnyClientEvent
from stentor.protocols.openai.realtime.live import LiveCommand
from stentor.protocols.openai.realtime.server import ServerEvent
from stentor.protocols.openai.realtime.session import AudioInput, Session
from stentor.server.api.realtime.common.interfaces import (
    OnPartial,
    OnSpeechEvent,
    SessionAudio,
    Sound,
    SpeechEvent,
    SpeechStarted,
    SpeechStopped,
    TimedOut,
    Transcript,
)
from stentor.server.api.realtime.connections.connection import Connection
from stentor.server.api.realtime.connections.event_queue import CurrentDialect, Dialect, EventQueue
from stentor.server.api.realtime.connections.serving import ServedModels
from stentor.server.api.realtime.conversation.pacing import PlaybackPacer
from stentor.server.api.realtime.conversation.session import SessionRules
from stentor.server.api.responses.ids import short_id
from stentor.server.app.state import ServerState
from stentor.server.common.errors import GenerationFailed
from stentor.server.common.keys import ANYONE
from stentor.server.config.limits import ConnectionLimits
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.text.pool import TokenizerPool
from stentor.server.tts.model import SpeechModel
from stentor.tests.fakes import FakeEngine, byte_tokenizer, fake_state

T = TypeVar("T")

VOICE_RATE = 16_000
SECONDS_A_SENTENCE = 0.5


class FakeVoice:
    """Says every sentence in half a second; one with the word ``unspeakable`` not at all."""

    ready = True
    stalled = failure = pid = None
    restarts = 0

    async def run(self) -> None:
        await asyncio.sleep(3600)

    async def synthesize(self, text: str, voice: str, speed: float, _on_part: Part) -> SpeechPiece:
        await asyncio.sleep(0)
        if "unspeakable" in text:
            raise SentenceFailed("it is unspeakable")
        return SpeechPiece(0, b"\x01\x00" * int(VOICE_RATE * SECONDS_A_SENTENCE / speed), 0.0)


def fake_speech() -> SpeechModel:
    """Its ``run`` must be running."""
    voices = Voices("piper", (VoicePlace("joe", "joe.onnx"), VoicePlace("ann", "ann.onnx")), VOICE_RATE)
    return SpeechModel(("fake-voice",), voices, cast(SpeechClient, FakeVoice()))


class FakeTurn:
    def __init__(self, item_id: str, audio: bytes, gate: asyncio.Event, fails: bool) -> None:
        self.item_id = item_id
        self.audio = audio
        self.duration_ms = len(audio)
        self._gate = gate
        self._fails = fails

    def forget_audio(self) -> None:
        self.audio = b""

    async def transcript(self) -> Transcript:
        await self._gate.wait()
        if self._fails:
            raise GenerationFailed
        return Transcript(self.audio.decode("latin-1"), self.duration_ms / 1000)


class FakeInputAudio:
    """Audio is a text, which is what was said. ``<``: speech starts, ``>``: it stops, ``~``: nobody has spoken."""

    def __init__(self, on_partial: OnPartial) -> None:
        self.on_partial = on_partial
        self.gate = asyncio.Event()
        """Transcripts come once it is open."""
        self.gate.set()
        self.fails = False
        self.buffer = b""
        self.item: str | None = None
        self.now = 0
        self.idle_from: float | None = None
        self.input = AudioInput()

    def check(self, input: AudioInput) -> None:
        """There is always room."""

    def configure(self, input: AudioInput, *, logprobs: bool) -> None:
        self.input = input

    async def append(self, audio: bytes) -> list[SpeechEvent]:
        await asyncio.sleep(0)
        found: list[SpeechEvent] = []
        for byte in audio:
            self.now += 1
            sign = chr(byte)
            detects = self.input.turn_detection is not None
            if sign == "<" and self.item is None and detects:
                self.item = short_id("item")
                found.append(SpeechStarted(self.item, self.now))
            elif sign == ">" and self.item is not None:
                item, self.item = self.item, None
                found.append(SpeechStopped(item, self.now, self._turn(item)))
            elif sign == "~" and self.item is None and detects and self.idle_from is not None:
                self.idle_from = None
                item = short_id("item")
                found.append(TimedOut(item, 0, self.now, FakeTurn(item, b"", self.gate, False)))
            elif sign not in "<>~":
                self.buffer += bytes([byte])
                if self.item is not None:
                    asyncio.get_running_loop().call_soon(self.on_partial, self.item, sign, None)
        return found

    async def room(self) -> None:
        await asyncio.sleep(0)

    def commit(self) -> FakeTurn:
        if not self.buffer:
            raise BadRequest("The buffer is empty.", None, "input_audio_buffer_commit_empty")
        item, self.item = self.item or short_id("item"), None
        return self._turn(item)

    def clear(self) -> None:
        self.buffer, self.item = b"", None

    def turn_of(self, item_id: str, audio: bytes) -> FakeTurn:
        return FakeTurn(item_id, audio, self.gate, self.fails)

    def responded(self, audio_ms: float) -> None:
        self.idle_from = self.now + audio_ms

    def responding(self) -> None:
        self.idle_from = None

    async def run(self) -> None:
        await asyncio.sleep(3600)

    def _turn(self, item: str) -> FakeTurn:
        audio, self.buffer = self.buffer, b""
        return FakeTurn(item, audio, self.gate, self.fails)


class InlinePool(TokenizerPool):
    """Without threads, so that the same events come in the same order."""

    async def run(self, job: Callable[[], T]) -> T:
        return await self._run(job)

    async def _run(self, job: Callable[[], T], *_elsewhere: object) -> T:
        await asyncio.sleep(0)
        return job()


@cache
def inline_pool() -> InlinePool:
    return InlinePool(byte_tokenizer())


class _Recording:
    """A dialect that keeps what it writes."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.sent: list[dict[str, Any]] = []

    def decode(self, message: bytes, limits: Limits) -> AnyClientEvent | LiveCommand | Sound:
        return self.dialect.decode(message, limits)

    def encode(self, event: ServerEvent) -> bytes | None:
        message = self.dialect.encode(event)
        if message is not None:
            self.sent.append(json.loads(message))
        return message


class Running:
    """A connection without a socket: messages are put in, events come out."""

    def __init__(
        self,
        state: ServerState,
        session: Callable[[SessionRules], Session] | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        self.state = state
        self.rules = SessionRules(ServedModels(state.for_realtime), state.admission.limits)
        begun = self.rules.realtime("sess_1", None, 1) if session is None else session(self.rules)
        recording = _Recording(dialect or CurrentDialect())
        self.sent = recording.sent
        """In the order in which it was told."""
        self.event_queue = EventQueue(recording)
        self.input_audio: FakeInputAudio | None = None
        self.connection = Connection(
            state.for_realtime,
            ANYONE,
            self.rules,
            begun,
            recording,
            self.event_queue,
            SessionAudio(self._open_input_audio, make_pacer=lambda _response: PlaybackPacer(1e9)),
        )
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def _open_input_audio(self, on_partial: OnPartial, on_speech_event: OnSpeechEvent) -> FakeInputAudio:
        self.input_audio = FakeInputAudio(on_partial)
        return self.input_audio

    def start(self) -> None:
        self.connection.begin()
        coroutines = [self.connection.serve(self.inbox.get), self.event_queue.write(self.send)]
        if self.state.auxiliary.speech is not None:
            coroutines.append(self.state.auxiliary.speech.run())
        self._tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]

    async def send(self, message: bytes) -> None:
        """What takes messages from the connection."""
        await asyncio.sleep(0)

    def say(self, **event: Any) -> None:
        self.inbox.put_nowait(json.dumps(event).encode())

    async def settle(self, turns: int = 12) -> None:
        """Lets everything go on that can."""
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in self._tasks[:2]:
            if task.done():
                task.result()

    async def until(self, kind: str, seconds: float = 60.0) -> dict[str, Any]:
        """Waits for the first event of that type that has not been waited for, and returns it."""
        async with asyncio.timeout(seconds):
            while True:
                for place, event in enumerate(self.sent[self._seen() :], self._seen()):
                    if event["type"] == kind:
                        self._read = place + 1
                        return event
                await asyncio.sleep(0)
                for task in self._tasks[:2]:
                    if task.done() and task.exception() is not None:
                        task.result()

    _read = 0

    def _seen(self) -> int:
        return self._read

    async def end(self) -> None:
        self.inbox.put_nowait(None)
        await asyncio.wait_for(self._tasks[0], 60)
        self.event_queue.close()
        await asyncio.wait_for(self._tasks[1], 60)
        for task in self._tasks[2:]:
            task.cancel()
        await asyncio.gather(*self._tasks[2:], return_exceptions=True)


def voice_state(engine: FakeEngine | None = None, *, speaks: bool = True, **fields: Any) -> ServerState:
    """A server that hears, and that speaks."""
    models = [ServedModel("transcription", ("fake-whisper",)), ServedModel("speech", ("fake-voice",))]
    fields.setdefault("registry", ModelRegistry(models if speaks else models[:1]))
    fields.setdefault("connection", ConnectionLimits(max_messages_per_second=0))
    fields.setdefault("pool", inline_pool())
    if speaks:
        fields.setdefault("speech", fake_speech())
    return fake_state(engine, **fields)
