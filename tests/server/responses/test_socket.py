"""WebSocket mode, through the listener that really serves: what clients send, wrongly and too much of it too."""

import asyncio
import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from stentor.server.api.responses import socket as socket_module
from stentor.server.api.responses.socket import MAX_PENDING
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.limits import ConnectionLimits, OverloadConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import until
from stentor.tests.server.responses.shapes import RESPONSES
from stentor.tests.server.responses.sockets import ask, opened, serving, until_the_end

pytestmark = pytest.mark.anyio


async def test_events_are_those_of_the_stream_and_responses_follow_one_another() -> None:
    async with serving(fake_state()) as address, opened(address) as socket:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:  # the same listener
            text = (await client.post(RESPONSES, json={"input": "hello", "max_output_tokens": 6, "stream": True})).text
        kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
        for lane in ({}, {"stream_id": "second"}):
            await ask(socket, input="hello", **lane)
            events = await until_the_end(socket)
            assert [event["type"] for event in events] == kinds
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert all(event.get("stream_id") == lane.get("stream_id") for event in events)


async def test_responses_of_one_lane_wait_for_one_another_and_other_lanes_do_not() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(fake_state(engine)) as address, opened(address) as socket:
        for lane in ("a", "a", "b"):
            await ask(socket, input=f"hello {lane}", stream_id=lane)
        await until(lambda: engine.live == 2)
        engine.gate.set()
        for _ in range(3):
            await until_the_end(socket)
        assert len(engine.streams) == 3


async def test_what_is_not_stored_is_gone_on_from_on_its_own_connection_alone() -> None:
    engine = FakeEngine(answer=says("Yes."))
    async with serving(fake_state(engine)) as address, opened(address) as socket, opened(address) as other:
        await ask(socket, input="Is it?", store=False)
        first = (await until_the_end(socket))[-1]["response"]["id"]
        await ask(socket, input="Sure?", store=False, previous_response_id=first)
        assert (await until_the_end(socket))[-1]["type"] == "response.completed"
        assert b"Yes.\n<user>Sure?" in bytes(engine.streams[1].prompt)
        await ask(other, input="Sure?", previous_response_id=first)
        error = (await until_the_end(other))[-1]
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")


async def test_after_an_error_nothing_goes_on_from_the_response_that_it_named() -> None:
    state = fake_state(FakeEngine(answer=says("Yes.")))
    async with serving(state) as address, opened(address) as socket:
        names: list[str] = []
        for _ in range(2):
            await ask(socket, input="Is it?", store=False)
            names.append((await until_the_end(socket))[-1]["response"]["id"])
        for wrong in ({"temperature": 9}, {"input": [{"type": "item_reference", "id": "msg_none"}]}):
            await ask(socket, **{"input": "Sure?", "store": False, "previous_response_id": names[0], **wrong})
            assert (await until_the_end(socket))[-1]["status"] in (400, 404)
        await ask(socket, input="Sure?", store=False, previous_response_id=names[0])
        assert (await until_the_end(socket))[-1]["error"]["code"] == "previous_response_not_found"
        await ask(socket, input="Sure?", store=False, previous_response_id=names[1])
        assert (await until_the_end(socket))[-1]["type"] == "response.completed"
    await until(lambda: state.admission.memory.bytes == 0)


async def test_a_response_that_is_only_prepared_asks_nothing_of_the_engine() -> None:
    engine = FakeEngine(answer=says("Yes."))
    async with serving(fake_state(engine)) as address, opened(address) as socket:
        await ask(socket, input="Long ago.", generate=False)
        prepared = (await until_the_end(socket))[-1]["response"]
        assert (prepared["status"], prepared["output"]) == ("completed", [])
        assert engine.streams == []
        await ask(socket, input="And now?", previous_response_id=prepared["id"])
        await until_the_end(socket)
        assert bytes(engine.streams[0].prompt).startswith(b"<user>Long ago.\n<user>And now?")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("not json", None),
        ("[]", None),
        ("{}", "type"),
        ('{"type": "session.update"}', "type"),
        ('{"type": "response.create"}', "input"),
        ('{"type": "response.create", "input": "x", "background": true}', "background"),
        ('{"type": "response.create", "input": "x", "temperature": 9}', "temperature"),
        ('{"type": "response.create", "input": ' + "[" * 5000 + "]" * 5000 + "}", "input"),
    ],
)
async def test_a_wrong_message_is_told_and_the_connection_goes_on(message: str, param: str | None) -> None:
    async with serving(fake_state()) as address, opened(address) as socket:
        await socket.send(message)
        (error,) = await until_the_end(socket)
        assert (error["type"], error["status"], error["error"]["param"]) == ("error", 400, param)
        await ask(socket, input="hello")
        assert (await until_the_end(socket))[-1]["type"] == "response.incomplete"


