"""Answers in a form that the client asks for, through the OpenAI SDK: what ends by itself is always valid."""

import json
import re
from enum import StrEnum
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import NAME
from stentor.tests.e2e.wire import post
from stentor.tests.wire.chat import check_stream
from stentor.tests.wire.validate import assert_same_answer

QUESTION: Any = [{"role": "user", "content": "Describe a capital city."}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "people": {"type": "integer", "maximum": 99999999}},
    "required": ["name", "people"],
    "additionalProperties": False,
}


class Continent(StrEnum):
    europe = "Europe"
    asia = "Asia"


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    continent: Continent
    sights: list[str] = Field(max_length=2)


def json_schema(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def text_of(answer: Any) -> str:
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    text = choice.message.content if hasattr(choice, "message") else choice.text
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.proof)])
def test_an_answer_is_parsed_into_a_pydantic_model(client: openai.OpenAI, seed: int) -> None:
    bounded = {**City.model_json_schema(), "additionalProperties": False}
    bounded["properties"]["sights"]["items"]["maxLength"] = 20
    answer = client.chat.completions.create(
        model=NAME, messages=QUESTION, response_format=json_schema(bounded), max_tokens=200, temperature=1.2, seed=seed
    )
    city = City.model_validate_json(text_of(answer))
    assert city.continent in Continent


def test_the_parse_and_stream_helpers_bring_the_model(client: openai.OpenAI) -> None:
    class Reply(BaseModel):
        model_config = ConfigDict(extra="forbid")
        continent: Continent
        certain: bool

    # drawn: the most likely answer never ends
    drawn = {"temperature": 1.0, "seed": 2}
    options: Any = {"model": NAME, "messages": QUESTION, "response_format": Reply, "max_tokens": 60, **drawn}
    parsed = client.chat.completions.parse(**options).choices[0].message.parsed
    assert isinstance(parsed, Reply)
    with client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0].message.parsed
    assert final == parsed
    assert {"content.delta", "content.done"} <= kinds


def test_a_json_object_is_one(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": 'Answer with {"ok": true} as JSON.'}],
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=300,
    )
    choice = answer.choices[0]
    assert choice.message.content is not None
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"regex": r"[A-Z][a-z]{2,8}-\d{3}"}, r"[A-Z][a-z]{2,8}-\d{3}"),
        ({"choice": ["yes", "no", "peut-être"]}, "yes|no|peut-être"),
        ({"grammar": 'root ::= "<" word ">"\nword ::= [a-c]+ [0-9]'}, r"<[abc]+[0-9]>"),
        ({"grammar": 'start: "a" ("b" | "é")~2..4'}, r"a[bé]{2,4}"),
        ({"json": SCHEMA}, r"(?s)\{.*\}"),
    ],
)
def test_chat_and_completions_keep_to_other_forms(client: openai.OpenAI, wanted: Any, pattern: str) -> None:
    more: Any = {"max_tokens": 120, "temperature": 1.0, "seed": 3, "extra_body": {"structured_outputs": wanted}}
    chat = text_of(client.chat.completions.create(model=NAME, messages=QUESTION, **more))
    completion = text_of(client.completions.create(model=NAME, prompt="Paris is", **more))
    for text in (chat, completion):
        assert re.fullmatch(pattern, text), text
        if "json" in wanted:
            assert json.loads(text).keys() == {"name", "people"}


def test_a_stream_equals_the_whole_and_choices_differ(server: ServerProcess) -> None:
    body = {
        "model": NAME,
        "messages": QUESTION,
        "response_format": json_schema(SCHEMA),
        "n": 3,
        "seed": 4,
        "temperature": 1.0,
        "max_tokens": 120,
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
    }
    whole = json.loads(post(server, "/v1/chat/completions", body))
    whole.pop("prompt_token_ids")
    streamed = post(server, "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    found = check_stream(streamed)
    for answer in (whole, found):
        answer["usage"].pop("prompt_tokens_details")  # the second finds the first one's prompt in the cache
    assert_same_answer(whole, found)
    texts = {choice["message"]["content"] for choice in whole["choices"]}
    assert len(texts) > 1
    for choice in whole["choices"]:
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"]).keys() == {"name", "people"}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "object", "properties": {"a": {"type": "strang"}}}, "type"),
        ({"type": "string", "pattern": "("}, "pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "http://example.com/schema"}}}, "$ref"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_with_its_keyword(
    client: openai.OpenAI, schema: dict[str, Any], keyword: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model=NAME, messages=QUESTION, response_format=json_schema(schema))
    assert refusal.value.param is not None
    assert refusal.value.param.startswith("response_format")
    assert keyword in str(refusal.value)


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_tokens_that_leave_nothing_of_a_grammar_are_refused(server: ServerProcess, path: str) -> None:
    said = {"chat/completions": {"messages": QUESTION}, "completions": {"prompt": "A"}, "responses": {"input": "A"}}
    body = {"model": NAME, **said[path], "structured_outputs": {"regex": "[0-9]{9}"}, "allowed_token_ids": [5]}
    refused = httpx.post(f"http://127.0.0.1:{server.port}/v1/{path}", json=body, timeout=120)
    assert refused.status_code == 400
    assert (refused.json()["error"]["type"], refused.json()["error"]["param"]) == (
        "invalid_request_error",
        "allowed_token_ids",
    )
