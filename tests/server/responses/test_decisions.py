"""``/v1/decisions`` over a fake engine, with OpenAI's own types."""

import math
from typing import Any

import anyio
import msgspec
import pytest
from openai.types import Decision

from stentor.server.config.config import DEFAULTS
from stentor.server.parsing.output import settle_output
from stentor.server.text.pool import TokenizerPool
from stentor.tests.fakes import TEMPLATE, FakeEngine, byte_tokenizer, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.test_infill import with_tokens

pytestmark = pytest.mark.anyio

PATH = "/v1/decisions"
IS_IT: dict[str, Any] = {"type": "predicate", "instructions": "Is it?"}
WHICH: dict[str, Any] = {
    "type": "choice",
    "name": "team",
    "instructions": "Which?",
    "choices": [{"value": "yes", "description": "as usual"}, {"value": True}, {"value": False}],
}
HOW: dict[str, Any] = {"type": "score", "instructions": "How bad?", "levels": [{"label": "good"}, {"label": "bad"}]}


def half_of_ids(*labels: str) -> list[float]:
    """Of the fake engine, in which the log-probability of a token that is not drawn is half of its id below 0."""
    weights = [math.exp(-ord(label) / 2) for label in labels]
    return [weight / sum(weights) for weight in weights]


def picture(**named: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_image", **named}]}


async def ask(engine: FakeEngine, status: int = 200, **body: Any) -> Any:
    wanted = {"model": "fake/model", "input": "It broke.", "questions": [IS_IT], **body}
    async with in_memory(fake_state(engine)) as client:
        response = await client.post(PATH, json=wanted)
    assert response.status_code == status, response.text
    return response.json()


async def test_each_question_is_answered_by_the_probabilities_of_its_options() -> None:
    engine = FakeEngine(answer=says("other"))
    answer = await ask(engine, questions=[IS_IT, WHICH, HOW])
    told = Decision.model_validate(answer, strict=True)
    yes, _ = half_of_ids("A", "B")
    assert answer["answers"][0] == {"type": "predicate", "name": None, "probability": pytest.approx(yes)}
    choice, score = answer["answers"][1:]
    assert (choice["name"], choice["choice"]) == ("team", "yes")
    assert [each["value"] for each in choice["probabilities"]] == ["yes", True, False]
    assert [each["probability"] for each in choice["probabilities"]] == pytest.approx(half_of_ids("A", "B", "C"))
    assert choice["confidence"] == pytest.approx(math.exp(-ord("A") / 2)), "among all tokens"
    good, bad = half_of_ids("0", "1")
    assert score["score"] == pytest.approx(bad)
    assert score["probabilities"] == [
        {"value": 0, "label": "good", "probability": pytest.approx(good)},
        {"value": 1, "label": "bad", "probability": pytest.approx(bad)},
    ]
    prompts = [bytes(stream.prompt).decode() for stream in engine.streams]
    assert prompts[1].startswith('<user>It broke.\n\nWhich?\nA: "yes": as usual\nB: true\nC: false\nAnswer with')
    assert [stream.params.max_tokens for stream in engine.streams] == [1, 1, 1]
    assert told.usage.input_tokens == sum(map(len, prompts))
    assert (told.usage.output_tokens, told.usage.total_tokens) == (3, told.usage.input_tokens + 3)


async def test_the_likeliest_label_is_the_choice() -> None:
    answer = await ask(FakeEngine(answer=says("B")), questions=[WHICH])
    assert answer["answers"][0]["choice"] is True
    assert answer["answers"][0]["confidence"] == pytest.approx(math.exp(-0.25))


async def test_the_input_may_be_messages_calls_and_their_outputs_and_json() -> None:
    engine = FakeEngine(answer=says("A"))
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "rain"}]}
    said = {"role": "user", "content": [{"type": "input_json", "data": {"a": [1]}}]}
    asked = {**IS_IT, "instructions": [{"type": "input_text", "text": "Is it"}, {"type": "input_json", "data": {}}]}
    await ask(engine, input=[{"role": "developer", "content": "Be fair."}, said, call, output], questions=[asked])
    prompt = bytes(engine.streams[0].prompt).decode()
    assert "Be fair." in prompt
    assert '<user>{"a":[1]}' in prompt
    assert "rain" in prompt
    assert "<user>Is it\n{}\nA: yes\nB: no\nAnswer with the letter of one option" in prompt


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": [{**IS_IT, "type": "other"}]}, "questions[0].type"),
        ({"questions": [{**HOW, "levels": [{"label": "one"}]}]}, "questions[0].levels"),
        ({"questions": [{**HOW, "levels": [{"label": str(at)} for at in range(27)]}]}, "questions[0].levels"),
        ({"questions": [{**WHICH, "choices": [{"value": "a"}, {"value": "a"}]}]}, "questions[0].choices"),
        ({"questions": [IS_IT] * 1025}, "questions"),
        ({"input": [picture(file_id="f")]}, "input[0].content[0].image_url"),
        ({"input": [picture(image_url="data:,")]}, "input[0].content[0]"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": "x" * 600}, "input"),
        ({"model": "other"}, "model"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_computed(body: dict[str, Any], param: str) -> None:
    engine = FakeEngine()
    error = (await ask(engine, 404 if "model" in body else 400, **body))["error"]
    assert error["param"] == param
    assert not engine.streams


@pytest.mark.parametrize(
    ("output", "template", "begins"),
    [
        ("gpt_oss", TEMPLATE, "<assistant><|channel|>final<|message|>"),
        ("deepseek_r1", TEMPLATE + "{{ '<think>\\n' }}", "<assistant><think>\n\n</think>\n\n"),
        ("qwen3", TEMPLATE, "<assistant>"),
    ],
)
async def test_the_prompt_reaches_to_the_first_word_of_an_answer(output: str, template: str, begins: str) -> None:
    engine = FakeEngine(answer=says("A"))
    pool = TokenizerPool(byte_tokenizer(template))
    async with in_memory(fake_state(engine, output=settle_output(output, "none", "", ""), pool=pool)) as client:
        answer = await client.post(PATH, json={"input": "It broke.", "questions": [IS_IT]})
    assert answer.status_code == 200, answer.text
    assert bytes(engine.streams[0].prompt).decode().endswith(f"and nothing else.\n{begins}")


async def test_more_options_than_letters_are_labelled_by_pairs_that_are_single_tokens() -> None:
    many = {**WHICH, "choices": [{"value": str(at)} for at in range(28)]}
    engine = FakeEngine(answer=says("A"), max_model_len=1024)
    pool = TokenizerPool(with_tokens("AC", "BA"))
    async with in_memory(fake_state(engine, pool=pool, vocab_size=300)) as client:
        answer = await client.post(PATH, json={"input": "It broke.", "questions": [many]})
        over = {**many, "choices": [*many["choices"], {"value": "28"}]}
        refused = await client.post(PATH, json={"input": "It broke.", "questions": [over]})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["answers"][0]["probabilities"]) == 28
    prompt = bytes(one for one in engine.streams[0].prompt if one < 256).decode()
    assert 'Z: "25"\n: "26"\n: "27"\nAnswer' in prompt, "the pairs are tokens beyond the bytes"
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "questions[0].choices")


async def test_the_input_and_its_pictures_count_once_for_each_question() -> None:
    engine = FakeEngine()
    two = {"role": "user", "content": [{"type": "input_image", "image_url": "https://a.example/b"}] * 2}
    over = (await ask(engine, 400, input=[two], questions=[IS_IT] * 33))["error"]
    assert (over["param"], "66 times" in over["message"]) == ("input", True)
    limits = msgspec.structs.replace(DEFAULTS.limits.request, max_prompt_chars=4000)
    async with in_memory(fake_state(engine, limits=limits)) as client:
        body = {"input": "x" * 300, "questions": [IS_IT] * 20}
        refused = await client.post(PATH, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert not engine.streams


async def test_the_first_question_puts_the_input_into_the_cache_for_the_others() -> None:
    engine = FakeEngine(answer=says("A"))
    engine.gate.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: ask(engine, questions=[IS_IT, WHICH, HOW]))
        while not engine.streams:
            await anyio.sleep(0.01)
        await anyio.wait_all_tasks_blocked()
        assert len(engine.streams) == 1
        engine.gate.set()
    assert len(engine.streams) == 3
