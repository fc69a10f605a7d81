"""Chat completions over a fake engine: shapes against the SDK's own types, stream against non-stream."""

import json
from itertools import chain
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from stentor.server.config.models import LogprobsMode
from stentor.tests.fakes import ANSWER, EOS, FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, HELLO, chunks_of, in_memory

pytestmark = pytest.mark.anyio


async def post(engine: FakeEngine, **body: Any) -> Any:
    async with in_memory(fake_state(engine)) as client:
        response = await client.post(CHAT, json={"messages": HELLO, **body})
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 12},
        {"max_tokens": 12, "n": 3, "seed": 5},
        {"max_tokens": 12, "logprobs": True, "top_logprobs": 3},
        {"max_tokens": 12, "logprobs": True, "return_token_ids": True, "prompt_logprobs": 2},
        {"max_tokens": 12, "logprobs": True, "logprob_token_ids": [65, 66]},
        {"max_completion_tokens": 5, "max_tokens": 9, "stop": ["zzz"]},
    ],
)
async def test_every_response_is_valid_to_the_sdk_strictly(body: dict[str, Any]) -> None:
    response = await post(FakeEngine(), **body)
    completion = ChatCompletion.model_validate_json(response.content, strict=True)
    assert [choice.index for choice in completion.choices] == list(range(body.get("n", 1)))
    assert completion.id == f"chatcmpl-{response.headers['x-request-id']}"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 3},
        {"logprobs": True, "top_logprobs": 2},
        {"return_token_ids": True},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)
async def test_every_chunk_is_valid_to_the_sdk_strictly(body: dict[str, Any]) -> None:
    response = await post(FakeEngine(), max_tokens=9, stream=True, **body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    for chunk in chunks_of(response.text):
        ChatCompletionChunk.model_validate_json(json.dumps(chunk), strict=True)


@pytest.mark.parametrize("burst", [1, 3, 7])
@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 40},
        {"max_tokens": 40, "stop": ["says", "wörld,"]},
        {"max_tokens": 40, "stop": "wör", "include_stop_str_in_output": True},
        {"max_tokens": 17, "n": 2, "logprobs": True, "top_logprobs": 1, "return_token_ids": True},
        {"max_tokens": 17, "logprobs": True, "logprob_token_ids": [*range(65, 105)], "return_token_ids": True},
        {"max_tokens": 40, "stop_token_ids": [ord(",")]},
    ],
)
async def test_a_stream_says_what_the_whole_response_says(body: dict[str, Any], burst: int) -> None:
    engine = FakeEngine()
    engine.burst = burst
    whole = (await post(engine, **body)).json()
    chunks = chunks_of((await post(engine, **body, stream=True, stream_options={"include_usage": True})).text)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"].get("content", "") for part in mine) == choice["message"]["content"]
        endings = [part for part in mine if part["finish_reason"] is not None]
        assert [part["finish_reason"] for part in endings] == [choice["finish_reason"]]
        assert endings[0]["stop_reason"] == choice["stop_reason"]
        assert mine[-1] is endings[0]
        if choice["logprobs"]:
            parts = [part["logprobs"]["content"] for part in mine if part["logprobs"]]
            assert list(chain(*parts)) == choice["logprobs"]["content"]
            assert list(chain(*(part.get("token_ids", []) for part in mine))) == choice["token_ids"]


async def test_a_stop_string_ends_the_text_before_it_and_is_the_stop_reason() -> None:
    engine = FakeEngine()
    choice = (await post(engine, max_tokens=60, stop=[" wör", "never"])).json()["choices"][0]
    assert choice["message"]["content"] == "Héllo"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", " wör")
    assert engine.live == 0


async def test_the_models_eos_ends_the_text_unless_it_is_ignored() -> None:
    ended = (await post(FakeEngine(answer=says("Yes.")), max_tokens=20)).json()
    assert ended["choices"][0]["message"]["content"] == "Yes."
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] == 5, "the EOS was delivered too"
    ignored = FakeEngine(answer=says("Yes."))
    await post(ignored, max_tokens=20, ignore_eos=True)
    assert ignored.streams[0].params.eos_token_ids == ()


async def test_without_max_tokens_a_chat_may_fill_the_context() -> None:
    engine = FakeEngine(max_model_len=64, answer=says("ok"))
    usage = (await post(engine)).json()["usage"]
    assert engine.streams[0].params.max_tokens == 64 - usage["prompt_tokens"]


