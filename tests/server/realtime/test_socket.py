"""The WebSocket of ``/v1/realtime`` through the listener that really serves: who comes in, and as what."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import websockets
from openai.types.beta.realtime.realtime_server_event import RealtimeServerEvent as BetaEvent
from openai.types.realtime import ClientSecretCreateResponse
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from stentor.server.app.state import ServerState
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import RealtimeConfig
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.middleware import client_secrets
from stentor.server.middleware.access_control import AccessControl
from stentor.server.middleware.client_secrets import ClientSecrets
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import until
from stentor.tests.server.realtime.session_fakes import voice_state
from stentor.tests.server.realtime.wire import EXTENSIONS, Ledger
from stentor.tests.server.responses.sockets import serving
from stentor.tests.wire.validate import check_event, check_object

pytestmark = pytest.mark.anyio

URL = "/v1/realtime"
KEYED = {"authorization": "Bearer secret"}
BETA_EXTENSIONS = {
    "Session": frozenset({"object", "expires_at", "include"}),
    "ResponseFunctionCallArgumentsDoneEvent": frozenset({"name"}),
    "ErrorEvent": frozenset({"request_id"}),
}


def keyed() -> AccessControl:
    return AccessControl(keys=Keyring([KeyDigest(b"secret")]))


def answering(text: str = "Yes.", **fields: Any) -> ServerState:
    return fake_state(FakeEngine(answer=says(text)), **fields)


@asynccontextmanager
async def opened(address: str, query: str = "", **options: Any) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://{address}{URL}{query}", compression=None, proxy=None, max_size=None, **options) as socket:
        yield socket


async def reported(socket: ClientConnection, kind: str) -> list[dict[str, Any]]:
    """Everything up to the first event of that type."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != kind:
        events.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
    return events


async def say(socket: ClientConnection, **event: Any) -> None:
    await socket.send(json.dumps(event))


async def made(address: str, body: dict[str, Any], path: str = "client_secrets") -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
        return await client.post(f"{URL}/{path}", json=body, headers=KEYED)


async def test_browsers_bring_their_key_among_the_subprotocols() -> None:
    async with serving(answering(access=keyed())) as address:
        offered = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.secret")]
        async with opened(address, "?model=fake", subprotocols=offered) as socket:
            assert socket.subprotocol == "realtime"
            (event,) = await reported(socket, "session.created")
            assert event["session"]["model"] == "fake"
        for wrong in (["realtime"], ["realtime", "openai-insecure-api-key.guess"], ["openai-insecure-api-key."]):
            with pytest.raises(websockets.exceptions.InvalidStatus, match="401"):
                async with opened(address, subprotocols=[Subprotocol(name) for name in wrong]):
                    pass


async def test_another_name_of_the_model_may_come_in_an_update() -> None:
    """OpenAI's agents SDK sends the default name of its own, also where the address names the model."""
    registry = ModelRegistry([ServedModel("chat", ("fake/model", "fake"), patterns=("*",))])
    async with serving(answering(registry=registry)) as address, opened(address, "?model=fake") as socket:
        await reported(socket, "session.created")
        for name in ("gpt-realtime", "fake/model"):
            await say(socket, type="session.update", session={"type": "realtime", "model": name})
            (event,) = await reported(socket, "session.updated")
            assert event["session"]["model"] == "fake"


