"""vLLM's dialect, message by message, with made-up speech."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.protocols.common.errors import BadRequest
from stentor.server.api.realtime.connections import vllm
from stentor.server.api.realtime.connections.vllm import VllmSession, is_vllm_client
from stentor.server.api.realtime.listening import partial_pace
from stentor.server.api.realtime.listening.partial_pace import PartialPace
from stentor.server.common.errors import GenerationFailed
from stentor.tests.server.realtime.sounds import WORD_MS, Model, silence, until, words

pytestmark = pytest.mark.anyio

MODEL = {"type": "session.update", "model": "w"}
COMMIT = {"type": "input_audio_buffer.commit"}
FINAL = {"type": "input_audio_buffer.commit", "final": True}


def audio(pcm: bytes) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()}


class Client:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.send, self.sent = anyio.create_memory_object_stream[bytes](100)

    async def receive(self) -> bytes | None:
        try:
            return await self.sent.receive()
        except anyio.EndOfStream:
            return None

    def put(self, message: bytes) -> None:
        self.events.append(json.loads(message))

    async def say(self, *messages: Any) -> None:
        for message in messages:
            await self.send.send(message if isinstance(message, bytes) else json.dumps(message).encode())

    @property
    def kinds(self) -> list[str]:
        return [one["type"] for one in self.events]

    async def ended(self, count: int = 1) -> dict[str, Any]:
        """The result of the last of so many utterances, or the error in its place."""
        await until(lambda: sum(kind in ("transcription.done", "error") for kind in self.kinds) >= count)
        return self.events[-1]


def check(name: str) -> None:
    if name != "w":
        raise BadRequest(f"The model `{name}` does not exist.", "model", "model_not_found", 404)


async def room() -> None:
    await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def connected(model: Model | None = None, first: Any = MODEL) -> AsyncIterator[Client]:
    client = Client()
    session = VllmSession(model or Model(), PartialPace(), check, client.put, room)
    async with anyio.create_task_group() as tasks:
        with client.send, client.sent:
            tasks.start_soon(session.serve, client.receive, json.dumps(first).encode())
            yield client
            tasks.cancel_scope.cancel()


async def test_an_utterance_is_written_down() -> None:
    async with connected() as client:
        await client.say(COMMIT, audio(words(1, 2)), audio(silence(100) + words(3)), FINAL)
        done = await client.ended()
    assert done["text"] == "w1 w2 w3" == "".join(one["delta"] for one in client.events[:-1])
    prompt = round((3 * WORD_MS + 100) / 1000 * vllm.POSITIONS_A_SECOND)
    assert done["usage"] == {"prompt_tokens": prompt, "completion_tokens": 9, "total_tokens": prompt + 9}


async def test_deltas_come_while_audio_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_pace, "MIN_SECONDS", 0.005)
    model = Model()
    async with connected(model) as client:
        await client.say(COMMIT)
        for number in range(1, 8):
            calls = len(model.calls)
            await client.say(audio(words(number)))
            await model.asked_again(calls)
        assert "transcription.delta" in client.kinds
        assert "transcription.done" not in client.kinds
        await client.say(FINAL)
        done = await client.ended()
    assert done["text"] == "w1 w2 w3 w4 w5 w6 w7"


async def test_audio_may_come_before_the_commit_that_begins_its_utterance() -> None:
    async with connected() as client:
        await client.say(audio(words(1)), COMMIT, audio(words(2)), FINAL)
        assert (await client.ended())["text"] == "w1 w2"


async def test_one_commit_at_the_end_is_enough() -> None:
    async with connected() as client:
        await client.say(audio(words(1, 2)), FINAL)
        assert (await client.ended())["text"] == "w1 w2"


async def test_utterances_follow_one_another() -> None:
    async with connected() as client:
        for number in (1, 2):
            await client.say(COMMIT, COMMIT, audio(words(number)), FINAL)
            assert (await client.ended(number))["text"] == f"w{number}"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"{", "invalid_json"),
        (b"[" * 100_000, "processing_error"),
        ({"type": "input_audio_buffer.append", "audio": 7}, "processing_error"),
        ({"type": "response.create"}, "unknown_event"),
        ({"type": "session.update"}, "invalid_event"),
        ({"type": "session.update", "model": "other"}, "model_not_found"),
        ({"type": "input_audio_buffer.append", "audio": "???"}, "invalid_audio"),
        ({"type": "input_audio_buffer.append", "audio": ""}, "invalid_audio"),
        ({"type": "input_audio_buffer.append", "audio": "AA=="}, "invalid_audio"),
    ],
)
async def test_what_is_wrong_is_told_and_the_connection_goes_on(message: Any, code: str) -> None:
    async with connected() as client:
        await client.say(message)
        failed = await client.ended()
        assert set(failed) == {"type", "error", "code"}
        assert failed["code"] == code
        await client.say(COMMIT, audio(words(1)), FINAL)
        assert (await client.ended(2))["text"] == "w1"


async def test_a_commit_needs_a_model_first() -> None:
    async with connected(first=COMMIT) as client:
        assert (await client.ended())["code"] == "model_not_validated"


async def test_audio_before_a_commit_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "MAX_HELD_MS", 1000)
    async with connected() as client:
        await client.say(audio(silence(900)), audio(silence(200)))
        assert (await client.ended())["code"] == "invalid_audio"


async def test_audio_is_not_read_before_enough_has_been_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "MAX_HELD_MS", 30_000)
    model = Model()
    model.gate = anyio.Event()
    async with connected(model) as client:
        await client.say(COMMIT, *[audio(words(*(at % 9 for at in range(20))) + silence(150)) for _ in range(6)])
        await anyio.wait_all_tasks_blocked()
        assert client.sent.statistics().current_buffer_used > 0
        model.gate.set()
        await client.say(FINAL)
        assert len((await client.ended())["text"].split()) == 120


async def test_an_utterance_that_fails_is_told_and_another_may_follow() -> None:
    model = Model()
    model.error = GenerationFailed()
    async with connected(model) as client:
        await client.say(COMMIT, audio(words(1)), FINAL)
        assert (await client.ended())["code"] == "processing_error"
        model.error = None
        await client.say(COMMIT, audio(words(2)), FINAL)
        assert (await client.ended(2))["text"] == "w2"


@pytest.mark.parametrize(
    ("message", "vllms"),
    [
        (MODEL, True),
        ({"type": "session.update", "session": {"type": "realtime"}}, False),
        ({"type": "session.update", "model": "w", "session": {"type": "realtime"}}, False),
        ({"type": "response.create", "model": "w"}, False),
        (["session.update"], False),
        (FINAL, True),
        (COMMIT, False),
    ],
)
def test_it_is_told_apart_by_its_first_message(message: Any, vllms: bool) -> None:
    assert is_vllm_client(json.dumps(message).encode()) is vllms


@given(st.binary(max_size=50))
def test_any_bytes_are_a_first_message(message: bytes) -> None:
    assert is_vllm_client(message) is False


def test_a_first_message_may_be_as_deep_as_it_likes() -> None:
    assert not is_vllm_client(b'{"type":"session.update","model":"w","session":' + b"[" * 100_000)


async def test_audio_waits_while_finished_utterances_wait_to_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "MAX_HELD_MS", 1000)
    model = Model()
    model.gate = anyio.Event()
    async with connected(model) as client:
        for number in range(3):
            await client.say(audio(words(number, 9)), FINAL)
        await anyio.wait_all_tasks_blocked()
        assert client.sent.statistics().current_buffer_used == 1  # the last commit, behind audio that is not taken
        model.gate.set()
        assert (await client.ended(3))["text"] == "w2 w9"
