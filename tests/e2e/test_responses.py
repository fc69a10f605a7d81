"""The Responses API through the OpenAI SDK against the real server, engine, worker and model."""

from typing import Any

import openai
import pytest

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


def test_two_turns_by_the_id_of_the_one_before(client: openai.OpenAI) -> None:
    first = client.responses.create(model=NAME, input="My name is Ada. Say hello.", temperature=0, max_output_tokens=30)
    second = client.responses.create(
        model=NAME, input="What is my name?", previous_response_id=first.id, temperature=0, max_output_tokens=30
    )
    assert "Ada" in second.output_text
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens


def test_a_conversation_gathers_what_is_said_in_it(client: openai.OpenAI) -> None:
    items: Any = [{"type": "message", "role": "user", "content": "My name is Ada."}]
    conversation = client.conversations.create(items=items, metadata={"topic": "names"})
    answer = client.responses.create(
        model=NAME, input="What is my name?", conversation=conversation.id, temperature=0, max_output_tokens=20
    )
    assert "Ada" in answer.output_text
    listed = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.type for item in listed] == ["message"] * 3
    client.conversations.items.delete(listed[0].id or "", conversation_id=conversation.id)
    assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(conversation.id).metadata == {"a": "b"}
    added = client.conversations.items.create(conversation.id, items=items)
    assert len(added.data) == 1
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


def test_a_compacted_conversation_goes_on(client: openai.OpenAI) -> None:
    first = client.responses.create(model=NAME, input="My name is Ada. Say hello.", temperature=0, max_output_tokens=30)
    compacted = client.responses.compact(model=NAME, previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["compaction"]
    items: Any = [item.to_dict() for item in compacted.output]
    answer = client.responses.create(
        model=NAME,
        input=[*items, {"role": "user", "content": "What is my name?"}],
        temperature=0,
        max_output_tokens=30,
    )
    assert "Ada" in answer.output_text
