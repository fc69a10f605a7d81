"""Realtime sessions of the openai SDK with a real chat model, without transcription and speech."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
import websockets
from openai.resources.realtime.realtime import RealtimeConnection
from openai.types.realtime import ClientSecretCreateResponse

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import NAME
from stentor.tests.server.realtime.wire import EXTENSIONS, Ledger
from stentor.tests.wire.validate import check_object

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


# the SDK opens its connection in a way that its library frowns upon
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")


@pytest.fixture(scope="module")
def server(talker: ServerProcess) -> ServerProcess:
    """Without transcription and speech models."""
    return talker


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        yield client


class Session:
    """A connection of the SDK whose every event is held against the protocol."""

    def __init__(self, connection: RealtimeConnection) -> None:
        self.connection = connection
        self.ledger = Ledger()

    def until(self, *kinds: str) -> dict[str, Any]:
        """The next event of one of these kinds."""
        while True:
            event: dict[str, Any] = json.loads(self.connection.recv_bytes())
            self.ledger.take(event)
            if event["type"] in kinds:
                return event
            assert event["type"] != "error", event

    def ask(self, text: str, **response: Any) -> dict[str, Any]:
        content: Any = [{"type": "input_text", "text": text}]
        self.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        self.connection.response.create(response=response)  # type: ignore[arg-type]  # whatever the test says
        done: dict[str, Any] = self.until("response.done")["response"]
        return done


@contextmanager
def session(client: openai.OpenAI, **options: Any) -> Iterator[Session]:
    with client.realtime.connect(**{"model": NAME, **options}) as connection:
        opened = Session(connection)
        opened.until("session.created")
        yield opened


def text_of(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


def test_a_conversation_in_text_reuses_what_it_has_said(client: openai.OpenAI) -> None:
    with session(client) as opened:
        opened.connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "instructions": "Answer in one short sentence."}
        )
        effective = opened.until("session.updated")["session"]
        assert effective["output_modalities"] == ["text"]
        assert effective["model"] == NAME
        first = opened.ask("What is the capital of France?", max_output_tokens=32)
        assert first["status"] in ("completed", "incomplete")
        assert text_of(first)
        second = opened.ask("And of Italy?", max_output_tokens=16)
        assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
        cached = second["usage"]["input_token_details"]["cached_tokens"]
        assert cached >= first["usage"]["input_tokens"] // 16 * 16
        kinds = opened.ledger.kinds
        assert (
            kinds.index("response.created") < kinds.index("response.output_text.delta") < kinds.index("response.done")
        )


def test_a_function_is_called_and_its_output_answered(client: openai.OpenAI) -> None:
    with session(client) as opened:
        asking: Any = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        asked = opened.ask("How is the weather in Rome?", max_output_tokens=64, **asking)
        (call,) = [item for item in asked["output"] if item["type"] == "function_call"]
        assert json.loads(call["arguments"])["city"] in ("Paris", "Rome")
        opened.connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": call["call_id"], "output": '{"sky": "clear"}'}
        )
        opened.connection.response.create(response={"max_output_tokens": 24})
        done = opened.until("response.done")["response"]
        assert text_of(done)


def test_a_response_is_cancelled_in_the_middle(client: openai.OpenAI) -> None:
    content: Any = [{"type": "input_text", "text": "Count from one to two hundred, in words."}]
    with session(client) as opened:
        done: dict[str, Any] = {"status": ""}
        while done["status"] != "cancelled":  # one may draw its end before that
            opened.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
            opened.connection.response.create()
            event = opened.until("response.output_text.delta", "response.done")
            if event["type"] == "response.done":
                continue
            opened.connection.response.cancel()
            done = opened.until("response.done")["response"]
            if done["status"] != "cancelled":
                assert opened.until("error")["error"]["code"] == "response_cancel_not_active"
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        assert opened.ask("Say hello.", max_output_tokens=8)["status"] in ("completed", "incomplete")


def test_a_response_beside_the_conversation_leaves_no_trace_in_it(client: openai.OpenAI) -> None:
    with session(client) as opened:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}
        aside: Any = {"conversation": "none", "input": [item], "metadata": {"kind": "aside"}, "max_output_tokens": 8}
        opened.connection.response.create(response=aside)
        done = opened.until("response.done")["response"]
        assert (done["conversation_id"], done["metadata"]) == (None, {"kind": "aside"})
        assert opened.ledger.order == []


def test_a_client_secret_opens_a_session_with_its_settings(server: ServerProcess, client: openai.OpenAI) -> None:
    made = client.realtime.client_secrets.with_raw_response.create(
        expires_after={"anchor": "created_at", "seconds": 60},
        session={"type": "realtime", "model": NAME, "instructions": "Speak like a herald."},
    )
    secret = check_object(ClientSecretCreateResponse, made.content, EXTENSIONS)
    url = f"http://127.0.0.1:{server.port}/v1"
    with (
        openai.OpenAI(base_url=url, api_key=secret.value, max_retries=0) as holder,
        holder.realtime.connect(model=NAME) as connection,
    ):
        event = json.loads(connection.recv_bytes())
        assert event["session"]["instructions"] == "Speak like a herald."
    with (
        openai.OpenAI(base_url=url, api_key="ek_made_up", max_retries=0) as stranger,
        pytest.raises(websockets.exceptions.InvalidStatus, match="401"),
        stranger.realtime.connect(model=NAME),
    ):
        pass


def test_what_needs_another_model_is_refused_with_the_flag_that_helps(client: openai.OpenAI) -> None:
    with session(client) as opened:
        for event, flag in (
            (
                {"type": "session.update", "session": {"type": "realtime", "output_modalities": ["audio"]}},
                "--speech-model",
            ),
            ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "--transcription-model"),
        ):
            opened.connection.send(event)  # type: ignore[arg-type]  # the SDK's types, one by one
            error = json.loads(opened.connection.recv_bytes())
            assert error["type"] == "error"
            assert flag in error["error"]["message"]
