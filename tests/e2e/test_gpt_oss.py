"""gpt-oss through the OpenAI SDK: a real server over a tiny random one with experts in MXFP4.

What it says is forced, by a schema, a required call, or biases of the request.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import openai
import pytest
import torch

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.harmony_model import make_gpt_oss
from stentor.tests.e2e.made_up import EXACT
from stentor.tests.e2e.wire import post
from stentor.tests.support.harmony import harmony_tokenizer
from stentor.tests.wire.chat import check_stream
from stentor.tests.wire.validate import assert_same_answer

pytestmark = pytest.mark.proof  # its parts: server/{rendering,parsing}/test_harmony*.py, parity/test_mixtures.py

NAME: Final = "gpt-oss"
TOKENIZER: Final = harmony_tokenizer()
QUESTION: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Oslo?"}]
PARAMETERS: Final = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bern"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: Any = {"name": "get_weather", "parameters": PARAMETERS, "strict": True}
WEATHER: Any = {"type": "function", "function": FUNCTION}
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS, "strict": True}}
GREEDY: Any = {"model": NAME, "max_tokens": 100, "temperature": 0.0}

SCRIPT: Final = (
    "<|channel|>",
    "<|start|>",
    "<|constrain|>",
    "Hm",
    "<|end|>",
    " to",
    "<|message|>",
    "analysis",
    "commentary",
)
THINKS_THEN_CALLS: Any = {
    "presence_penalty": 2.0,
    "logit_bias": {str(TOKENIZER.token_to_id(text.replace(" ", "Ġ"))): 100 - at for at, text in enumerate(SCRIPT)},
}
"""Of the tokens that the format allows, the first in ``SCRIPT`` is said. Once said, a token counts as two places later:
there is one thought, and then a call."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("gpt-oss")
    return folder, make_gpt_oss(folder)


@pytest.fixture(scope="module")
def server(made: tuple[Path, Any]) -> Iterator[ServerProcess]:
    arguments = [str(made[0]), *EXACT, "--served-model-name", NAME, "--kv-cache-memory", "64MiB"]
    with ServerProcess(arguments) as running:
        assert "parsers: reasoning gpt_oss, tool calls gpt_oss" in running.output()
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        yield client


def both_ways(server: ServerProcess, body: Any) -> Any:
    """The answer to a chat request, which is the same streamed."""
    whole = json.loads(post(server, "/v1/chat/completions", body))
    streamed = post(server, "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    found = check_stream(streamed)
    for answer in (whole, found):
        answer["usage"].pop("prompt_tokens_details")
    assert_same_answer(whole, found)
    return whole


def test_a_required_call_comes_whole_and_streamed_and_its_end_ends_the_turn(server: ServerProcess) -> None:
    answer = both_ways(server, {**GREEDY, "messages": QUESTION, "tools": [WEATHER], "tool_choice": "required"})
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Bern")
    assert choice["message"]["content"] is None


def test_a_model_that_may_call_thinks_first_and_then_calls(server: ServerProcess) -> None:
    body = {**GREEDY, **THINKS_THEN_CALLS, "messages": QUESTION, "tools": [WEATHER]}
    answer = both_ways(server, body)
    (choice,) = answer["choices"]
    assert choice["message"]["reasoning"] == choice["message"]["reasoning_content"] == "Hm"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Bern")
    assert choice["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(["Hm", "<|end|>"])
    said = json.loads(post(server, "/v1/chat/completions", {**body, "return_token_ids": True}))
    text = TOKENIZER.decode(said["choices"][0]["token_ids"], skip_special_tokens=False)
    assert text == (
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{call['function']['arguments']}<|call|>"
    )


def test_an_answer_that_keeps_to_a_schema_is_a_final_message(server: ServerProcess) -> None:
    answer = both_ways(server, {**GREEDY, **THINKS_THEN_CALLS, "messages": QUESTION, "response_format": SCHEMA})
    message = answer["choices"][0]["message"]
    assert json.loads(message["content"])["city"] in ("Oslo", "Bern")
    assert message["reasoning"] == "Hm"
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("effort", "reported"), [("low", "low"), ("high", "high"), ("minimal", "low"), (None, "medium")]
)
def test_the_effort_stands_in_the_system_message(client: openai.OpenAI, effort: Any, reported: str) -> None:
    fields = {} if effort is None else {"reasoning_effort": effort}
    answer: Any = client.chat.completions.create(
        **{**GREEDY, "max_tokens": 1}, messages=QUESTION, extra_body={"return_token_ids": True}, **fields
    )
    prompt = TOKENIZER.decode(answer.model_extra["prompt_token_ids"], skip_special_tokens=False)
    assert f"\nReasoning: {reported}\n" in prompt
    assert prompt.endswith("<|end|><|start|>assistant")


def test_a_call_its_result_and_the_answer_are_a_conversation(client: openai.OpenAI) -> None:
    asked: Any = client.chat.completions.create(**GREEDY, **THINKS_THEN_CALLS, messages=QUESTION, tools=[WEATHER])
    message = asked.choices[0].message
    (call,) = message.tool_calls
    history: Any = [
        *QUESTION,
        {**message.model_dump(exclude_none=True), "content": "I look."},
        {"role": "tool", "tool_call_id": call.id, "content": "cold"},
    ]
    answer: Any = client.chat.completions.create(
        **GREEDY, messages=history, tools=[WEATHER], response_format=SCHEMA, tool_choice="none",
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    prompt = TOKENIZER.decode(answer.model_extra["prompt_token_ids"], skip_special_tokens=False)
    assert prompt.endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Hm\nI look.<|end|>"
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
        f"{json.dumps(json.loads(call.function.arguments))}<|call|>"
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"cold"<|end|><|start|>assistant'
    )
    assert json.loads(answer.choices[0].message.content)


def test_responses_call_and_go_on_from_the_result(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", **FUNCTION}
    asked: Any = {
        "model": NAME,
        "instructions": "Be brief.",
        "input": "Oslo?",
        "tools": [tool],
        "tool_choice": "required",
        "reasoning": {"effort": "low"},
        "temperature": 0.0,
        "max_output_tokens": 100,
    }
    first = client.responses.create(**asked)
    (call,) = (item for item in first.output if item.type == "function_call")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Bern")
    assert first.status == "completed"
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert "response.function_call_arguments.done" in kinds
    (again,) = (item for item in streamed.output if item.type == "function_call")
    assert (again.name, again.arguments) == (call.name, call.arguments)
    form: Any = {"format": {"type": "json_schema", "name": "place", "schema": PARAMETERS, "strict": True}}
    second = client.responses.create(
        model=NAME,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "cold"}],
        text=form,
        temperature=0.0,
        max_output_tokens=100,
    )
    assert json.loads(second.output_text)["city"] in ("Oslo", "Bern")


@torch.inference_mode()
def test_the_server_says_what_transformers_says(client: openai.OpenAI, made: tuple[Path, Any]) -> None:
    prompt = TOKENIZER.encode("<|start|>user<|message|>Which city is cold? Oslo.<|end|><|start|>assistant").ids
    ends = [TOKENIZER.token_to_id(text) for text in ("<|return|>", "<|call|>", "<|endoftext|>")]
    expected = [*prompt]
    for _ in range(24):
        expected.append(int(made[1](torch.tensor([expected])).logits[0, -1].argmax()))
        if expected[-1] in ends:
            break
    answer: Any = client.completions.create(
        model=NAME, prompt=prompt, max_tokens=24, temperature=0.0, extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].model_extra["token_ids"] == expected[len(prompt) :]