async def test_no_more_wait_than_may_and_all_end_with_the_connection() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    state = fake_state(engine, connection=ConnectionLimits(max_messages_per_second=0))
    async with serving(state) as address:
        async with opened(address) as socket:
            for number in range(MAX_PENDING + 1):
                await ask(socket, input="hello", stream_id=str(number))
            error = (await until_the_end(socket))[-1]
            assert (error["status"], error["stream_id"]) == (429, str(MAX_PENDING))
            await until(lambda: engine.live == MAX_PENDING)
        await until(lambda: engine.live == 0)
        await until(lambda: state.admission.live_requests == 0)


async def test_what_waits_is_counted_in_what_is_held_for_all_requests() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    state = fake_state(engine, overload=OverloadConfig(max_inflight_bytes=2_000_000))
    async with serving(state) as address:
        async with opened(address) as socket:
            for _ in range(2):
                body = {"type": "response.create", "input": "hello", "max_output_tokens": 6}
                await socket.send(json.dumps(body) + " " * 300_000)
            error = (await until_the_end(socket))[-1]
            assert (error["status"], error["error"]["code"]) == (429, "memory_full")
        await until(lambda: state.admission.live_requests == 0)
        assert state.admission.memory.bytes == 0


async def test_what_is_kept_of_conversations_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_module, "MAX_KEPT_BYTES", 500_000)
    state = fake_state()
    async with serving(state) as address:
        async with opened(address) as socket:
            given = {"input": "x" * 100_000, "store": False, "generate": False}
            names: list[str] = []
            end: dict[str, Any] = {}
            for _ in range(7):
                before = {"previous_response_id": names[-1]} if names else {}
                await ask(socket, **given, **before)
                end = (await until_the_end(socket))[-1]
                if end["type"] == "error":
                    break
                names.append(end["response"]["id"])
                assert state.admission.memory.bytes <= 4 * 500_000
            assert len(names) == 5  # the fifth would be more than may be kept
            assert end["error"]["code"] == "previous_response_not_found"
        await until(lambda: state.admission.memory.bytes == 0)


async def test_a_client_that_goes_away_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(delay=0.005)
    state = fake_state(engine)
    async with serving(state) as address:
        for goes in ("close", "abort"):
            socket = await opened(address, close_timeout=0.1)  # it has not read what came before the answer to a close
            for lane in range(5):
                await ask(socket, input="hello", stream_id=str(lane), max_output_tokens=None)
            for _ in range(10):
                await socket.recv()
            if goes == "close":
                await socket.close()
            else:
                socket.transport.abort()
            await until(lambda: state.admission.live_requests == 0)
    assert not [each.message for each in caplog.records if each.levelname == "ERROR"]


async def test_a_client_that_goes_away_before_it_was_told_of_its_errors_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = fake_state()
    async with serving(state) as address:
        socket = await opened(address)
        for _ in range(3):
            await socket.send("{}")
        assert "error" in json.loads(await socket.recv())
        socket.transport.abort()
        connections = state.metrics.server.connections
        assert connections is not None
        await until(lambda: connections.open == 0)
    assert not [each.message for each in caplog.records if each.levelname == "ERROR"]


async def test_messages_are_read_no_faster_than_they_may_come() -> None:
    state = fake_state(connection=ConnectionLimits(max_messages_per_second=20))
    async with serving(state) as address, opened(address) as socket:
        began = asyncio.get_running_loop().time()
        for _ in range(9):
            await socket.send("{}")
        for _ in range(9):
            await socket.recv()
        assert asyncio.get_running_loop().time() - began >= 0.35


async def test_a_message_that_is_too_long_or_no_text_closes_the_connection() -> None:
    async with serving(fake_state(), max_message_bytes=1000) as address:
        for message, code in (("x" * 2000, 1009), (b"bytes", 1003)):
            async with opened(address) as socket:
                await socket.send(message)
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == code


async def test_a_key_and_an_origin_are_asked_for_before_anything_else() -> None:
    keys = Keyring(api=(KeyDigest(b"one"),))
    async with serving(fake_state(access=AccessControl(keys=keys))) as address:
        for headers in ({}, {"authorization": "Bearer two"}):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await opened(address, additional_headers=headers)
            assert refused.value.response.status_code == 401
            assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"
        with pytest.raises(websockets.InvalidStatus):
            await opened(address, additional_headers={"authorization": "Bearer one"}, origin="https://evil.example")
        async with opened(address, additional_headers={"authorization": "Bearer one"}) as socket:
            await ask(socket, input="hello")
            await until_the_end(socket)


async def test_other_paths_are_no_websockets_and_places_are_given_back() -> None:
    state = fake_state()
    async with serving(state) as address:
        counted = state.metrics.server.connections
        assert counted is not None
        with pytest.raises(websockets.InvalidStatus):
            await connect(f"ws://{address}/v1/models", proxy=None)
        async with opened(address):
            await until(lambda: counted.open == 1)
        await until(lambda: counted.open == 0)


