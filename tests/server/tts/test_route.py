"""``/v1/audio/speech`` in memory: what is refused, and what is sent."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from stentor.protocols.common.limits import MAX_SPEECH_CHARS
from stentor.server.audio.encode import MEDIA_TYPES
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.tts.metrics import SpeechMetrics
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import chunks_of, in_memory, on_loopback
from stentor.tests.server.tts.test_model import speaking_model

pytestmark = pytest.mark.anyio

SPEECH = "/v1/audio/speech"
CATALOGUE = ModelRegistry([ServedModel("chat", ("fake/model", "fake")), ServedModel("speech", ("voice",))])


@asynccontextmanager
async def serving(folder: Path, *, any_speed: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    async with speaking_model(folder, any_speed=any_speed) as model:
        await model.wait_started()
        state = fake_state(registry=CATALOGUE, speech=model, runners={"speech": model})
        model.watch(SpeechMetrics(state.metrics.registry, "voice"))
        async with in_memory(state) as client:
            yield client


@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """Of one process, for all tests that leave it idle and alive."""
    async with serving(tmp_path_factory.mktemp("voice")) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"model": "voice"}, "input", "is required"),
        ({"input": ""}, "input", "nothing to say"),
        ({"input": " \n\t"}, "input", "nothing to say"),
        ({"input": ["a"]}, "input", "string"),
        ({"input": "x" * (MAX_SPEECH_CHARS + 1)}, "input", "at most"),
        ({"input": "a", "voice": "nobody"}, "voice", "`one`, `second`"),
        ({"input": "a", "voice": {"id": "nobody"}}, "voice", "`one`, `second`"),
        ({"input": "a", "voice": {"name": "one"}}, "voice.id", "is required"),
        ({"input": "a", "response_format": "ogg"}, "response_format", "ogg"),
        ({"input": "a", "speed": 4.5}, "speed", "4.0"),
        ({"input": "a", "speed": 0.1}, "speed", "0.25"),
        ({"input": "a", "stream_format": "ws"}, "stream_format", "ws"),
        ({"input": "a", "model": "fake"}, "model", "use `voice`"),
        ({"input": "a", "instructions": 3}, "instructions", "string"),
    ],
)
async def test_a_mistake_is_told_with_its_field(
    client: httpx.AsyncClient, body: dict[str, Any], param: str, said: str
) -> None:
    response = await client.post(SPEECH, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert said in error["message"]


async def test_where_no_model_speaks_that_is_said_and_no_voice_is_listed() -> None:
    async with in_memory(fake_state()) as client:
        response = await client.post(SPEECH, json={"input": "hello"})
        assert response.status_code == 400
        assert "--speech-model" in response.json()["error"]["message"]
        assert (await client.get("/v1/audio/voices")).json() == {"voices": []}


@pytest.mark.parametrize("format", MEDIA_TYPES)
async def test_every_format_says_its_type(client: httpx.AsyncClient, format: str) -> None:
    body = {"input": "One, two. And three.", "response_format": format, "voice": "alloy", "instructions": "gently"}
    response = await client.post(SPEECH, json=body)
    assert response.status_code == 200
    assert response.headers["content-type"] == MEDIA_TYPES[format]  # type: ignore[index]
    assert len(response.content) > 50


@pytest.mark.parametrize("format", ["wav", "pcm", "flac"])
async def test_events_carry_the_bytes_of_the_file(client: httpx.AsyncClient, format: str) -> None:
    body = {"input": "One, two. And three.", "response_format": format, "voice": "second"}
    whole = await client.post(SPEECH, json=body)
    *deltas, done = chunks_of((await client.post(SPEECH, json={**body, "stream_format": "sse"})).text)
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == whole.content
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    usage = done.pop("usage")
    assert done == {"type": "speech.audio.done"}
    assert usage == {"input_tokens": 20, "output_tokens": 0, "total_tokens": 20}


async def test_what_fails_before_the_first_sound_has_a_status(client: httpx.AsyncClient) -> None:
    response = await client.post(SPEECH, json={"input": "We refuse."})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "speech_failed"


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_what_fails_later_ends_the_file_early_or_is_an_event(tmp_path: Path, stream_format: str) -> None:
    body = {"input": "It begins well. " * 20 + "We refuse.", "response_format": "pcm", "stream_format": stream_format}
    async with speaking_model(tmp_path) as model:
        await model.wait_started()
        state = fake_state(registry=CATALOGUE, speech=model, runners={"speech": model})
        async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
            if stream_format == "audio":
                with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                    await client.post(SPEECH, json=body)
            else:
                response = await client.post(SPEECH, json=body)
                last = response.text.strip().split("\n\n")[-1].removeprefix("data: ")
                assert msgspec.json.decode(last)["error"]["code"] == "speech_failed"
            with anyio.fail_after(60):
                while model.callers or state.admission.live_requests:
                    await anyio.sleep(0.01)


async def test_a_request_s_time_is_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        response = await client.post(SPEECH, json={"input": "We hang."}, headers={"x-request-timeout": "0.2"})
    assert response.status_code == 504


async def test_a_speed_at_which_the_voices_do_not_speak_is_refused_by_its_name(tmp_path: Path) -> None:
    async with serving(tmp_path, any_speed=False) as client:
        refused = await client.post(SPEECH, json={"model": "voice", "voice": "one", "input": "a", "speed": 1.5})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "speed"
        taken = await client.post(SPEECH, json={"model": "voice", "voice": "one", "input": "a", "speed": 1})
        assert taken.status_code == 200
