"""Ollama's client against the real server, engine, worker and model: its makers' quick starts."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import ollama
import pytest
from pydantic import BaseModel

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import EMBEDDING, NAME

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ollama.Client]:
    with ollama.Client(f"http://127.0.0.1:{server.port}") as client:
        yield client


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    sure: bool


def test_a_chat_is_answered_streamed_as_it_is_whole(client: ollama.Client) -> None:
    whole = client.chat(f"{NAME}:latest", QUESTION, options={"num_predict": 20})
    assert whole.message.content is not None
    assert "Paris" in whole.message.content
    chunks = list(client.chat(NAME, QUESTION, stream=True, options={"num_predict": 20}))
    assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].eval_count == whole.eval_count
    assert (whole.eval_duration or 0) > 0


def test_a_prompt_is_continued_raw(client: ollama.Client) -> None:
    answer = client.generate(NAME, "The capital of France is", raw=True, options={"num_predict": 5})
    assert "Paris" in (answer.response or "")


def test_an_answer_follows_the_schema_of_a_model(client: ollama.Client) -> None:
    answer = client.chat(NAME, QUESTION, format=City.model_json_schema(), options={"num_predict": 60})
    assert City.model_validate_json(answer.message.content or "").name


def test_a_tool_is_a_function_whose_result_is_given_back(client: ollama.Client) -> None:
    def add(a: int, b: int) -> int:
        """Adds.

        Args:
            a: the first
            b: the second
        """
        return a + b

    called: Any = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]}
    messages = [{"role": "user", "content": "1 + 2?"}, called, {"role": "tool", "content": "3", "tool_name": "add"}]
    answer = client.chat(NAME, messages, tools=[add], options={"num_predict": 8})
    assert answer.message.role == "assistant"


def test_models_are_listed_and_shown_as_they_are(client: ollama.Client) -> None:
    listed = {model.model: model for model in client.list().models}
    assert {NAME, EMBEDDING} <= listed.keys()
    details = listed[NAME].details
    assert details is not None
    assert (details.family, details.parameter_size) == ("llama", "134.5M")
    assert (listed[NAME].size or 0) > 1 << 20
    shown = client.show(NAME)
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 2048
    assert [model.name for model in client.ps().models] == [NAME, EMBEDDING]


def test_texts_are_embedded(client: ollama.Client) -> None:
    (vector,) = client.embed(EMBEDDING, "A text.").embeddings
    assert sum(number * number for number in vector) == pytest.approx(1, abs=1e-4)


def test_many_are_asked_at_once(server: ServerProcess) -> None:
    async def ask() -> list[ollama.GenerateResponse]:
        async with ollama.AsyncClient(f"http://127.0.0.1:{server.port}") as client:
            options = {"num_predict": 4}
            asked = (client.generate(NAME, QUESTION[0]["content"], options=options) for _ in range(3))
            answers: list[ollama.GenerateResponse] = await asyncio.gather(*asked)
            return answers

    assert len({answer.response for answer in asyncio.run(ask())}) == 1
