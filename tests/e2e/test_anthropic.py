"""The Anthropic SDK against the real server, engine, worker and model."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from anthropic.types import Message, ToolUseBlock
from pydantic import BaseModel

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import NAME

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a place.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Paris", "Rome"]},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


def url_of(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url_of(server), api_key="unused", max_retries=0) as client:
        yield client


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def ask(client: anthropic.Anthropic, **fields: Any) -> Message:
    options: dict[str, Any] = {"model": NAME, "max_tokens": 40, "messages": QUESTION, "extra_body": {"temperature": 0}}
    message: Message = client.messages.create(**options | fields)
    return message


def test_a_message_answers_the_question_and_ends_its_turn(client: anthropic.Anthropic) -> None:
    message = ask(client)
    assert "Paris" in text_of(message)
    assert "<|im_end|>" not in text_of(message)
    assert message.stop_reason == "end_turn"
    assert message._request_id


def test_the_stream_helper_comes_to_the_same_message(client: anthropic.Anthropic) -> None:
    whole = ask(client)
    extra = {"temperature": 0}
    with client.messages.stream(model=NAME, max_tokens=40, messages=QUESTION, extra_body=extra) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == text_of(final) == text_of(whole)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_counted_tokens_are_those_that_are_used_and_the_cache_s_are_apart(client: anthropic.Anthropic) -> None:
    system: Any = [{"type": "text", "text": "Be brief. " * 80, "cache_control": {"type": "ephemeral"}}]
    counted = client.messages.count_tokens(model=NAME, messages=QUESTION, system=system, tools=[WEATHER]).input_tokens
    first, second = (ask(client, system=system, tools=[WEATHER], max_tokens=2).usage for _ in range(2))
    assert first.input_tokens + (first.cache_read_input_tokens or 0) == counted
    assert second.input_tokens + (second.cache_read_input_tokens or 0) == counted
    assert (second.cache_read_input_tokens or 0) > counted / 2
    assert second.cache_creation_input_tokens == 0


def test_a_stop_sequence_is_told(client: anthropic.Anthropic) -> None:
    message = ask(client, messages=[{"role": "user", "content": "Count from 1 to 9."}], stop_sequences=["5", "zzz"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "5")
    assert "5" not in text_of(message)


def test_a_last_message_of_the_assistant_s_is_continued(client: anthropic.Anthropic) -> None:
    started: Any = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    message = ask(client, messages=started, max_tokens=5)
    assert text_of(message).startswith(" Paris")
    assert message.stop_reason in ("max_tokens", "end_turn")


@pytest.mark.proof(each="streamed")
@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called_its_result_given_and_the_turn_ended(client: anthropic.Anthropic, streamed: bool) -> None:
    messages: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
    options: Any = {"model": NAME, "max_tokens": 200, "tools": [WEATHER], "extra_body": {"temperature": 0}}
    options["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    if streamed:
        with client.messages.stream(messages=messages, **options) as stream:
            message: Message = stream.get_final_message()
    else:
        message = client.messages.create(messages=messages, **options)
    assert message.stop_reason == "tool_use"
    (call,) = [block for block in message.content if isinstance(block, ToolUseBlock)]
    assert (call.name, call.id[:6]) == ("get_weather", "toolu_")
    assert call.input.keys() == {"city", "unit"}
    assert call.input["city"] in ("Paris", "Rome")
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sunny."}]}
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    options["tool_choice"] = {"type": "none"}
    final = client.messages.create(messages=messages, **options)
    assert final.stop_reason in ("end_turn", "max_tokens")
    assert text_of(final)


class Answer(BaseModel):
    city: str
    sure: bool


def test_an_answer_is_parsed_into_a_model(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(
        model=NAME, max_tokens=200, messages=QUESTION, output_format=Answer, extra_body={"temperature": 0}
    )
    assert isinstance(parsed.parsed_output, Answer)
    assert parsed.stop_reason == "end_turn"


@pytest.mark.proof(each="streamed")
@pytest.mark.parametrize("streamed", [False, True])
def test_the_tool_runner_calls_the_function_and_hands_its_result_back(
    client: anthropic.Anthropic, streamed: bool
) -> None:
    asked: list[str] = []

    @anthropic.beta_tool
    def get_population(city: Literal["Paris", "Rome"]) -> str:
        """How many people live in a city.

        Args:
            city: which one
        """
        asked.append(city)
        return "Many."

    runner: Any = client.beta.messages.tool_runner(
        model=NAME,
        max_tokens=100,
        messages=[{"role": "user", "content": "How many people live in Rome?"}],
        tools=[get_population],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_iterations=2,
        stream=streamed,
    )
    messages = [one.get_final_message() if streamed else one for one in runner]
    assert [message.stop_reason for message in messages] == ["tool_use"] * 2
    assert len(asked) >= 1
    assert set(asked) <= {"Paris", "Rome"}


def test_beta_s_path_and_its_fields_are_the_same(client: anthropic.Anthropic) -> None:
    message = client.beta.messages.create(
        model=NAME,
        max_tokens=20,
        messages=QUESTION,
        betas=["interleaved-thinking-2025-05-14"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    assert message.content


def test_models_are_listed_and_retrieved(client: anthropic.Anthropic) -> None:
    model, *_ = client.models.list()
    assert (model.id, model.lifecycle) == (NAME, "active")
    assert model.created_at.year > 2000
    assert client.models.retrieve(NAME).max_input_tokens == 2048
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")


def test_errors_are_the_sdk_s_classes_and_name_the_field(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as refusal:
        ask(client, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    assert refusal.value.type == "invalid_request_error"
    assert "messages[0].content[0]" in str(refusal.value.api_message)
    assert refusal.value.request_id
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(client, model="other")
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(client, messages=[{"role": "user", "content": "word " * 3000}])
    with pytest.raises(anthropic.GatewayTimeoutError) as late:
        ask(client, max_tokens=1500, messages=QUESTION, extra_headers={"x-request-timeout": "0.01"})
    assert late.value.type == "timeout_error"


def test_the_asynchronous_client_gets_the_same(server: ServerProcess) -> None:
    async def both() -> tuple[Message, str]:
        async with anthropic.AsyncAnthropic(base_url=url_of(server), auth_token="unused", max_retries=0) as client:
            options: Any = {"model": NAME, "max_tokens": 20, "messages": QUESTION, "extra_body": {"temperature": 0}}
            whole = await client.messages.create(**options)
            async with client.messages.stream(**options) as stream:
                text = "".join([piece async for piece in stream.text_stream])
        return whole, text

    whole, text = asyncio.run(both())
    assert text == text_of(whole)