async def test_a_model_of_another_name_is_the_one_that_is_served(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(answering()) as address, opened(address, "?model=gpt-realtime") as socket:
        (event,) = await reported(socket, "session.created")
        assert event["session"]["model"] == "fake/model"
        await say(socket, type="session.update", session={"type": "realtime", "model": "gpt-realtime"})
        (event,) = await reported(socket, "session.updated")
        assert event["session"]["model"] == "fake/model"
        body = {"session": {"type": "realtime", "model": "gpt-realtime"}}
        assert (await made(address, body)).json()["session"]["model"] == "fake/model"
    assert "'gpt-realtime', which is not served" in caplog.text


async def test_a_model_of_another_kind_is_told_and_the_connection_ends() -> None:
    async with serving(voice_state()) as address, opened(address, "?model=fake-voice") as socket:
        (error,) = await reported(socket, "error")
        Ledger().take(error)
        assert (error["error"]["code"], error["error"]["param"]) == ("model_not_supported", "model")
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1008


async def test_without_a_model_that_hears_there_is_no_transcription_session() -> None:
    async with serving(answering()) as address, opened(address, "?intent=transcription") as socket:
        (error,) = await reported(socket, "error")
        assert "--transcription-model" in error["error"]["message"]


@pytest.mark.parametrize("query", ["?intent=transcription", "?model=fake-whisper", "?intent=transcription&model=fake"])
async def test_transcription_sessions_have_a_model_that_hears(query: str) -> None:
    async with serving(voice_state(speaks=False)) as address, opened(address, query) as socket:
        (event,) = await reported(socket, "session.created")
        Ledger().take(event)
        assert event["session"]["type"] == "transcription"
        assert event["session"]["audio"]["input"]["transcription"] == {"model": "fake-whisper"}
        await say(socket, type="response.create")
        assert (await reported(socket, "error"))[-1]["error"]["code"] == "invalid_event"


async def test_a_session_ends_when_its_time_is_up() -> None:
    state = answering(realtime=RealtimeConfig(max_seconds=0.2))
    async with serving(state) as address, opened(address, "?model=fake") as socket:
        assert (await reported(socket, "error"))[-1]["error"]["code"] == "session_expired"
        with pytest.raises(websockets.exceptions.ConnectionClosedOK):
            await socket.recv()


async def test_a_server_that_drains_begins_no_session_and_keeps_those_it_has() -> None:
    state = answering()
    async with serving(state) as address, opened(address) as socket:
        state.admission.draining = True
        with pytest.raises(websockets.InvalidStatus) as refused:
            await opened(address).__aenter__()
        answer = refused.value.response
        assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (503, "draining")
        await say(socket, type="input_audio_buffer.clear")
        await reported(socket, "input_audio_buffer.cleared")


async def test_what_runs_ends_with_the_connection() -> None:
    engine = FakeEngine(answer=says("word ", repeat=True), delay=0.01)
    state = fake_state(engine)
    async with serving(state) as address:
        async with opened(address, "?model=fake") as socket:
            await say(socket, type="response.create")
            await reported(socket, "response.output_text.delta")
            assert b'websocket_connections_active{model_name="fake/model"} 1.0' in state.metrics.render()
        gone = b'websocket_connections_active{model_name="fake/model"} 0.0'
        await until(lambda: not engine.live and not state.admission.live_requests and gone in state.metrics.render())


async def test_messages_in_bytes_end_the_connection() -> None:
    async with serving(answering()) as address, opened(address, "?model=fake") as socket:
        await socket.send(b"{}")
        with pytest.raises(websockets.exceptions.ConnectionClosedError):
            await reported(socket, "error")
        assert socket.close_code == 1003


async def test_a_message_may_have_21_mebibytes() -> None:
    async with serving(voice_state(speaks=False)) as address, opened(address, "?model=fake") as socket:
        await say(socket, type="input_audio_buffer.append", audio="A" * (21 << 20))
        error = (await reported(socket, "error"))[-1]["error"]
        assert (error["param"], error["code"]) == ("audio", "string_above_max_length")


# ---- client secrets


async def test_a_client_secret_opens_sessions_of_its_kind_and_nothing_else() -> None:
    async with serving(answering(access=keyed())) as address:
        session = {"type": "realtime", "model": "fake", "instructions": "Be brief.", "max_output_tokens": 5}
        response = await made(address, {"session": session, "expires_after": {"anchor": "created_at", "seconds": 60}})
        secret = check_object(ClientSecretCreateResponse, response.content, EXTENSIONS)
        assert secret.value.startswith("ek_")
        for headers, offered in (
            ({"authorization": f"Bearer {secret.value}"}, None),
            ({}, [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{secret.value}")]),
        ):
            async with opened(address, additional_headers=headers, subprotocols=offered) as socket:
                (event,) = await reported(socket, "session.created")
                Ledger().take(event)
                assert event["session"]["instructions"] == "Be brief."
                assert event["session"]["id"] != json.loads(response.content)["session"]["id"]
                await say(socket, type="response.create")
                done = (await reported(socket, "response.done"))[-1]["response"]
                assert done["max_output_tokens"] == 5
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            for path in ("/v1/models", f"{URL}/client_secrets"):
                answer = await client.request(
                    "GET" if path.endswith("models") else "POST",
                    path,
                    headers={"authorization": f"Bearer {secret.value}"},
                )
                assert answer.status_code == 401
        with pytest.raises(websockets.exceptions.InvalidStatus, match="401"):
            async with connect(
                f"ws://{address}/v1/responses",
                proxy=None,
                additional_headers={"authorization": f"Bearer {secret.value}"},
            ):
                pass


async def test_a_client_secret_is_for_the_model_that_it_names() -> None:
    async with serving(answering(access=keyed(), served_names=("one", "two"))) as address:
        value = (await made(address, {"session": {"type": "realtime", "model": "one"}})).json()["value"]
        headers = {"authorization": f"Bearer {value}"}
        async with opened(address, "?model=two", additional_headers=headers) as socket:
            (error,) = await reported(socket, "error")
            assert error["error"]["param"] == "model"


async def test_secrets_expire_and_are_bounded() -> None:
    now = [1000.0]
    secrets = ClientSecrets(lambda: now[0], 2)
    async with serving(
        answering(access=AccessControl(keys=Keyring([KeyDigest(b"secret")]), secrets=secrets))
    ) as address:
        values = [(await made(address, {})).json()["value"] for _ in range(2)]
        refused = await made(address, {})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "client_secrets_full")
        headers = {"authorization": f"Bearer {values[0]}"}
        async with opened(address, additional_headers=headers) as socket:
            await reported(socket, "session.created")
            now[0] += 600
            with pytest.raises(websockets.exceptions.InvalidStatus, match="401"):
                async with opened(address, additional_headers=headers):
                    pass
            await say(socket, type="response.create")  # a session outlives its secret
            await reported(socket, "response.done")
        assert (await made(address, {})).status_code == 200
        assert len(secrets) == 1


async def test_a_key_that_makes_secrets_without_end_leaves_some_to_another() -> None:
    keys = Keyring([KeyDigest(b"secret"), KeyDigest(b"other")])
    async with serving(answering(access=AccessControl(keys=keys, secrets=ClientSecrets(most=6)))) as address:
        answers = [await made(address, {}) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert answers[-1].headers["retry-after"] == "10"
        error = answers[-1].json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "client_secrets_full")
        assert "of this key" in error["message"]
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            for path in ("client_secrets", "sessions"):
                answer = await client.post(f"{URL}/{path}", json={}, headers={"authorization": "Bearer other"})
                assert answer.status_code == 200


async def test_a_session_that_a_secret_opens_stays_of_its_type() -> None:
    state = voice_state(access=keyed())
    async with serving(state) as address:
        for kind, other in (("transcription", "realtime"), ("realtime", "transcription")):
            value = (await made(address, {"session": {"type": kind}})).json()["value"]
            async with opened(address, additional_headers={"authorization": f"Bearer {value}"}) as socket:
                await say(socket, type="session.update", session={"type": other})
                assert (await reported(socket, "error"))[-1]["error"]["param"] == "session.type"


async def test_what_secrets_configure_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_secrets, "MAX_BYTES", 10_000)
    now = [1000.0]
    long = {"session": {"type": "realtime", "instructions": "x" * 6000}}
    async with serving(answering(access=AccessControl(secrets=ClientSecrets(lambda: now[0])))) as address:
        assert [(await made(address, long)).status_code for _ in range(2)] == [200, 429]
        now[0] += 600
        assert [(await made(address, long)).status_code for _ in range(2)] == [200, 429]


async def test_a_secret_that_is_no_good_opens_nothing_even_where_no_key_is_needed() -> None:
    async with serving(answering()) as address:
        with pytest.raises(websockets.exceptions.InvalidStatus, match="401"):
            async with opened(address, additional_headers={"authorization": "Bearer ek_made_up"}):
                pass


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 5}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "expires_after.anchor"),
        ({"session": {"type": "realtime", "output_modalities": ["audio"]}}, "session.output_modalities"),
        ({"session": {"type": "realtime", "voice": "x"}}, "session.voice"),
        ({"session": {"type": "transcription"}}, "model"),
        ({"session": {"instructions": "x"}}, "session.type"),
    ],
)
async def test_a_secret_for_what_is_not_there_is_refused(body: dict[str, Any], param: str) -> None:
    async with serving(answering()) as address:
        response = await made(address, body)
        assert response.status_code in (400, 404)
        assert response.json()["error"]["param"] == param


