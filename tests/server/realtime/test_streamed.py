"""Turns heard by a streaming transcription model: alone, in a session's ears, and in vLLM's dialect."""

import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from stentor.protocols.openai.realtime.session import AudioInput, SemanticVad, ServerVad, Transcription
from stentor.server.api.realtime.common.formats import to_ticks
from stentor.server.api.realtime.common.interfaces import SpeechEvent, SpeechStarted, SpeechStopped
from stentor.server.api.realtime.connections.vllm import VllmSession
from stentor.server.api.realtime.listening import streamed as streamed_module
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.input_audio_pipeline import InputAudioPipeline
from stentor.server.api.realtime.listening.partial_pace import PartialPace
from stentor.server.api.realtime.listening.streamed import StreamedTurn, StreamTranscriber
from stentor.server.common.errors import GenerationFailed, ServerError, Unavailable
from stentor.tests.server.asr.streams import STEP, STREAMS, StreamingEngine, streaming_model
from stentor.tests.server.realtime.sounds import DeliveredText, LoudnessDetector, passes, silence, until, words

pytestmark = pytest.mark.anyio

RATE = 24_000
LOGPROBS = TranscriptionSettings(partials=True, logprobs=True)


@asynccontextmanager
async def hearing(
    engine: StreamingEngine, wanted: TranscriptionSettings = LOGPROBS, begin: int = 0
) -> AsyncIterator[tuple[StreamedTurn, DeliveredText]]:
    reported = DeliveredText()
    transcriber = StreamTranscriber(streaming_model(engine), passes(), "salt", "name")
    turn = StreamedTurn(begin, transcriber, wanted, reported.tell, reported.guesses.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn.run)
        yield turn, reported
        tasks.cancel_scope.cancel()


async def say(turn: StreamedTurn, pcm: bytes, piece: int = 1000) -> None:
    for at in range(0, len(pcm), piece):
        turn.push(pcm[at : at + piece])
        await anyio.sleep(0)


async def test_text_is_told_while_audio_comes_and_ends_with_it() -> None:
    engine = StreamingEngine()
    async with hearing(engine) as (turn, reported):
        assert not engine.streams
        await say(turn, words(1, 2) + silence(400))
        await until(lambda: "".join(reported.pieces) == "ẃ1 ẃ2")
        await say(turn, words(3))
        turn.finish()
        transcript = await turn.transcript()
    assert transcript.text == "".join(reported.pieces) == "ẃ1 ẃ2 ẃ3"
    assert transcript.seconds == pytest.approx(3 * 0.48 + 0.4)
    assert transcript.logprobs == reported.tokens
    assert b"".join(bytes(token.bytes) for token in reported.tokens).decode() == " ẃ1 ẃ2 ẃ3"
    assert "\ufffd" not in "".join(reported.pieces)
    assert turn.lag is not None
    (stream,) = engine.streams
    assert (engine.salts, stream.ended, stream.aborted) == (["salt"], True, False)
    pcm = words(1, 2) + silence(400) + words(3)
    assert stream.audio == pcm + STREAMS.after(len(pcm))
    assert len(stream.pcm) % (2 * STEP) == 0


async def test_a_turn_without_sound_asks_nothing() -> None:
    engine = StreamingEngine()
    async with hearing(engine, TranscriptionSettings()) as (turn, _):
        turn.push(bytes(200))
        await anyio.sleep(0)
        turn.finish(0)
        assert (await turn.transcript()).text == ""
    async with hearing(engine) as (turn, _):
        turn.finish()
        assert (await turn.transcript()).text == ""
    assert len(engine.streams) <= 1
    assert engine.live == 0


async def test_what_nobody_speaks_into_ends_and_goes_on_with_the_next_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_module, "IDLE_SECONDS", 0.03)
    engine = StreamingEngine()
    async with hearing(engine) as (turn, reported):
        await say(turn, words(1))
        await until(lambda: bool(engine.streams) and not engine.live)
        assert "".join(reported.pieces) == "ẃ1"
        await anyio.sleep(0.05)
        assert len(engine.streams) == 1
        await say(turn, words(2))
        turn.finish()
        assert (await turn.transcript()).text == "".join(reported.pieces) == "ẃ1 ẃ2"
    assert len(engine.streams) == 2


