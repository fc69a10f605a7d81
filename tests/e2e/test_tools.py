"""Tools through the OpenAI SDK: a small model's calls always parse where they are required."""

import json
import re
from typing import Any, Final, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageCustomToolCall, ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel, ConfigDict, Field

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import NAME
from stentor.tests.e2e.wire import post
from stentor.tests.wire.chat import check_stream
from stentor.tests.wire.validate import assert_same_answer

QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time", "description": "The time of day"}}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
DRAWN: Any = {"model": NAME, "messages": QUESTION, "max_tokens": 200, "temperature": 1.0, "seed": 5}

GRAMMAR: Final = r"""
start: line{2,3} "end"
line: "- " what ": \"" WORD "\"" LF
what: WORD | "(" what ")"
WORD: /[a-z]{1,6}/
%import common.LF
"""
WRITTEN: Final = re.compile(r'(?:- \(*[a-z]{1,6}\)*: "[a-z]{1,6}"\n){2,3}end')


def arguments_of(call: Any) -> dict[str, Any]:
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.function.name == "get_weather"
    arguments: dict[str, Any] = json.loads(call.function.arguments)
    assert arguments.keys() == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    return arguments


@pytest.mark.proof(each="temperature")
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_required_call_parses_and_its_result_is_answered(client: openai.OpenAI, temperature: float) -> None:
    asked = client.chat.completions.create(
        **{**DRAWN, "temperature": temperature}, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
    )
    choice = asked.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    arguments_of(call)
    history: Any = [
        *QUESTION,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "21 degrees celsius, sunny"},
    ]
    answer = client.chat.completions.create(
        model=NAME, messages=history, tools=[WEATHER], tool_choice="none", max_tokens=40, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_a_named_tool_is_called_once_and_the_answer_has_stopped(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**DRAWN, n=2, tools=[TIME, WEATHER], tool_choice=NAMED)
    for choice in answer.choices:
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        arguments_of(call)
        assert choice.finish_reason == "stop"


@pytest.mark.proof(each="choice")
@pytest.mark.parametrize(
    ("choice", "most"),
    [
        ("required", 60),
        (NAMED, 80),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}, 16),
    ],
)
def test_a_stream_is_valid_and_equals_the_whole(server: ServerProcess, choice: Any, most: int) -> None:
    body = {**DRAWN, "n": 2, "tools": [TIME, WEATHER], "tool_choice": choice, "max_tokens": most}
    whole = json.loads(post(server, "/v1/chat/completions", body))
    streamed = post(server, "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    found = check_stream(streamed)
    for answer in (whole, found):
        answer["usage"].pop("prompt_tokens_details")  # the second finds the first one's prompt in the cache
    assert_same_answer(whole, found)
    if most > 16:
        assert all(answer["message"]["tool_calls"] for answer in whole["choices"])


def test_the_streaming_helper_brings_whole_calls(client: openai.OpenAI) -> None:
    class GetWeather(BaseModel):
        model_config = ConfigDict(extra="forbid")
        city: str = Field(max_length=20)
        unit: Literal["celsius", "fahrenheit"]

    tool = openai.pydantic_function_tool(GetWeather)
    drawn: Any = {"temperature": 1.0, "seed": 1}  # the most likely call never ends
    with client.chat.completions.stream(
        model=NAME, messages=QUESTION, tools=[tool], tool_choice="required", max_tokens=200, **drawn
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    calls = final.choices[0].message.tool_calls
    assert calls
    assert all(isinstance(call.function.parsed_arguments, GetWeather) for call in calls)


def test_a_strict_tool_may_be_left_uncalled(client: openai.OpenAI) -> None:
    strict: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    answer = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "Say hello."}],
        tools=[strict],
        temperature=0,
        max_tokens=40,
    )
    choice = answer.choices[0]
    assert choice.message.content or choice.message.tool_calls


def test_a_custom_tool_gets_plain_text_that_its_pattern_allows(client: openai.OpenAI, server: ServerProcess) -> None:
    format = {"type": "grammar", "grammar": {"syntax": "regex", "definition": r'[a-z]{2,8} "[0-9]{1,3}"'}}
    tool: Any = {"type": "custom", "custom": {"name": "query", "format": format}}
    choice: Any = {"type": "custom", "custom": {"name": "query"}}
    answer = client.chat.completions.create(**DRAWN, tools=[tool], tool_choice=choice)
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert isinstance(call, ChatCompletionMessageCustomToolCall)
    word, _, number = call.custom.input.partition(" ")
    assert word.isalpha()
    assert number[0] == number[-1] == '"'
    assert number[1:-1].isdigit()
    body = {**DRAWN, "tools": [tool], "tool_choice": choice, "stream": True}
    (streamed,) = check_stream(post(server, "/v1/chat/completions", body), usage=False)["choices"]
    assert streamed["message"]["tool_calls"][0]["custom"] == {"name": "query", "input": call.custom.input}


@pytest.mark.proof  # within one process: tests/server/conversation/test_turns.py
def test_a_custom_tool_gets_text_that_its_lark_grammar_allows(client: openai.OpenAI, server: ServerProcess) -> None:
    format = {"type": "grammar", "grammar": {"syntax": "lark", "definition": GRAMMAR}}
    tool: Any = {"type": "custom", "custom": {"name": "note", "description": "Takes a note.", "format": format}}
    choice: Any = {"type": "custom", "custom": {"name": "note"}}
    asked: Any = {**DRAWN, "tools": [tool], "tool_choice": choice, "temperature": 1.5}
    answer = client.chat.completions.create(**asked)
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert isinstance(call, ChatCompletionMessageCustomToolCall)
    assert WRITTEN.fullmatch(call.custom.input), call.custom.input
    (streamed,) = check_stream(post(server, "/v1/chat/completions", {**asked, "stream": True}), usage=False)["choices"]
    assert streamed["message"]["tool_calls"][0]["custom"] == {"name": "note", "input": call.custom.input}


def test_functions_are_answered_with_function_call(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **DRAWN, functions=[WEATHER["function"]], function_call={"name": "get_weather"}
    )
    called = answer.choices[0].message.function_call
    assert called is not None
    assert called.name == "get_weather"
    assert json.loads(called.arguments).keys() == {"city", "unit"}


@pytest.mark.parametrize(
    ("schema", "param", "keyword"),
    [
        ({"type": "object", "properties": {"a": {"type": "strang"}}}, "tools[0].function.parameters", "type"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "tools", "pattern"),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused(
    client: openai.OpenAI, schema: dict[str, Any], param: str, keyword: str
) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model=NAME, messages=QUESTION, tools=[tool], tool_choice="required")
    assert refusal.value.param is not None
    assert refusal.value.param.startswith(param)
    assert keyword in str(refusal.value)
