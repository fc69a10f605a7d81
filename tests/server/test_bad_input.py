"""Whatever a client gets wrong is a 4xx that names the field; then the server still serves."""

import gzip
import json
from functools import cache
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from stentor.protocols.common.limits import Limits
from stentor.server.app.state import ServerState
from stentor.tests.fakes import VOCAB_SIZE, FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory, on_loopback

pytestmark = [pytest.mark.anyio, pytest.mark.sampled]

CONTEXT = 128

SHARED: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": "2"}, "n"),
    ({"n": True}, "n"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.01}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
    ({"min_tokens": 10**6}, "min_tokens"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "x" * 2000}, "stop"),
    ({"stop": 7}, "stop"),
    ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [VOCAB_SIZE]}, "allowed_token_ids"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"one": 1}}, "logit_bias"),
    ({"logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"²": 1}}, "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": CONTEXT + 1}, "truncate_prompt_tokens"),
    ({"priority": 2**63}, "priority"),
    ({"priority": -(2**63) - 1}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": "json"}, "structured_outputs"),
    ({"guided_regex": 5}, "guided_regex"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"vllm_xargs": {"ngram_size": 1}}, "vllm_xargs.ngram_size"),
    ({"vllm_xargs": {"ngram_size": "9"}}, "vllm_xargs.ngram_size"),
    ({"vllm_xargs": {"ngram_size": 9, "window_size": 1025}}, "vllm_xargs.window_size"),
    ({"vllm_xargs": {"ngram_size": 9, "whitelist_token_ids": [2**30]}}, "vllm_xargs.whitelist_token_ids"),
    ({"vllm_xargs": {"diffusion_max_steps": 9}}, "vllm_xargs"),
    ({"use_beam_search": 5}, "use_beam_search"),
    ({"repetition_detection": {"max_pattern_size": 4, "min_count": 1}}, "repetition_detection.min_count"),
    ({"repetition_detection": {"min_pattern_size": 4, "min_count": 2}}, "repetition_detection.min_pattern_size"),
    ({"repetition_detection": {"max_pattern_size": 256, "min_count": 17}}, "repetition_detection.min_count"),
    ({"repetition_detection": {"max_pattern_size": 257, "min_count": 2}}, "repetition_detection.max_pattern_size"),
    ({"repetition_detection": {"size": 4}}, "repetition_detection"),
    ({"model": 5}, "model"),
]

F = {"type": "function", "function": {"name": "f"}}

ONLY_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "<|user|>", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
    ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "x", "name": 1}]}, "messages[0].name"),
    ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ({"messages": [{"role": "assistant", "refusal": 5}]}, "messages[0].refusal"),
    ({"messages": [{"role": "assistant", "function_call": "f"}]}, "messages[0].function_call"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}]},
        "messages[0].tool_calls[0]",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]},
        "messages[0].tool_calls[0]",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "assistant", "content": 5, "reasoning": "x"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x" * CONTEXT}]}, "messages"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 10**9, "max_tokens": 1}, "max_completion_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"tools": "f"}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [F], "tool_choice": "required", "response_format": 5}, "response_format"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
    ({"tools": [F], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"functions": [{}]}, "functions[0].name"),
    ({"functions": [{"name": "f"}], "tools": [F]}, "functions"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"include_reasoning": 1}, "include_reasoning"),
    ({"thinking_token_budget": -1}, "thinking_token_budget"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": False}, "continue_final_message"),
    ({"chat_template": "{% for %}"}, "chat_template"),
    ({"chat_template": "{{ raise_exception('no') }}"}, "chat_template"),
    ({"chat_template": 3}, "chat_template"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
    ({"documents": ["text"]}, "documents[0]"),
]

ONLY_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": ["a", [1]]}, "prompt[1]"),
    ({"prompt": [VOCAB_SIZE]}, "prompt"),
    ({"prompt": [1, -1]}, "prompt[1]"),
    ({"prompt": [[1], [VOCAB_SIZE]]}, "prompt"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": "x" * CONTEXT}, "prompt"),
    ({"prompt": ["a"] * 600, "n": 2}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"best_of": 3}, "best_of"),
    ({"suffix": "end"}, "suffix"),
]


@cache
def shared() -> tuple[FakeEngine, ServerState]:
    """The server of all bad requests: none of them changes anything about it."""
    engine = FakeEngine(max_model_len=CONTEXT)
    return engine, fake_state(engine)


async def refusal(path: str, body: dict[str, Any] | bytes, status: int = 400) -> dict[str, Any]:
    """The error for ``body``, after which the same server serves a good request."""
    engine, state = shared()
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with in_memory(state) as client:
        reached = len(engine.submitted)
        response = await client.post(path, content=content)
        assert len(engine.submitted) == reached, "nothing reached the engine"
        good = await client.post(CHAT, json={"messages": HELLO, "max_tokens": 1})
        assert len(engine.submitted) == reached + 1
    assert good.status_code == 200
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    lengths = {"n_prompt_tokens", "n_ctx"} & error.keys()
    assert error.keys() - lengths == {"message", "type", "param", "code"}
    assert not lengths or error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert "/" not in error["message"].replace("fake/model", ""), "no paths"
    return error


