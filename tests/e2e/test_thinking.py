"""Thinking over a real server: a template that opens it, a budget that ends it, and an answer that keeps to a schema.

The model has made-up weights: its prompt makes it think, and the budget sees to it that it stops.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import NAME
from stentor.tests.e2e.made_up import EXACT, describe_talker

pytestmark = pytest.mark.proof  # within one process: tests/server/test_thinking.py

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{{ '<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n' }}"
)
QUESTION: Any = [{"role": "user", "content": "Which colour is the sky?"}]
BUDGET = 6
SCHEMA: Any = {
    "type": "object",
    "properties": {"colour": {"enum": ["blue", "red"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def thinker(demo_model: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("model")
    template = folder / "thinking.jinja"
    template.write_text(TEMPLATE)
    arguments = [*describe_talker(folder), *EXACT, "--served-model-name", NAME, "--max-model-len", "512"]
    with ServerProcess([*arguments, "--chat-template", str(template)]) as running:
        yield running


@pytest.fixture
def client(thinker: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{thinker.port}/v1", api_key="unused", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    extra = {"thinking_token_budget": BUDGET, **fields.pop("extra_body", {})}
    return client.chat.completions.create(
        model=NAME, messages=QUESTION, max_tokens=60, temperature=0.0, extra_body=extra, **fields
    )


def test_a_budget_ends_thinking_and_the_rest_is_the_answer(client: openai.OpenAI) -> None:
    answer = ask(client)
    message = answer.choices[0].message
    assert message.model_extra["reasoning"] == message.model_extra["reasoning_content"]
    assert message.model_extra["reasoning"].strip()
    assert message.content.strip()
    assert "think>" not in message.content + message.model_extra["reasoning"]
    reasoning_tokens = answer.usage.completion_tokens_details.reasoning_tokens
    assert BUDGET < reasoning_tokens < BUDGET + 8  # and its end marker, which is no token of this model's


def test_a_stream_thinks_and_answers_the_same(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0].message
    streamed = {"content": "", "reasoning": ""}
    reasoning_tokens = None
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}):
        if chunk.usage is not None:
            reasoning_tokens = chunk.usage.completion_tokens_details.reasoning_tokens
        for choice in chunk.choices:
            for field in streamed:
                streamed[field] += getattr(choice.delta, field, None) or ""
    assert streamed == {"content": whole.content, "reasoning": whole.model_extra["reasoning"]}
    assert reasoning_tokens == ask(client).usage.completion_tokens_details.reasoning_tokens


def test_an_answer_keeps_to_its_schema_behind_the_thinking(client: openai.OpenAI) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "sky", "schema": SCHEMA, "strict": True}}
    message = ask(client, response_format=format).choices[0].message
    assert json.loads(message.content)["colour"] in ("blue", "red")
    assert message.model_extra["reasoning"].strip()


def test_without_effort_there_is_no_thinking(client: openai.OpenAI) -> None:
    answer = ask(client, reasoning_effort="none")
    assert not getattr(answer.choices[0].message, "reasoning", None)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