async def test_a_server_that_drains_takes_no_more_and_closes_when_it_ends() -> None:
    state = fake_state()
    async with serving(state) as address:
        socket = await opened(address)
        state.admission.draining = True
        await ask(socket, input="hello")
        error = (await until_the_end(socket))[-1]
        assert (error["status"], error["error"]["code"]) == (503, "draining")
        with pytest.raises(websockets.InvalidStatus) as refused:
            await opened(address)
        answer = refused.value.response
        assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (503, "draining")
        assert answer.headers["retry-after"]
    with pytest.raises(websockets.ConnectionClosed):
        await socket.recv()


async def test_timers_of_http_do_not_end_a_websocket(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    limits = {"header_timeout": 611.0, "keep_alive_timeout": 612.0}
    timers: list[tuple[asyncio.TimerHandle, Callable[[], object]]] = []
    call_later = loop.call_later

    def watched(delay: float, callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.TimerHandle:
        timer = call_later(delay, callback, *args, **options)
        if delay in limits.values():
            timers.append((timer, partial(callback, *args)))
        return timer

    monkeypatch.setattr(loop, "call_later", watched)
    async with serving(fake_state(), **limits) as address, opened(address) as socket:
        assert timers
        for timer, due in timers:
            if not timer.cancelled():
                due()
        await ask(socket, input="hello")
        assert (await until_the_end(socket))[-1]["type"] == "response.incomplete"


async def test_a_connection_ends_after_its_time_but_what_runs_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    lifetimes: list[anyio.CancelScope] = []
    move_on_after = anyio.move_on_after

    def watched(seconds: float | None, **options: Any) -> anyio.CancelScope:
        scope = move_on_after(seconds, **options)
        if seconds == socket_module.MAX_SECONDS:
            lifetimes.append(scope)
        return scope

    monkeypatch.setattr(anyio, "move_on_after", watched)
    engine = FakeEngine(answer=says("well"))
    engine.gate.clear()
    async with serving(fake_state(engine)) as address, opened(address) as socket:
        await ask(socket, input="hello")
        await until(lambda: engine.streams)
        (lifetime,) = lifetimes
        lifetime.deadline = anyio.current_time()  # the hour has passed
        while (event := json.loads(await socket.recv()))["type"] != "error":
            pass
        assert event["error"]["code"] == "websocket_connection_limit_reached"
        engine.gate.set()
        assert (await until_the_end(socket))[-1]["type"] == "response.completed"
        with pytest.raises(websockets.ConnectionClosedOK):
            await socket.recv()


async def test_messages_that_are_not_whole_are_counted_for_all_connections_and_given_back() -> None:
    state = fake_state(overload=OverloadConfig(max_inflight_bytes=4 << 20))
    async with (
        serving(state) as address,
        opened(address, close_timeout=0.1) as first,  # a close amid a message is no close to the server
        opened(address) as second,
    ):
        await begin_message(first, 900_000)
        await until(lambda: 900_000 <= state.admission.memory.bytes <= 1_100_000)
        await begin_message(second, 1_000_000)
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await asyncio.wait_for(second.recv(), 60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        await until(lambda: state.admission.memory.bytes <= 1_100_000)
        await first.close()
        await until(lambda: state.admission.memory.bytes == 0)


async def begin_message(socket: ClientConnection, size: int) -> None:
    """Two frames, the second of which has not come in whole."""
    half = size // 2
    head = struct.pack("!BBQ", 0x01, 0xFF, half) + bytes(4)
    more = struct.pack("!BBQ", 0x00, 0xFF, half + 1) + bytes(4)
    socket.transport.write(head + b"x" * half + more + b"x" * half)
    await asyncio.sleep(0)


async def test_frames_without_bytes_count_too() -> None:
    async with serving(fake_state(), max_message_bytes=100_000) as address, opened(address) as socket:
        empty = struct.pack("!BB", 0x00, 0x80) + bytes(4)
        socket.transport.write(struct.pack("!BB", 0x01, 0x80) + bytes(4) + empty * 3_000)
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await asyncio.wait_for(socket.recv(), 60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_message_in_many_frames_arrives_and_holds_nothing_afterwards() -> None:
    state = fake_state()
    async with serving(state) as address, opened(address) as socket:
        body = {"type": "response.create", "input": "hello", "max_output_tokens": 6}
        text = json.dumps(body) + " " * 200_000
        await socket.send([text[start : start + 1000] for start in range(0, len(text), 1000)])
        assert (await until_the_end(socket))[-1]["type"] == "response.incomplete"
        await until(lambda: state.admission.memory.bytes == 0)