@pytest.mark.parametrize(("fields", "param"), SHARED + ONLY_CHAT, ids=str)
async def test_chat_refuses_and_names_the_field(fields: dict[str, Any], param: str) -> None:
    error = await refusal(CHAT, {"messages": HELLO, **fields})
    assert error["param"] == param
    assert param.split(".")[-1].split("[")[0] in error["message"] or fields.keys() & {"chat_template", "messages"}


@pytest.mark.parametrize(("fields", "param"), SHARED + ONLY_COMPLETIONS, ids=str)
async def test_completions_refuse_and_name_the_field(fields: dict[str, Any], param: str) -> None:
    if fields == {"max_tokens": 0}:
        fields = {"max_tokens": 0, "echo": False}
    assert (await refusal(COMPLETIONS, {"prompt": "hi", **fields}))["param"] == param


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty"])
async def test_not_a_number_is_laid_to_its_field(field: str, value: str) -> None:
    body = f'{{"messages":[{{"role":"user","content":"NaN: no"}}],"{field}": {value}}}'.encode()
    assert (await refusal(CHAT, body))["param"] == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b'"text"',
        b"null",
        b'{"messages": [}',
        b'{"messages": []} trailing',
        b'{"messages": [{"role":"user","content":"\xff\xfe"}]}',
        b'{"unknown": "\xff"}',
        b'{"messages": [{"role":"user","content":"\\ud800"}]}',
        b'{"messages": [{"role":"user","content":"\\udc00 x"}]}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"unknown": ' + b'{"a":' * 100_000,
        b"\x00\x01\x02",
    ],
    ids=lambda body: repr(body[:40]),
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_bytes_that_are_no_json_object_are_refused(path: str, body: bytes) -> None:
    await refusal(path, body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"messages": [{"role":"user","content":"\xff\xfe"}]}', "messages[0].content"),
        (b'{"messages": [{"role":"user","content":"\\ud800"}]}', "messages[0].content"),
        (b'{"messages": [{"role":"user","content":"x"}], "model":"\\ud83d"}', "model"),
        (b'{"messages": [{"role":"user","content":"\\ud83d\\ude00"}], "stop":"\\ude00"}', "stop"),
        (b'{"n": 01}', "n"),
        (b'{"stop": ["a", .5]}', "stop[1]"),
        (b'{"logit_bias": {"5": NaN}}', "logit_bias"),
        (b'{"stream_options": {"include_usage": nope}}', "stream_options.include_usage"),
    ],
)
async def test_bytes_that_cannot_be_decoded_are_laid_to_their_field(body: bytes, param: str) -> None:
    error = await refusal(CHAT, body)
    assert error["param"] == param
    assert f"`{param}`" in error["message"]


async def test_an_encoded_body_is_told_apart_from_a_wrong_one() -> None:
    async with in_memory(fake_state()) as client:
        body = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
        response = await client.post(CHAT, content=gzip.compress(body), headers={"content-encoding": "gzip"})
        assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_encoding")
        assert "`Content-Encoding`" in response.json()["error"]["message"]
        assert (await client.post(CHAT, content=body, headers={"content-encoding": "identity"})).status_code == 200


async def test_an_unknown_model_is_not_found_by_its_own_code() -> None:
    for path, body in ((CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "a"}), ("/tokenize", {"prompt": "a"})):
        error = await refusal(path, {**body, "model": "gpt-12"}, status=404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert "gpt-12" in error["message"]


async def test_a_prompt_beyond_the_context_is_told_with_the_lengths() -> None:
    error = await refusal(COMPLETIONS, {"prompt": [5] * 200})
    assert error["code"] == "context_length_exceeded"
    assert "200" in error["message"]
    assert str(CONTEXT) in error["message"]
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (200, CONTEXT)
    error = await refusal(COMPLETIONS, {"prompt": [5] * 100, "max_tokens": 29})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")


async def test_a_body_beyond_the_bound_is_refused_by_its_declared_and_by_its_real_length() -> None:
    async def endless() -> Any:
        for _ in range(40):
            yield b" " * 2**20

    engine = FakeEngine()
    async with in_memory(fake_state(engine)) as client:
        declared = await client.post(CHAT, content=b" " * (Limits().max_body_bytes + 1))
        streamed = await client.post(CHAT, content=endless())
    for response in (declared, streamed):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


async def test_the_sdk_sees_a_bad_request_with_its_param() -> None:
    async with (
        on_loopback(fake_state(FakeEngine())) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        with pytest.raises(BadRequestError) as caught:
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x"}], n=0)
    assert caught.value.param == "n"
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO, "top_p": 0}),
        (COMPLETIONS, {"prompt": "a", "top_p": 0}),
        ("/v1/responses", {"input": "a", "top_p": 0}),
        ("/v1/messages", {"model": "fake", "max_tokens": 4, "messages": HELLO, "top_p": 0}),
        ("/api/chat", {"model": "fake", "messages": HELLO, "options": {"top_p": 0}}),
        ("/completion", {"prompt": "a", "top_p": 0}),
    ],
)
async def test_the_least_top_p_keeps_one_token_whatever_the_protocol(path: str, body: dict[str, Any]) -> None:
    engine, state = shared()
    async with in_memory(state) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert 0 < engine.streams[-1].params.top_p < 1e-5
