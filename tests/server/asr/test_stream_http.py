"""Files for a streaming transcription model, and realtime sessions of a server that has one."""

import json
from typing import Any

import pytest
from openai.types import audio as sdk

from stentor.protocols.common.errors import BadRequest
from stentor.server.api.realtime.connections.serving import RealtimeServing, ServedModels
from stentor.server.api.realtime.listening.streamed import StreamTranscriber
from stentor.server.app.state import ServerState
from stentor.server.common.keys import ANYONE
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.tests.fakes import fake_state
from stentor.tests.server.asr.streams import STREAMS, StreamingEngine, streaming_model
from stentor.tests.server.asr.test_http import TRANSLATIONS, WavReader, post
from stentor.tests.server.realtime.sounds import silence, words
from stentor.tests.wire.validate import TRANSCRIPT_EXTENSIONS, check_event, check_object, frames_of

pytestmark = pytest.mark.anyio

CLIP = words(1, 2) + silence(320) + words(3)
TEXT = "ẃ1 ẃ2 ẃ3"


def state_with(engine: StreamingEngine | None = None) -> ServerState:
    model = streaming_model(engine)
    return fake_state(
        registry=ModelRegistry(
            [ServedModel("chat", ("fake/model", "fake")), ServedModel("transcription", ("voxtral",))]
        ),
        transcription=model,
        runners={"transcription": model.client},
        decoder=WavReader(),
    )


async def test_a_file_is_heard_as_json_and_as_text() -> None:
    engine = StreamingEngine()
    fields = [("model", "voxtral"), ("include[]", "logprobs"), ("language", "en"), ("prompt", "Names"), ("seed", "3")]
    answer = await post(state_with(engine), fields, CLIP)
    assert answer.status_code == 200, answer.text
    found = check_object(sdk.Transcription, answer.content)
    assert found.text == TEXT
    assert b"".join(bytes(map(int, one.bytes or ())) for one in found.logprobs or ()).decode() == " " + TEXT
    assert answer.json()["usage"] == {"type": "duration", "seconds": 2}
    (stream,) = engine.streams
    assert stream.audio == CLIP + STREAMS.after(len(CLIP))
    plain = await post(state_with(), [("response_format", "text")], CLIP)
    assert (plain.text, plain.headers["content-type"]) == (TEXT + "\n", "text/plain; charset=utf-8")
    assert (await post(state_with(), [], silence(500))).json()["text"] == ""


async def test_a_long_file_is_several_requests_and_one_text() -> None:
    engine = StreamingEngine(max_model_len=1 + STREAMS.left_pad + STREAMS.right_pad + 24)
    answer = await post(state_with(engine), [], words(*range(1, 10)))
    assert answer.json()["text"] == " ".join(f"ẃ{number}" for number in range(1, 10))
    assert len(engine.streams) == 3


async def test_a_stream_has_the_text_as_it_is_written() -> None:
    answer = await post(state_with(), [("stream", "true")], CLIP)
    frames = [frame.data for frame in frames_of(answer.content)]
    assert frames[-1] == "[DONE]"
    *deltas, done = (check_event(sdk.TranscriptionStreamEvent, frame, TRANSCRIPT_EXTENSIONS) for frame in frames[:-1])
    assert len(deltas) > 3
    assert "".join(event.delta for event in deltas) == done.text == TEXT
    assert done.usage.output_tokens == len((" " + TEXT).encode())
    assert done.usage.input_token_details.audio_tokens == -(-len(CLIP) // STREAMS.step_bytes)
    assert "logprobs" not in json.loads(frames[0])


@pytest.mark.parametrize("style", ["srt", "vtt", "verbose_json"])
async def test_what_needs_times_is_refused_by_its_name(style: str) -> None:
    engine = StreamingEngine()
    answer = await post(state_with(engine), [("response_format", style)], CLIP)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "response_format")
    assert "use json or text" in error["message"]
    assert not engine.streams


async def test_nothing_is_translated() -> None:
    answer = await post(state_with(), [], CLIP, TRANSLATIONS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize("fields", [[], [("stream", "true")]])
async def test_failures_have_their_own_status(fields: list[tuple[str, str]]) -> None:
    engine = StreamingEngine()
    engine.error = True
    answer = await post(state_with(engine), fields, CLIP)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "generation_failed")
    assert "worker.py" not in answer.text
    small = StreamingEngine(max_model_len=STREAMS.left_pad + STREAMS.right_pad + 5)
    answer = await post(state_with(small), fields, CLIP)
    assert answer.status_code == 503
    assert "positions for audio" in answer.json()["error"]["message"]


@pytest.mark.parametrize("room", [0, len(STREAMS.before) + 100], ids=["to begin", "to go on"])
@pytest.mark.parametrize("fields", [[], [("stream", "true")]])
async def test_where_memory_has_no_room_for_audio_that_is_told_and_nothing_is_left(
    room: int, fields: list[tuple[str, str]]
) -> None:
    engine = StreamingEngine()
    engine.arena_bytes = room
    state = state_with(engine)
    answer = await post(state, fields, CLIP)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "memory_full")
    assert answer.headers["retry-after"] == "2"
    assert not engine.live
    assert (state.admission.queue.requests, state.admission.live_requests) == (0, 0)


def test_sessions_hear_with_it_and_take_any_language() -> None:
    state = state_with()
    assert isinstance(RealtimeServing(state.for_realtime).transcriber(ANYONE), StreamTranscriber)
    models = ServedModels(state.for_realtime)
    assert models.language("de", "language") == "de"
    assert models.transcription_model(None, "model") == "voxtral"
    with pytest.raises(BadRequest):
        models.transcription_model("fake", "model")
    without: Any = fake_state()
    with pytest.raises(BadRequest):
        RealtimeServing(without.for_realtime).transcriber(ANYONE)
