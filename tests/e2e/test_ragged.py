"""A real server whose steps gain a row 1 to 5 tokens: clients cannot tell it from one token a step."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.made_up import describe
from stentor.tests.e2e.processes import below
from stentor.tests.e2e.ragged_worker import token_of

RAGGED = "stentor.tests.e2e.ragged_server"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("ragged")
    with ServerProcess(describe(folder), RAGGED) as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0)


def expected(first: int, count: int) -> list[int]:
    return [token_of(first, index) for index in range(count)]


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def complete(client: openai.OpenAI, first: int, **fields: Any) -> Any:
    return client.completions.create(model="made-up", prompt=[first, 6, 7], **{"max_tokens": 40, **fields})


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 40])
def test_a_completion_has_exactly_the_tokens_that_it_may_have(client: openai.OpenAI, max_tokens: int) -> None:
    for first in range(5, 10):
        answer = complete(client, first, max_tokens=max_tokens)
        assert numbers(answer.choices[0].text) == expected(first, max_tokens)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == max_tokens


def test_a_stream_is_the_whole_and_some_of_its_steps_brought_several_tokens(client: openai.OpenAI) -> None:
    chunks = list(complete(client, 5, stream=True))
    pieces = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert numbers("".join(pieces)) == expected(5, 40)
    assert len([piece for piece in pieces if piece]) < 40


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", range(9, 17))
def test_a_stop_string_ends_the_text_wherever_in_a_step_it_comes(client: openai.OpenAI, at: int, stream: bool) -> None:
    """The string is of two tokens, which one step may bring or two."""
    tokens = expected(5, 40)
    stop = f"{tokens[at]} {tokens[at + 1]}"
    answer = complete(client, 5, stop=[stop], stream=stream)
    choices = [chunk.choices[0] for chunk in answer if chunk.choices] if stream else answer.choices
    assert numbers("".join(choice.text for choice in choices)) == tokens[:at]
    assert choices[-1].finish_reason == "stop"


@pytest.mark.parametrize("at", range(9, 17))
def test_a_stop_token_ends_the_text_wherever_in_a_step_it_comes(client: openai.OpenAI, at: int) -> None:
    tokens = expected(5, 40)
    answer = complete(client, 5, extra_body={"stop_token_ids": [tokens[at]], "return_token_ids": True})
    found = answer.choices[0].model_extra["token_ids"]
    assert found == tokens[: tokens.index(tokens[at]) + 1]
    assert answer.usage.completion_tokens == len(found)


def test_each_token_has_its_log_probability(client: openai.OpenAI) -> None:
    answer = complete(client, 5, logprobs=0)
    assert answer.choices[0].logprobs.token_logprobs == [-float(index) for index in range(40)]
    assert numbers(" ".join(answer.choices[0].logprobs.tokens)) == expected(5, 40)


def test_choices_of_one_prompt_come_whole(client: openai.OpenAI) -> None:
    answer = complete(client, 8, n=3)
    assert [numbers(choice.text) for choice in answer.choices] == [expected(8, 40)] * 3


@pytest.mark.proof
def test_a_stream_goes_on_when_its_worker_or_its_engine_is_killed(client: openai.OpenAI, server: ServerProcess) -> None:
    pieces: list[str] = []
    for chunk in complete(client, 5, max_tokens=1200, stream=True):
        if chunk.choices:
            pieces.append(chunk.choices[0].text)
        if len(pieces) == 20:
            os.kill(below(server.pid, "worker")[0], signal.SIGKILL)
        if len(pieces) == 60:
            os.kill(below(server.pid, "engine")[0], signal.SIGKILL)
    assert numbers("".join(pieces)) == expected(5, 1200)
