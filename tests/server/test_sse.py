"""The event stream alone, as a plain ASGI app."""

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import groupby
from typing import Any

import pytest

from stentor.server.common.errors import ClientDisconnected
from stentor.server.http.sse import EventStream, unless_disconnected

pytestmark = pytest.mark.anyio


class Client:
    """The other end: keeps what was sent, and goes away when told."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if "body" in message]


class Frames:
    def __init__(self, *steps: bytes | float | Exception) -> None:
        self.closed = False
        self._steps = steps

    async def run(self) -> AsyncGenerator[bytes, None]:
        try:
            for step in self._steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield step
        finally:
            self.closed = True


class AsTheyAre:
    """An encoder of batches that are frames already; fails at ``b"failed"``."""

    failed = False

    def encode(self, batch: bytes) -> bytes:
        self.failed = batch == b"failed"
        return batch

    def end(self) -> bytes:
        return b"end"


def streaming(frames: Frames, keep_alive: float = 15.0) -> EventStream[bytes]:
    return EventStream(frames.run(), AsTheyAre(), keep_alive)


async def test_frames_are_sent_as_they_are_and_the_body_is_ended() -> None:
    client = Client()
    await streaming(Frames(b"one", b"two"))({}, client.receive, client.send)
    assert [message["type"] for message in client.messages] == ["http.response.start"] + ["http.response.body"] * 3
    assert client.bodies == [b"one", b"two", b"end"]
    assert [message["more_body"] for message in client.messages[1:]] == [True, True, False]


async def test_nothing_follows_the_frames_of_an_encoder_that_failed() -> None:
    client, frames = Client(), Frames(b"one", b"failed", b"two")
    await streaming(frames)({}, client.receive, client.send)
    assert client.bodies == [b"one", b"failed", b""]
    assert client.messages[-1]["more_body"] is False
    assert frames.closed


async def test_a_batch_without_a_frame_sends_nothing() -> None:
    client = Client()
    await streaming(Frames(b"", b"one", b""))({}, client.receive, client.send)
    assert client.bodies == [b"one", b"end"]


async def test_a_failure_before_the_first_frame_is_raised_and_nothing_is_sent() -> None:
    client, frames = Client(), Frames(0.01, ValueError("early"))
    with pytest.raises(ValueError, match="early"):
        await streaming(frames)({}, client.receive, client.send)
    assert client.messages == []
    assert frames.closed


async def test_a_failure_after_the_first_frame_becomes_the_last_frame() -> None:
    client, frames = Client(), Frames(b"one", ValueError("secret"))
    await streaming(frames)({}, client.receive, client.send)
    assert client.bodies[0] == b"one"
    assert client.messages[-1]["more_body"] is False
    error = json.loads(client.bodies[-1].removeprefix(b"data: "))["error"]
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]
    assert frames.closed


@pytest.mark.parametrize("steps", [(3600.0,), (b"one", 3600.0)], ids=["queued", "running"])
async def test_a_disconnect_closes_the_frames_at_once(steps: tuple[Any, ...]) -> None:
    client, frames = Client(), Frames(*steps)
    answering = asyncio.create_task(streaming(frames)({}, client.receive, client.send))
    await asyncio.sleep(0.02)
    client.gone.set()
    await asyncio.wait_for(answering, 60)
    assert frames.closed


async def test_a_disconnect_closes_the_frames_while_a_send_is_blocked() -> None:
    client, frames = Client(), Frames(b"one", b"two")

    async def blocked(_message: Any) -> None:
        await asyncio.Event().wait()

    answering = asyncio.create_task(streaming(frames)({}, client.receive, blocked))
    await asyncio.sleep(0.02)
    client.gone.set()
    await asyncio.wait_for(answering, 60)
    assert frames.closed


async def test_silence_is_filled_with_comments_and_the_first_opens_the_response() -> None:
    client = Client()
    await streaming(Frames(0.07, b"one", 0.07, b"two"), keep_alive=0.03)({}, client.receive, client.send)
    assert client.messages[0]["type"] == "http.response.start"
    comment = b": keep-alive\n\n"
    assert [body for body, _ in groupby(client.bodies)] == [comment, b"one", comment, b"two", b"end"]


async def test_work_is_cancelled_when_nobody_waits_for_it() -> None:
    client = Client()
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    asyncio.get_running_loop().call_later(0.02, client.gone.set)
    with pytest.raises(ClientDisconnected):
        await unless_disconnected(client.receive, work())
    assert cancelled.is_set()


async def test_results_and_errors_of_work_pass_through() -> None:
    client = Client()
    assert await unless_disconnected(client.receive, asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ZeroDivisionError):
        await unless_disconnected(client.receive, divide_by_zero())


async def divide_by_zero() -> float:
    return 1 / 0
