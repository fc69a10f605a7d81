"""The Responses API through the OpenAI SDK against the real server, engine, worker and model."""

import json
import re
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from stentor.tests.e2e.conftest import NAME
from stentor.tests.e2e.processes import eventually

QUESTION = "What is the capital of France?"


def test_a_response_answers_the_question_and_is_found_again(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=NAME, input=QUESTION, temperature=0)
    assert "Paris" in answer.output_text
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    (item,) = client.responses.input_items.list(answer.id).data
    assert item.type == "message"
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_the_stream_helper_comes_to_what_the_whole_response_is(client: openai.OpenAI) -> None:
    options: Any = {"model": NAME, "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    whole = client.responses.create(**options)
    deltas = ""
    with client.responses.stream(**options) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                deltas += event.delta
        final = stream.get_final_response()
    assert deltas == final.output_text == whole.output_text


def test_a_stored_stream_is_read_again_from_the_middle(client: openai.OpenAI) -> None:
    options: Any = {"model": NAME, "input": QUESTION, "temperature": 0, "max_output_tokens": 12}
    events = list(client.responses.create(**options, stream=True))
    assert events[0].type == "response.created"
    again = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=3))
    assert again == events[4:]


def _chat(client: openai.OpenAI, *said: str) -> str:
    """What chat completions answer after these messages, of user and assistant in turn."""
    roles = ("user", "assistant")
    messages: Any = [{"role": roles[place % 2], "content": text} for place, text in enumerate(said)]
    answer = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=20)
    return answer.choices[0].message.content or ""


def test_two_turns_by_the_id_of_the_one_before(client: openai.OpenAI) -> None:
    options: Any = {"model": NAME, "temperature": 0, "max_output_tokens": 20}
    first = client.responses.create(**options, input="My name is Ada.")
    second = client.responses.create(**options, input="What is my name?", previous_response_id=first.id)
    assert second.output_text == _chat(client, "My name is Ada.", first.output_text, "What is my name?")
    assert second.output_text != _chat(client, "What is my name?")


def test_a_conversation_gathers_what_is_said_in_it(client: openai.OpenAI) -> None:
    items: Any = [
        {"type": "message", "role": "user", "content": "My name is Ada."},
        {"type": "message", "role": "assistant", "content": "Hello Ada."},
    ]
    conversation = client.conversations.create(items=items, metadata={"topic": "names"})
    answer = client.responses.create(
        model=NAME, input="What is my name?", conversation=conversation.id, temperature=0, max_output_tokens=20
    )
    assert answer.output_text == _chat(client, "My name is Ada.", "Hello Ada.", "What is my name?")
    assert answer.conversation is not None
    assert answer.conversation.id == conversation.id
    listed = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [item.type for item in listed] == ["message"] * 4
    client.conversations.items.delete(listed[0].id or "", conversation_id=conversation.id)
    assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(conversation.id).metadata == {"a": "b"}
    added = client.conversations.items.create(conversation.id, items=items)
    assert len(added.data) == 2
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_a_background_response_is_polled_to_its_end(client: openai.OpenAI) -> None:
    begun = client.responses.create(model=NAME, input=QUESTION, background=True, temperature=0)
    assert begun.status == "queued"
    eventually(lambda: client.responses.retrieve(begun.id).status == "completed", 30, "the response is completed")
    assert "Paris" in client.responses.retrieve(begun.id).output_text


def test_a_background_response_is_cancelled(client: openai.OpenAI) -> None:
    extra = {"ignore_eos": True}
    begun = client.responses.create(
        model=NAME, input="Count.", background=True, max_output_tokens=1500, extra_body=extra
    )
    eventually(lambda: client.responses.retrieve(begun.id).status == "in_progress", 30, "it runs")
    assert client.responses.cancel(begun.id).status == "cancelled"
    assert client.responses.retrieve(begun.id).status == "cancelled"


def test_the_tokens_of_an_input_are_counted(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=NAME, input=QUESTION, max_output_tokens=1)
    counted = client.responses.input_tokens.count(model=NAME, input=QUESTION)
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens


@pytest.mark.proof  # the model writes a whole summary; within one process: tests/server/responses/test_compacting.py
def test_a_compacted_conversation_goes_on(client: openai.OpenAI) -> None:
    first = client.responses.create(model=NAME, input="My name is Ada. Say hello.", temperature=0, max_output_tokens=30)
    compacted = client.responses.compact(model=NAME, previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["compaction"]
    items: Any = [item.to_dict() for item in compacted.output]
    plain = client.responses.create(model=NAME, input="What is my name?", max_output_tokens=1)
    answer = client.responses.create(
        model=NAME, input=[*items, {"role": "user", "content": "What is my name?"}], temperature=0, max_output_tokens=30
    )
    assert answer.usage is not None
    assert plain.usage is not None
    assert answer.usage.input_tokens > plain.usage.input_tokens + 10
    items[0]["encrypted_content"] = items[0]["encrypted_content"][:-4] + "AAAA"
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model=NAME, input=items)
    assert refusal.value.code == "invalid_encrypted_content"


class Country(BaseModel):
    name: str
    capital: str


