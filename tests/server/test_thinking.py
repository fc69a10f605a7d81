"""Requests for thinking, from the client's words to the prompt, the engine and the response."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from stentor.protocols.ipc.actors import Thinking
from stentor.server.parsing.output import OutputFormat, settle_output
from stentor.server.text.pool import TokenizerPool
from stentor.tests.fakes import EOS, FakeEngine, byte_tokenizer, fake_state, says
from stentor.tests.server.harness import CHAT, HELLO, chunks_of, in_memory

pytestmark = pytest.mark.anyio

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
    "{% if reasoning_effort %}({{ reasoning_effort }}){% endif %}"
    "{% if enable_thinking is defined %}{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}"
)
OUTPUT = settle_output("auto", "auto", TEMPLATE, "")


class Asked:
    """One request, what the engine was asked, and what came of it."""

    def __init__(self, prompt: str, thinking: Thinking | None, response: Any, metrics: str) -> None:
        self.prompt = prompt
        self.thinking = thinking
        self.response = response
        self.metrics = metrics

    @property
    def message(self) -> Any:
        return self.response.json()["choices"][0]["message"]

    @property
    def reasoning_tokens(self) -> int:
        details = self.response.json()["usage"]["completion_tokens_details"]
        return int(details["reasoning_tokens"])


async def ask(answer: str, output: OutputFormat = OUTPUT, **body: Any) -> Asked:
    prompts: list[str] = []

    def reply(prompt: list[int], index: int) -> list[int]:
        prompts.append(bytes(token for token in prompt if token < EOS).decode())
        return list(says(answer)(prompt, index))

    engine = FakeEngine(answer=reply)
    pool = TokenizerPool(byte_tokenizer(TEMPLATE))
    state = fake_state(engine, pool=pool, output=output)
    async with in_memory(state) as client:
        response = await client.post(CHAT, json={"messages": HELLO, "max_tokens": 100, **body})
    assert response.status_code == 200, response.text
    return Asked(prompts[0], engine.thinking[-1], response, state.metrics.render().decode())


async def test_reasoning_is_apart_from_content_and_counted() -> None:
    asked = await ask("<think>\nHm, é.\n</think>\n\nHi")
    ChatCompletion.model_validate_json(asked.response.content, strict=True)
    assert asked.message["content"] == "Hi"
    assert asked.message["reasoning"] == asked.message["reasoning_content"] == "Hm, é."
    assert asked.reasoning_tokens == len("\nHm, é.\n</think>".encode())
    assert asked.prompt.endswith("<assistant>")
    tokens = asked.response.json()["usage"]["completion_tokens"]
    assert tokens == len("<think>\nHm, é.\n</think>\n\nHi".encode()) + 1
    assert f'stentor:generation_tokens_total{{model_name="fake/model"}} {tokens}.0' in asked.metrics


@pytest.mark.parametrize(
    ("fields", "tail"),
    [
        ({"reasoning_effort": "none"}, "<assistant><think>\n\n</think>\n\n"),
        ({"reasoning_effort": "low"}, "<assistant>(low)<think>\n"),
        ({"reasoning": {"effort": "low"}}, "<assistant>(low)<think>\n"),
        ({"reasoning": {"enabled": True}}, "<assistant>(medium)<think>\n"),
        ({"reasoning": {"enabled": False}}, "<assistant><think>\n\n</think>\n\n"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<assistant><think>\n\n</think>\n\n"),
        ({"chat_template_kwargs": {"thinking": True}}, "<assistant><think>\n"),
    ],
)
async def test_the_prompt_opens_or_closes_thinking_and_the_answer_is_read_accordingly(
    fields: dict[str, Any], tail: str
) -> None:
    asked = await ask("So</think>Hi", **fields)
    assert asked.prompt.endswith(tail)
    opened = tail.endswith("<think>\n")
    assert asked.message["content"] == ("Hi" if opened else "So</think>Hi")
    assert asked.message.get("reasoning") == ("So" if opened else None)


async def test_reasoning_that_nobody_wants_to_see_still_counts() -> None:
    asked = await ask("<think>Hm</think>Hi", include_reasoning=False)
    assert asked.message["content"] == "Hi"
    assert not asked.message.get("reasoning")
    assert asked.reasoning_tokens == len("Hm</think>")


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget_tokens"])
async def test_a_thinking_budget_reaches_the_engine(name: str) -> None:
    body: dict[str, Any] = {name: 7}
    asked = await ask("<think>Hm</think>Hi", **body)
    assert asked.thinking == Thinking(7, list(b"<think>"), list(b"</think>"), False)
    opened = await ask("Hm</think>Hi", thinking_token_budget=7, reasoning_effort="high")
    assert opened.thinking == Thinking(7, list(b"<think>"), list(b"</think>"), True)


async def test_an_effort_has_the_same_effect_where_a_conversation_is_tokenized() -> None:
    async with in_memory(fake_state(pool=TokenizerPool(byte_tokenizer(TEMPLATE)), output=OUTPUT)) as client:
        told = await client.post("/tokenize", json={"messages": HELLO, "reasoning_effort": "low"})
    assert bytes(told.json()["tokens"]).decode().endswith("<assistant>(low)<think>\n")


async def test_reasoning_may_stay_in_the_content() -> None:
    bodies: list[dict[str, Any]] = [{"separate_reasoning": False}, {"reasoning_format": "none"}]
    for body in bodies:  # SGLang's and llama.cpp's
        asked = await ask("<think>Hm</think>Hi", **body)
        assert asked.message["content"] == "<think>Hm</think>Hi"
        assert "reasoning" not in asked.message


async def test_openrouter_s_reasoning_says_how_much_and_whether_it_is_seen() -> None:
    asked = await ask("<think>Hm</think>Hi", reasoning={"max_tokens": 7, "exclude": True})
    assert asked.thinking == Thinking(7, list(b"<think>"), list(b"</think>"), False)
    assert "reasoning" not in asked.message


async def test_without_a_format_everything_is_content() -> None:
    asked = await ask("<think>Hm</think>Hi", OutputFormat())
    assert asked.message["content"] == "<think>Hm</think>Hi"


@pytest.mark.parametrize("stop", [[], ["</thi"], ["H"]])
async def test_a_stream_says_what_the_whole_says(stop: list[str]) -> None:
    text = "<think>Hm </b>\n</think>\n\n<think>Hi"
    whole = (await ask(text, stop=stop)).message
    streamed = await ask(text, stop=stop, stream=True)
    reported = {"content": "", "reasoning": ""}
    for chunk in chunks_of(streamed.response.text):
        for choice in chunk["choices"]:
            for field in reported:
                reported[field] += choice["delta"].get(field) or ""
    assert reported == {field: whole.get(field) or "" for field in reported}