async def test_what_is_too_long_for_one_request_is_several() -> None:
    engine = StreamingEngine(max_model_len=1 + STREAMS.left_pad + STREAMS.right_pad + 24)
    async with hearing(engine) as (turn, reported):
        await say(turn, words(*range(1, 10)), 7000)
        turn.finish()
        assert (await turn.transcript()).text == "".join(reported.pieces) == " ".join(f"ẃ{n}" for n in range(1, 10))
    assert [len(stream.audio) // (2 * STEP) for stream in engine.streams] == [37, 37, 19]


async def test_audio_after_the_model_has_said_its_end_is_heard_too() -> None:
    engine = StreamingEngine()
    whole = engine.said

    def said(pcm: bytes) -> str | None:
        text = whole(pcm)
        return None if len(pcm) > 2 * STEP * 14 and len(engine.streams) == 1 else text

    engine.said = said
    async with hearing(engine) as (turn, _):
        await say(turn, words(1) + silence(640))
        await until(lambda: bool(engine.streams) and not engine.live)
        await say(turn, words(2, 3) + silence(160))
        turn.finish()
        assert (await turn.transcript()).text == "ẃ1 ẃ2 ẃ3"
    assert len(engine.streams) == 2


async def test_a_turn_that_is_given_up_gives_its_place_back() -> None:
    engine = StreamingEngine()
    async with hearing(engine) as (turn, _):
        await say(turn, words(1))
        await until(lambda: bool(engine.live))
        turn.give_up()
        with pytest.raises(GenerationFailed):
            await turn.transcript()
        assert engine.streams[0].aborted


@pytest.mark.parametrize(("failure", "expected"), [("loading", Unavailable), (None, GenerationFailed)])
async def test_failures_of_the_engine_are_the_turns(failure: str | None, expected: type[ServerError]) -> None:
    engine = StreamingEngine()
    engine.failure, engine.error = failure, True
    async with hearing(engine) as (turn, _):
        turn.push(words(1))
        turn.finish()
        with pytest.raises(expected):
            await turn.transcript()
        await turn.room(0)


async def test_what_was_said_before_a_pause_is_guessed_once_it_is_heard() -> None:
    engine = StreamingEngine()
    async with hearing(engine) as (turn, reported):
        await say(turn, words(1))
        turn.pause()
        await anyio.sleep(0.01)
        assert reported.guesses == []  # the text comes later than the audio
        await say(turn, silence(1000))
        await until(lambda: bool(reported.guesses))
        turn.resume()
        await say(turn, words(2) + silence(1000))
        turn.pause()
        await say(turn, silence(600))
        await until(lambda: len(reported.guesses) == 2)
    assert reported.guesses[1] == "ẃ1 ẃ2"


async def test_audio_that_waits_is_counted_until_it_is_heard() -> None:
    engine = StreamingEngine()
    async with hearing(engine) as (turn, _):
        turn.push(words(*range(1, 6)))
        assert turn.waiting_ms == 0
        turn.finish(to_ticks(3 * 480))
        assert turn.waiting_ms == 3 * 480
        await turn.room(480)
        assert turn.waiting_ms <= 480
        assert (await turn.transcript()).text == "ẃ1 ẃ2 ẃ3"
        assert turn.waiting_ms == 0


# ---- in a session


class Session:
    def __init__(self, engine: StreamingEngine) -> None:
        self.partials: list[tuple[str, str]] = []
        self.found: list[SpeechEvent] = []
        numbers = itertools.count(1)
        self.input_audio = InputAudioPipeline(
            StreamTranscriber(streaming_model(engine), passes()),
            LoudnessDetector,
            PartialPace(),
            lambda item_id, text, tokens: self.partials.append((item_id, text)),
            self.found.append,
            new_id=lambda: f"item{next(numbers)}",
        )

    async def send(self, audio: bytes) -> None:
        step = RATE // 10 * 2
        for at in range(0, len(audio), step):
            await self.input_audio.append(audio[at : at + step])
            await anyio.sleep(0)


@asynccontextmanager
async def session(input: AudioInput, engine: StreamingEngine) -> AsyncIterator[Session]:
    running = Session(engine)
    running.input_audio.configure(input, logprobs=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.input_audio.run)
        yield running
        tasks.cancel_scope.cancel()


def speech(*numbers: int) -> bytes:
    return words(*numbers, rate=RATE)


def quiet(ms: int) -> bytes:
    return silence(ms, rate=RATE)


@pytest.mark.parametrize("detection", [ServerVad(silence_duration_ms=200), SemanticVad(eagerness="high")])
async def test_turns_that_are_found_are_heard_as_they_are_spoken(detection: ServerVad | SemanticVad) -> None:
    engine = StreamingEngine()
    async with session(AudioInput(transcription=Transcription(), turn_detection=detection), engine) as running:
        await running.send(quiet(2000))
        assert not engine.streams
        await running.send(speech(1, 2, 3, 4))
        await until(lambda: "".join(text for _, text in running.partials).startswith("ẃ1 ẃ2"))
        await running.send(quiet(3000))
        started, stopped = running.found
        assert isinstance(started, SpeechStarted)
        assert isinstance(stopped, SpeechStopped)
        text = (await stopped.turn.transcript()).text
        assert text == "".join(piece for _, piece in running.partials) == "ẃ1 ẃ2 ẃ3 ẃ4"
        assert {item for item, _ in running.partials} == {started.item_id}
        assert engine.live == 0


async def test_a_commit_ends_what_is_heard_and_clear_takes_it_back() -> None:
    engine = StreamingEngine()
    async with session(AudioInput(transcription=Transcription(), turn_detection=None), engine) as running:
        await running.send(speech(1, 2))
        turn = running.input_audio.commit()
        assert (await turn.transcript()).text == "ẃ1 ẃ2"
        await running.send(speech(3))
        await until(lambda: engine.live == 1)
        running.input_audio.clear()
        await until(lambda: engine.streams[1].aborted)
        whole = running.input_audio.turn_of("item9", speech(4, 5))
        assert (await whole.transcript()).text == "ẃ4 ẃ5"


# ---- vLLM's dialect


async def test_vllms_dialect_is_told_the_text_as_it_comes() -> None:
    reported: list[dict[str, Any]] = []
    send, sent = anyio.create_memory_object_stream[bytes](100)

    async def room() -> None:
        await anyio.lowlevel.checkpoint()

    dialect = VllmSession(
        StreamTranscriber(streaming_model(), passes()),
        PartialPace(),
        lambda name: None,
        lambda message: reported.append(json.loads(message)),
        room,
    )

    def message(kind: str, **fields: Any) -> bytes:
        return json.dumps({"type": kind, **fields}).encode()

    async with anyio.create_task_group() as tasks:
        with send, sent:
            tasks.start_soon(dialect.serve, sent.receive, message("session.update", model="voxtral"))
            await send.send(message("input_audio_buffer.commit"))
            for number in (1, 2, 3):
                audio = base64.b64encode(words(number)).decode()
                await send.send(message("input_audio_buffer.append", audio=audio))
            await until(lambda: any(one["type"] == "transcription.delta" for one in reported))
            await send.send(message("input_audio_buffer.commit", final=True))
            await until(lambda: reported[-1]["type"] == "transcription.done")
            tasks.cancel_scope.cancel()
    assert reported[-1]["text"] == "".join(one["delta"] for one in reported[:-1]) == "ẃ1 ẃ2 ẃ3"
    written, heard = len(" ẃ1 ẃ2 ẃ3".encode()), len(words(1, 2, 3)) // STREAMS.step_bytes
    assert reported[-1]["usage"] == {
        "prompt_tokens": heard,
        "completion_tokens": written,
        "total_tokens": heard + written,
    }