def test_an_answer_is_parsed_into_a_model_of_pydantic(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model=NAME,
        input="Name a country and its capital.",
        text_format=Country,
        temperature=0,
        max_output_tokens=200,
    )
    assert answer.status == "completed", answer.output_text
    assert isinstance(answer.output_parsed, Country)


TOOLS: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]


@pytest.mark.proof(each="choice")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_function_is_called_and_its_output_is_taken(client: openai.OpenAI, choice: Any) -> None:
    asked: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    options: Any = {"model": NAME, "tools": TOOLS, "temperature": 0, "max_output_tokens": 120}
    options["parallel_tool_calls"] = False
    first = client.responses.create(**options, input=asked, tool_choice=choice)
    calls = [item for item in first.output if item.type == "function_call"]
    assert calls, first.output
    assert calls[0].name == "get_weather"
    assert set(json.loads(calls[0].arguments)) == {"city"}
    outputs: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."} for call in calls]
    second = client.responses.create(**options, input=outputs, previous_response_id=first.id, tool_choice="none")
    assert second.status in ("completed", "incomplete")
    assert second.output_text
    with client.responses.stream(**options, input=asked, tool_choice=choice) as stream:
        final = stream.get_final_response()
    streamed = [item for item in final.output if item.type == "function_call"]
    assert [call.arguments for call in streamed] == [call.arguments for call in calls]


SUM = """
start: e "\\n"
e: e ("+" | "-") t | t
t: "(" e ")" | NUMBER | "\\"" NUMBER "\\""
NUMBER: /[0-9]{1,2}/
"""


def is_sum(text: str) -> bool:
    """By taking it apart from the inside."""
    text, before = text.removesuffix("\n"), ""
    text = re.sub(r'"[0-9]{1,2}"|[0-9]{1,2}', "n", text)
    while text != before:
        before, text = text, re.sub(r"\(n\)|n[+\-]n", "n", text)
    return text == "n"


@pytest.mark.proof(each="seed")
@pytest.mark.parametrize("seed", [0, 6])  # one draws a number in quotes, one a sum: both soon come to an end
def test_the_input_of_a_custom_tool_is_always_what_its_grammar_allows(client: openai.OpenAI, seed: int) -> None:
    tool: Any = {"type": "custom", "name": "add", "description": "Adds numbers up."}
    tool["format"] = {"type": "grammar", "syntax": "lark", "definition": SUM}
    options: Any = {"model": NAME, "input": "What is 3 plus 4?", "tools": [tool], "max_output_tokens": 400}
    options["tool_choice"] = {"type": "custom", "name": "add"}
    drawn = {**options, "temperature": 0.8, "extra_body": {"seed": seed}}
    # long steps round otherwise where products run on tiles: the prompt is in the cache for both answers
    client.responses.create(**{**drawn, "max_output_tokens": 16})
    answer = client.responses.create(**drawn)
    (call,) = (item for item in answer.output if item.type == "custom_tool_call")
    assert answer.status == "completed"
    assert call.name == "add"
    assert is_sum(call.input), call.input
    assert call.input.endswith("\n")
    said, done = [], []
    with client.responses.create(**drawn, stream=True) as events:
        for event in events:
            if event.type == "response.custom_tool_call_input.delta":
                said.append(event.delta)
            elif event.type == "response.custom_tool_call_input.done":
                done.append(event.input)
    assert ["".join(said)] == done == [call.input]
    assert len(said) > 1
    outputs: Any = [{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "7"}]
    ending: Any = {"input": outputs, "tool_choice": "none", "temperature": 0, "max_output_tokens": 20}
    second = client.responses.create(**{**options, **ending}, previous_response_id=answer.id)
    assert second.output_text


def test_a_grammar_that_cannot_be_held_is_refused_by_its_place(client: openai.OpenAI) -> None:
    tool: Any = {"type": "custom", "name": "add"}
    tool["format"] = {"type": "grammar", "syntax": "lark", "definition": "start: nothing"}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=NAME, input="Hi", tools=[tool])
    assert refused.value.param == "tools[0].format.definition"
    assert 'unknown name: "nothing"' in refused.value.message


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # the SDK's
def test_a_websocket_carries_turn_after_turn(client: openai.OpenAI) -> None:
    options: Any = {"model": NAME, "temperature": 0, "max_output_tokens": 12, "store": False}
    whole = client.responses.create(**options, input=QUESTION)
    with client.responses.connect() as connection:
        connection.response.create(**options, input=QUESTION)
        first = _until_the_end(connection)
        assert first.output_text == whole.output_text
        connection.response.create(**options, input="Sure?", previous_response_id=first.id)
        second = _until_the_end(connection)
        assert second.usage.input_tokens > first.usage.total_tokens
        connection.send({"type": "response.create", "model": "other", "input": "x"})
        error = connection.recv()
        assert error.type == "error"
        assert error.error.code == "model_not_found"
        connection.response.create(**options, input=QUESTION)
        assert _until_the_end(connection).output_text == whole.output_text


def _until_the_end(connection: Any) -> Any:
    for event in connection:
        assert event.type != "error", event
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            return event.response
    raise AssertionError("the connection was closed")
