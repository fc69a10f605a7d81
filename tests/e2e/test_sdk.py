"""The main job through the OpenAI SDK against the real server, engine, worker and model."""

import concurrent.futures
import math
from typing import Any

import httpx
import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import NAME

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    model, *_ = client.models.list().data
    assert model.id == NAME
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat_answers_the_question_and_stops_by_itself(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=NAME, messages=QUESTION, temperature=0)
    choice = answer.choices[0]
    assert choice.message.content is not None
    assert "Paris" in choice.message.content
    assert "<|im_end|>" not in choice.message.content
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_equals_the_answer_in_one_piece(client: openai.OpenAI) -> None:
    options: Any = {"model": NAME, "messages": QUESTION, "temperature": 0.8, "seed": 7, "max_tokens": 40, "n": 2}
    whole = client.chat.completions.create(**options)
    texts, usage = ["", ""], None
    reasons: list[list[str]] = [[], []]
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index].append(choice.finish_reason)
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [[choice.finish_reason] for choice in whole.choices]
    assert texts[0] != texts[1]
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_a_completion_continues_text_ids_and_batches_of_either(client: openai.OpenAI, server: ServerProcess) -> None:
    text = "The quick brown fox"
    ids = httpx.post(f"http://127.0.0.1:{server.port}/tokenize", json={"model": NAME, "prompt": text}).json()["tokens"]
    options: Any = {"model": NAME, "max_tokens": 8, "temperature": 0}
    from_text = client.completions.create(prompt=text, **options).choices[0].text
    assert client.completions.create(prompt=ids, **options).choices[0].text == from_text
    both = client.completions.create(prompt=[text, "1 2 3 4"], **options).choices
    assert [choice.index for choice in both] == [0, 1]
    assert both[0].text == from_text
    assert client.completions.create(prompt=[ids, ids], **options).choices[1].text == from_text
    echoed = client.completions.create(prompt=text, echo=True, logprobs=1, **options).choices[0]
    assert echoed.text == text + from_text
    assert echoed.logprobs is not None
    assert echoed.logprobs.token_logprobs is not None
    assert echoed.logprobs.token_logprobs[0] is None
    assert len(echoed.logprobs.token_logprobs) == len(ids) + 8


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="1 2 3 4 5", max_tokens=40, temperature=0, stop=[" 9"])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].text.endswith("8")


def test_the_same_prompt_again_is_found_in_the_prefix_cache(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Count the letters of this sentence, please. " * 20}]
    first, second = (
        client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=8) for _ in range(2)
    )
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= second.usage.prompt_tokens - 33
    assert first.choices[0].message.content == second.choices[0].message.content


def test_sixteen_clients_at_once_each_get_their_own_answer(client: openai.OpenAI) -> None:
    def ask(number: int) -> str:
        answer = client.completions.create(
            model=NAME, prompt=f"{number} {number} {number} {number}", max_tokens=6, temperature=0
        )
        return answer.choices[0].text

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(10, 26)))
    for number, text in zip(range(10, 26), answers, strict=True):
        assert str(number) in text


def test_a_prompt_longer_than_the_context_is_refused_and_the_server_still_serves(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(model=NAME, prompt=[100] * 3000, max_tokens=1)
    assert refusal.value.code == "context_length_exceeded"
    assert client.completions.create(model=NAME, prompt="a", max_tokens=1).choices


def test_a_question_is_answered_by_its_labels_probabilities(client: openai.OpenAI, server: ServerProcess) -> None:
    text = "The colour is red. " * 30
    values: Any = [{"value": "red", "description": "like a rose"}, {"value": False}]
    choice: Any = {"type": "choice", "name": "colour", "instructions": "Which?", "choices": values}
    decision = client.decisions.create(
        model=NAME, input=text, questions=[{"type": "predicate", "instructions": "Is it red?"}, choice]
    )
    predicate, answer = decision.answers
    assert predicate.type == "predicate"
    assert 0 < predicate.probability < 1
    # the second question finds the text in the prefix cache
    assert decision.usage.input_tokens_details.cached_tokens > decision.usage.input_tokens / 3

    asked = f'{text}\n\nWhich?\nA: "red": like a rose\nB: false\n'
    asked += "Answer with the letter of one option, and nothing else."
    ids = [
        httpx.post(f"http://127.0.0.1:{server.port}/tokenize", json={"prompt": label}).json()["tokens"][0]
        for label in ("A", " A", "B", " B")
    ]
    said = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": asked}],
        max_tokens=1,
        logprobs=True,
        extra_body={"logprob_token_ids": ids},
    )
    assert said.choices[0].logprobs is not None
    assert said.choices[0].logprobs.content is not None
    found = {each.token: math.exp(each.logprob) for each in said.choices[0].logprobs.content[0].top_logprobs}
    red, other = found["A"] + found[" A"], found["B"] + found[" B"]
    assert answer.type == "choice"
    assert answer.name == "colour"
    assert [each.value for each in answer.probabilities] == ["red", False]
    assert answer.probabilities[0].probability == pytest.approx(red / (red + other), abs=1e-3)
    assert answer.confidence == pytest.approx(max(red, other), abs=1e-3)
