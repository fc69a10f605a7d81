"""Translation sessions over WebRTC, by a real client with a client secret."""

from typing import Any

import httpx
import openai
import pytest
from openai.types.realtime import RealtimeTranslationServerEvent

from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.server.harness import until
from stentor.tests.server.realtime.wire import EXTENSIONS
from stentor.tests.wire.validate import check_event

pytest.importorskip("aiortc", reason="the extra `webrtc` is not installed")

from stentor.tests.server.realtime.rtc_client import Client, loopback
from stentor.tests.server.realtime.test_calls import LOUD, answering, tone

__all__ = ["loopback"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("loopback")]
CALLS = "/v1/realtime/translations/calls"
GERMAN = {"audio": {"output": {"language": "de"}}}


@pytest.mark.alone  # sound has its time
async def test_a_caller_with_a_client_secret_is_interpreted_until_all_has_been_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = AccessControl(keys=Keyring([KeyDigest(b"secret")]))
    async with answering(monkeypatch, "Eins zwei.", access=access) as (state, address):
        sdk = openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="secret", max_retries=0)
        async with sdk:
            made = await sdk.realtime.translations.client_secrets.create(session={"model": "fake", **GERMAN})  # type: ignore[typeddict-item]
        client = Client(address, CALLS)
        try:
            await client.dial(headers={"authorization": f"Bearer {made.value}"})
            assert client.events[0]["session"]["audio"]["output"] == {"language": "de"}
            client.say(type="session.input_audio_buffer.append", audio="", event_id="a")
            assert (await client.until("error"))["error"]["event_id"] == "a"
            client.microphone.waiting = tone(800)
            await client.until("session.output_transcript.delta")
            client.say(type="session.close")
            await client.until("session.closed")
            assert sum(loud > LOUD for loud in client.loudness) >= 15, "it has been played by then"
            assert "session.output_audio.delta" not in client.kinds()
            for event in client.events:
                check_event(RealtimeTranslationServerEvent, event, EXTENSIONS)
            await until(lambda: not len(state.for_realtime.calls))
        finally:
            await client.hang_up()


async def test_a_call_is_hung_up_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch) as (state, address):
        client = Client(address, CALLS)
        try:
            await client.dial(GERMAN)
            assert client.answer is not None
            async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as http:
                assert (await http.post(f"{client.answer.headers['location']}/hangup")).status_code == 200
            await client.until("session.closed")
            assert not len(state.for_realtime.calls)
        finally:
            await client.hang_up()


async def test_a_call_is_hung_up_before_its_client_has_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch) as (state, address):
        client = Client(address, CALLS)
        answer = await client.post(await client.offer(), GERMAN)
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as http:
            assert (await http.post(f"{answer.headers['location']}/hangup")).status_code == 200
        assert not len(state.for_realtime.calls)
        await client.hang_up()


@pytest.mark.parametrize(
    ("session", "param"),
    [({"audio": {"output": {"language": "xx"}}}, "session.audio.output.language"), ({"voice": "joe"}, "session.voice")],
)
async def test_a_call_that_cannot_begin_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, session: dict[str, Any], param: str
) -> None:
    async with answering(monkeypatch) as (_, address):
        client = Client(address, CALLS)
        refused = await client.post(await client.offer(), session)
        await client.hang_up()
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