async def test_no_answer_has_more_tokens_than_the_operator_allows() -> None:
    engine = FakeEngine(max_model_len=64, answer=says("ok"))
    async with in_memory(fake_state(engine, most_tokens=5)) as client:
        for asked in ({}, {"max_tokens": 9}, {"max_tokens": 3}):
            await client.post(CHAT, json={"messages": HELLO, **asked})
    assert [stream.params.max_tokens for stream in engine.streams] == [5, 5, 3]


async def test_requests_beat_the_models_defaults_and_seeds_count_up_from_the_clients() -> None:
    engine = FakeEngine(answer=says("ok"))
    await post(engine, n=2, seed=-1, temperature=0, top_k=-1, priority=3, cache_salt="mine", logit_bias={"65": -2.5})
    params = engine.streams[0].params
    assert (params.temperature, params.top_k, params.logit_bias) == (0.0, 0, ((65, -2.5),))
    assert params.eos_token_ids == (EOS,)
    assert engine.submitted == [([2**64 - 1, 0], 3, "mine")]
    await post(engine, n=2)
    assert len(set(engine.submitted[1][0])) == 2


async def test_usage_names_cached_tokens_and_can_come_with_every_chunk() -> None:
    engine = FakeEngine()
    engine.cached_tokens = 16
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = chunks_of((await post(engine, max_tokens=4, stream=True, stream_options=options)).text)
    assert all(chunk["usage"]["prompt_tokens_details"] == {"cached_tokens": 16} for chunk in chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 4


async def test_usage_of_every_chunk_needs_include_usage_too() -> None:
    for options in ({"continuous_usage_stats": True}, {"include_usage": False, "continuous_usage_stats": True}):
        chunks = chunks_of((await post(FakeEngine(), max_tokens=4, stream=True, stream_options=options)).text)
        assert not any("usage" in chunk for chunk in chunks)


async def test_usage_is_null_until_the_last_chunk_and_absent_when_not_asked_for() -> None:
    asked = chunks_of(
        (await post(FakeEngine(), max_tokens=4, stream=True, stream_options={"include_usage": True})).text
    )
    assert [chunk["usage"] is None for chunk in asked] == [True] * (len(asked) - 1) + [False]
    plain = chunks_of((await post(FakeEngine(), max_tokens=4, stream=True)).text)
    assert not any("usage" in chunk for chunk in plain)


async def test_prompt_logprobs_come_in_vllms_shape() -> None:
    body = (await post(FakeEngine(), max_tokens=1, prompt_logprobs=1, return_token_ids=True)).json()
    entries, prompt = body["prompt_logprobs"], body["prompt_token_ids"]
    assert len(entries) == len(prompt) == body["usage"]["prompt_tokens"]
    assert entries[0] is None
    token = str(prompt[1])
    assert entries[1][token] == {"logprob": -0.25, "rank": 1, "decoded_token": chr(prompt[1])}


async def test_tokens_can_be_named_by_id_and_bytes_spell_split_characters() -> None:
    body = (await post(FakeEngine(), max_tokens=3, logprobs=True, top_logprobs=1)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert bytes(chain(*(entry["bytes"] for entry in content))).decode() == ANSWER[:2]
    body = (await post(FakeEngine(), max_tokens=1, logprobs=True, return_tokens_as_token_ids=True)).json()
    assert body["choices"][0]["logprobs"]["content"][0]["token"] == f"token_id:{ord('H')}"


async def test_named_tokens_stand_in_place_of_the_likeliest_alternatives_each_once() -> None:
    engine = FakeEngine()
    ids = [ord("z"), ord("H"), ord("a"), ord("z")]
    body = (await post(engine, max_tokens=2, logprobs=True, top_logprobs=1, logprob_token_ids=ids)).json()
    first, second = body["choices"][0]["logprobs"]["content"]
    shown = [(each["token"], each["logprob"]) for each in first["top_logprobs"]]
    assert shown == [("z", -61), ("H", -0.25), ("a", -48.5)]
    assert [each["token"] for each in second["top_logprobs"]] == [second["token"], "z", "H", "a"]
    assert second["top_logprobs"][0]["logprob"] == second["logprob"]
    params = engine.streams[0].params
    assert (params.logprobs, params.logprob_token_ids) == (3, (ord("z"), ord("H"), ord("a")))


async def test_continue_final_message_goes_on_where_the_message_ends() -> None:
    engine = FakeEngine(answer=says("ok"))
    messages = [*HELLO, {"role": "assistant", "content": "Well"}]
    await post(engine, messages=messages, continue_final_message=True, add_generation_prompt=False)
    await post(engine, messages=messages, continue_final_message=True)
    assert [bytes(stream.prompt).endswith(b"<assistant>Well") for stream in engine.streams] == [True, True]
    async with in_memory(fake_state(engine)) as client:
        both = {"messages": messages, "continue_final_message": True, "add_generation_prompt": True}
        refused = await client.post(CHAT, json=both)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "continue_final_message")


async def test_the_last_tokens_are_kept_when_the_prompt_is_to_be_truncated() -> None:
    engine = FakeEngine(max_model_len=64, answer=says("ok"))
    long = [{"role": "user", "content": "x" * 500}]
    await post(engine, messages=long, truncate_prompt_tokens=20, max_tokens=4)
    await post(engine, messages=long, truncate_prompt_tokens=-1, max_tokens=10)
    assert [len(stream.prompt) for stream in engine.streams] == [20, 54]
    assert bytes(engine.streams[0].prompt).endswith(b"x\n<assistant>")


async def test_the_first_tokens_are_kept_when_the_right_side_is_to_be_truncated() -> None:
    engine = FakeEngine(answer=says("ok"))
    await post(engine, messages=HELLO, truncate_prompt_tokens=6, truncation_side="right")
    assert bytes(engine.streams[0].prompt) == b"<user>"


async def test_fields_of_sglang_and_llama_cpp_have_the_effect_of_ours() -> None:
    engine = FakeEngine()
    answer = await post(engine, stop=ANSWER[2:4], no_stop_trim=True, repeat_penalty=1.5)
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER[:4]
    assert engine.streams[0].params.repetition_penalty == 1.5
    await post(engine, repeat_penalty=1.5, repetition_penalty=1.25)
    assert engine.streams[1].params.repetition_penalty == 1.25
    await post(engine, n_predict=3, thinking_budget_tokens=-1, typical_p=1, mirostat=0, top_n_sigma=-1, lora=[])
    await post(engine, n_predict=3, max_completion_tokens=2, t_max_predict_ms=0, adaptive_target=-1)
    assert [stream.params.max_tokens for stream in engine.streams[2:]] == [3, 2]
    assert len((await post(engine, n_cmpl=2)).json()["choices"]) == 2


@pytest.mark.parametrize(
    ("mode", "asked", "processed"),
    [
        ("raw_logprobs", None, False),
        ("raw_logprobs", True, True),
        ("processed_logprobs", None, True),
        ("processed_logprobs", False, False),
        ("raw_logits", None, False),
        ("processed_logits", None, True),
        ("processed_logits", False, False),
    ],
)
async def test_the_operator_says_whose_log_probabilities_are_told_unless_a_request_does(
    mode: LogprobsMode, asked: bool | None, processed: bool
) -> None:
    engine = FakeEngine()
    body = {"messages": HELLO, "logprobs": True, "max_tokens": 1, "post_sampling_probs": asked}
    async with in_memory(fake_state(engine, logprobs_mode=mode)) as client:
        assert (await client.post(CHAT, json=body)).status_code == 200
        assert (await client.post(CHAT, json={**body, "logprobs": False})).status_code == 200
    assert [stream.params.processed_logprobs for stream in engine.streams] == [processed, False]
    assert [stream.params.logits for stream in engine.streams] == [mode.endswith("logits") and asked is None, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"n_predict": 0},
        {"n_predict": 9999},
        {"mirostat": 2},
        {"typical_p": 0.5},
        {"top_n_sigma": 1.5},
        {"adaptive_target": 0.5},
        {"t_max_predict_ms": 20},
        {"grammar_lazy": True},
        {"lora": [{"id": 0}]},
        {"reasoning_format": "deepseek-legacy"},
        {"thinking_budget_tokens": -2},
    ],
)
async def test_what_is_not_served_of_llama_cpp_s_fields_is_named(fields: dict[str, Any]) -> None:
    async with in_memory(fake_state()) as client:
        refused = await client.post(CHAT, json={"messages": HELLO, **fields})
    assert refused.status_code == 400, refused.text
    assert [refused.json()["error"]["param"]] == list(fields)


async def test_content_parts_of_text_are_joined() -> None:
    engine = FakeEngine(answer=says("ok"))
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await post(engine, messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}])
    assert b"<user>one\ntwo\n" in bytes(engine.streams[0].prompt)


async def test_harmless_fields_are_ignored() -> None:
    await post(
        FakeEngine(answer=says("ok")),
        user="me",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=False,
        reasoning_effort="low",
        verbosity="low",
        prediction={"type": "content", "content": "x"},
        safety_identifier="s",
        prompt_cache_key="k",
        response_format={"type": "text"},
        modalities=["text"],
        tools=[],
        tool_choice="none",
        some_field_of_tomorrow=[1],
    )
