"""Sessions of the Live API over WebRTC: begun by the openai SDK, held by a real client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
import websockets
from openai.types.live import LiveCreateResponse, ServerEvent
from websockets.asyncio.client import connect

from stentor.tests.server.harness import until
from stentor.tests.server.realtime.live_client import live_server
from stentor.tests.wire.validate import check_event

pytest.importorskip("aiortc", reason="the extra `webrtc` is not installed")

from aiortc import RTCSessionDescription

from stentor.tests.server.realtime.rtc_client import Client, loopback
from stentor.tests.server.realtime.test_calls import LOUD, answering, tone

__all__ = ["loopback"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("loopback")]
LIVE = "/v1/live/sessions"


async def created(address: str, sdp: str, **session: Any) -> LiveCreateResponse:
    async with sdk_of(address) as sdk:
        return await sdk.live.create(
            session={"model": "fake", **session},  # type: ignore[typeddict-item]
            transport={"type": "webrtc", "sdp": sdp},
        )


@asynccontextmanager
async def dialled(address: str, **session: Any) -> AsyncIterator[tuple[Client, str]]:
    """A caller whose session has started, and the session's id."""
    client = Client(address)
    try:
        answer = await created(address, await client.offer(), **session)
        await client.connection.setRemoteDescription(RTCSessionDescription(answer.transport.sdp, "answer"))
        started = await client.until("session.started")
        assert started["session"]["id"] == answer.session.id
        yield client, answer.session.id
        for event in client.events:
            check_event(ServerEvent, event)
    finally:
        await client.hang_up()


@pytest.mark.alone  # sound has its time
async def test_a_caller_speaks_and_is_answered_until_it_closes_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        answering(monkeypatch, "One two three.") as (state, address),
        dialled(address, instructions="Be brief.") as (client, _),
    ):
        assert "format" not in client.events[0]["session"]["audio"], "the transport's"
        client.microphone.waiting = tone(800)
        await client.until("session.usage.updated")
        said = [event["delta"] for event in client.events if event["type"] == "session.output_transcript.delta"]
        assert "".join(said) == "One two three."
        await client.when(lambda: sum(loud > LOUD for loud in client.loudness) >= 15)
        assert "session.output_audio.delta" not in client.kinds()
        client.say(type="session.input_audio.append", audio="", event_id="a")
        assert (await client.until("error"))["error"]["client_event_id"] == "a"
        client.say(type="session.close", event_id="b")
        closed = await client.until("session.closed")
        assert (closed["reason"], closed["client_event_id"]) == ("close_requested", "b")
        await until(lambda: not len(state.for_realtime.calls))


def sdk_of(address: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0)


async def test_a_session_is_hung_up_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        live_server(monkeypatch) as (_, address),
        dialled(address) as (client, id),
        sdk_of(address) as sdk,
    ):
        await sdk.live.sessions.hangup(id)
        assert (await client.until("session.closed"))["reason"] == "close_requested"
        with pytest.raises(openai.NotFoundError):
            await sdk.live.sessions.hangup(id)


async def test_a_session_is_hung_up_before_its_client_has_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("")
    async with live_server(monkeypatch) as (state, address), sdk_of(address) as sdk:
        answer = await created(address, await client.offer())
        await sdk.live.sessions.hangup(answer.session.id)
        assert not len(state.for_realtime.calls)
    await client.hang_up()


async def test_what_is_not_served_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_server(monkeypatch) as (_, address), sdk_of(address) as sdk:
        for refused in (
            sdk.live.sessions.reject("live_x", status_code=486),
            sdk.live.sessions.refer("live_x", target_uri="tel:+1"),
            sdk.live.sessions.accept("live_x", session={"type": "live", "model": "fake"}),
            sdk.live.sessions.download_recording("live_x"),
        ):
            with pytest.raises(openai.NotFoundError):
                await refused
        with pytest.raises(websockets.exceptions.InvalidStatus, match=r"40[34]"):
            await connect(f"ws://{address}{LIVE}/live_x/attach", proxy=None)


@pytest.mark.parametrize(
    ("session", "sdp", "param"),
    [
        ({"audio": {"format": {"type": "audio/pcm", "rate": 24000}}}, "v=0", "session.audio.format"),
        ({"client": {"data_channel": {}}}, "v=0", "session.client"),
        ({"input": [{"role": "nobody", "content": []}]}, "v=0", "session.input[0].role"),
        ({}, "v=0", "transport.sdp"),
        ({}, "", "transport.sdp"),
    ],
)
async def test_a_session_that_cannot_begin_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, session: dict[str, Any], sdp: str, param: str
) -> None:
    async with live_server(monkeypatch) as (_, address):
        with pytest.raises(openai.BadRequestError) as refused:
            await created(address, sdp, **session)
        assert refused.value.param == param