async def test_secrets_for_transcription_show_what_concerns_it() -> None:
    async with serving(voice_state(speaks=False)) as address:
        response = await made(address, {"session": {"type": "transcription"}})
        check_object(ClientSecretCreateResponse, response.content, EXTENSIONS)


# ---- the beta


@pytest.mark.parametrize("by", ["header", "subprotocol"])
async def test_clients_of_the_beta_meet_its_names(by: str) -> None:
    options: dict[str, Any] = {"additional_headers": {"openai-beta": "realtime=v1"}}
    if by == "subprotocol":
        options = {"subprotocols": [Subprotocol("realtime"), Subprotocol("openai-beta.realtime-v1")]}
    state = answering(served_names=("gpt-realtime",))  # the SDK knows no other
    async with serving(state) as address, opened(address, "?model=gpt-realtime", **options) as socket:
        events = await reported(socket, "session.created")
        old = {
            "modalities": ["text"],
            "instructions": "Be brief.",
            "input_audio_format": "g711_ulaw",
            "turn_detection": {"type": "server_vad", "threshold": 0.7},
            "temperature": 0.6,
            "max_response_output_tokens": 20,
        }
        await say(socket, type="session.update", session=old)
        events += await reported(socket, "session.updated")
        session = events[-1]["session"]
        assert {name: session[name] for name in old if name not in ("turn_detection", "temperature")} == {
            name: value for name, value in old.items() if name not in ("turn_detection", "temperature")
        }
        assert session["turn_detection"]["threshold"] == 0.7
        item = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Well."}]}
        await say(socket, type="conversation.item.create", item=item)
        events += await reported(socket, "conversation.item.created")
        assert events[-1]["item"]["content"] == [{"type": "text", "text": "Well."}]
        await say(socket, type="response.create", response={"modalities": ["text"], "max_response_output_tokens": 9})
        events += await reported(socket, "response.done")
        assert events[-1]["response"]["modalities"] == ["text"]
        assert events[-1]["response"]["output"][0]["content"][0]["type"] == "text"
        kinds = [event["type"] for event in events]
        assert "response.text.delta" in kinds
        assert "conversation.item.done" not in kinds
        for event in events:
            check_event(BetaEvent, event, BETA_EXTENSIONS)
        faults: list[tuple[dict[str, Any], str]] = [
            ({"modalitys": []}, "session.modalitys"),
            ({"modalities": ["text", "text"]}, "session.modalities"),
            ({"input_audio_format": "mp3"}, "session.input_audio_format"),
            ({"output_audio_format": 3}, "session.output_audio_format"),
            ({"turn_detection": {"threshold": "x"}}, "session.turn_detection.threshold"),
            ({"input_audio_transcription": {"model": "nobody"}}, "session.input_audio_transcription.model"),
            ({"voice": 3}, "session.voice"),
            ({"max_response_output_tokens": -1}, "session.max_response_output_tokens"),
        ]
        for given, field in faults:
            await say(socket, type="session.update", session=given)
            error = (await reported(socket, "error"))[-1]["error"]
            assert error["param"] == field
            assert "audio.input" not in error["message"]
        await say(socket, type="response.create", response={"output_audio_format": "mp3"})
        assert (await reported(socket, "error"))[-1]["error"]["param"] == "response.output_audio_format"


async def test_a_message_that_is_no_event_is_called_a_message() -> None:
    async with serving(answering()) as address, opened(address) as socket:
        await reported(socket, "session.created")
        for message in ("{", "[]", "", '{"type": "session.update", "session": NaN}'):
            await socket.send(message)
            said = (await reported(socket, "error"))[-1]["error"]["message"]
            assert "message" in said or "`session`" in said
            assert "body" not in said.lower()


async def test_the_beta_has_client_secrets_of_its_own() -> None:
    async with serving(answering(access=keyed())) as address:
        response = await made(address, {"model": "fake", "modalities": ["text"], "instructions": "Hm."}, "sessions")
        assert response.status_code == 200
        session = response.json()
        assert (session["instructions"], session["modalities"]) == ("Hm.", ["text"])
        refused = await made(address, {"model": "fake", "input_audio_format": "mp3"}, "sessions")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_audio_format")
        headers = {"authorization": f"Bearer {session['client_secret']['value']}", "openai-beta": "realtime=v1"}
        async with opened(address, "?model=fake", additional_headers=headers) as socket:
            assert (await reported(socket, "session.created"))[-1]["session"]["instructions"] == "Hm."
