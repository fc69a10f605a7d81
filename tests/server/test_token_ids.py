"""vLLM's endpoints of token ids over a fake engine: prompts without answers, answers without texts."""

from typing import Any

import pytest

from stentor.protocols.ipc.sampling import NoRepeat
from stentor.tests.fakes import EOS, FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, chunks_of, events_of, in_memory

pytestmark = pytest.mark.anyio

GENERATE = "/inference/v1/generate"
PROMPT = "<user>hello\n<assistant>"


async def post(path: str, body: Any, engine: FakeEngine | None = None, status: int = 200) -> Any:
    async with in_memory(fake_state(engine or FakeEngine(answer=says("ok")))) as client:
        response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    return response


async def test_a_conversation_is_written_as_token_ids_and_generates_nothing() -> None:
    engine = FakeEngine()
    body = {"messages": HELLO, "request_id": "abc", "return_prompt_text": True}
    assert (await post(f"{CHAT}/render", body, engine)).json() == {
        "request_id": "abc",
        "token_ids": list(PROMPT.encode()),
        "sampling_params": {},
        "model": "fake/model",
        "stream": False,
        "stream_options": None,
        "cache_salt": None,
        "priority": 0,
        "features": None,
        "kv_transfer_params": None,
        "prompt_text": PROMPT,
    }
    assert not engine.streams
    assert "prompt_text" not in (await post(f"{CHAT}/render", {"messages": HELLO})).json()


async def test_a_rendered_request_is_answered_as_the_request_it_was_made_from() -> None:
    body = {
        **{"messages": HELLO, "temperature": 0.5, "seed": 7, "stop": ["l"], "max_completion_tokens": 9, "n": 2},
        **{"logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1.5}, "priority": 3, "cache_salt": "s"},
        **{"response_format": {"type": "json_object"}, "vllm_xargs": {"ngram_size": 3, "whitelist_token_ids": [9, 7]}},
    }
    direct, sent_on = FakeEngine(), FakeEngine()
    answer = (await post(CHAT, body, direct)).json()
    rendered = (await post(f"{CHAT}/render", body)).json()
    tokens = (await post(GENERATE, rendered, sent_on)).json()
    assert sent_on.streams[0].prompt == direct.streams[0].prompt
    assert sent_on.streams[0].params == direct.streams[0].params
    assert direct.streams[0].params.no_repeat == NoRepeat(3, 100, (7, 9))
    assert sent_on.submitted == direct.submitted
    assert sent_on.grammars == direct.grammars
    assert [choice["finish_reason"] for choice in tokens["choices"]] == ["stop", "stop"]
    assert tokens["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]


async def test_named_tokens_are_rendered_and_answered() -> None:
    body = {"messages": HELLO, "max_tokens": 1, "logprobs": True, "logprob_token_ids": [*range(97, 127)]}
    rendered = (await post(f"{CHAT}/render", body)).json()
    (choice,) = (await post(GENERATE, rendered)).json()["choices"]
    alternatives = choice["logprobs"]["content"][0]["top_logprobs"]
    assert [each["token"] for each in alternatives] == [f"token_id:{token}" for token in range(97, 127)]

    assert [each["token_id"] for each in alternatives] == [*range(97, 127)]
    assert {each["rank"] for each in alternatives} == {None}, "they are not the likeliest"


@pytest.mark.parametrize("logprobs", [0, 1, 2])
async def test_tokens_have_ids_and_ranks(logprobs: int) -> None:
    body = {"token_ids": [104], "sampling_params": {"logprobs": logprobs, "max_tokens": 3}}
    (choice,) = (await post(GENERATE, body)).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["token_id"] for entry in entries] == choice["token_ids"]
    for entry in entries:
        assert {"token_id", "logprob", "rank"} <= entry.keys()
        top = entry["top_logprobs"]
        assert len(top) == max(logprobs, 1)
        assert [each["rank"] for each in top] == ([*range(1, logprobs + 1)] or [entry["rank"]])
        assert all(each["token"] == f"token_id:{each['token_id']}" for each in top)


async def test_prompts_of_completions_are_a_list() -> None:
    first, second = (await post(f"{COMPLETIONS}/render", {"prompt": ["hi", "ho"], "request_id": "x"})).json()
    assert (first["token_ids"], second["token_ids"]) == (list(b"hi"), list(b"ho"))
    assert (first["request_id"], second["request_id"]) == ("x-0", "x-1")
    assert first["sampling_params"] == {"max_tokens": 16}
    (cut,) = (await post(f"{COMPLETIONS}/render", {"prompt": "hello", "truncate_prompt_tokens": 2})).json()
    assert cut["token_ids"] == list(b"lo")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": HELLO, "max_completion_tokens": 600}, "max_completion_tokens"),
        (CHAT, {"messages": HELLO, "max_tokens": 600}, "max_tokens"),
        (COMPLETIONS, {"prompt": ["hi", "a" * 500], "max_tokens": 16}, "max_tokens"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 600}, "max_output_tokens"),
    ],
)
async def test_more_tokens_than_the_context_has_are_not_rendered_where_they_are_not_answered(
    path: str, body: dict[str, Any], param: str
) -> None:
    answer, rendered = [await post(each, body, status=400) for each in (path, f"{path}/render")]
    assert rendered.json() == answer.json()
    assert rendered.json()["error"]["param"] == param


async def test_an_answer_that_fills_the_context_is_rendered_as_one() -> None:
    body = {"model": "fake", "messages": HELLO, "max_tokens": 600}
    rendered = (await post("/v1/messages/render", body)).json()
    assert rendered["sampling_params"]["max_tokens"] == 512 - len(rendered["token_ids"])
    (filled,) = (await post(f"{COMPLETIONS}/render", {"prompt": "hi", "n_predict": -1})).json()
    assert filled["sampling_params"] == {"n_predict": -1}


async def test_a_response_is_written_as_it_is_answered_and_nothing_is_stored() -> None:
    body = {
        **{"input": [{"role": "user", "content": "hello"}], "instructions": "be kind", "max_output_tokens": 9},
        **{"temperature": 0.5, "top_logprobs": 2, "priority": 3, "cache_salt": "s", "request_id": "abc"},
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    }
    direct, sent_on = FakeEngine(answer=says("ok")), FakeEngine()
    await post("/v1/responses", {**body, "seed": 7}, direct)
    async with in_memory(fake_state(sent_on)) as client:
        rendered = (await client.post("/v1/responses/render", json={**body, "seed": 7})).json()
        assert rendered["request_id"] == "abc"
        await client.post(GENERATE, json=rendered)
        (stored,) = [await client.get("/v1/responses/abc")]
        assert stored.status_code == 404
    assert sent_on.streams[0].prompt == direct.streams[0].prompt
    assert sent_on.streams[0].params == direct.streams[0].params


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": "a" * 999}, "input"),
        ({"input": "a", "tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].server_url"),
        ({"input": "aaaa", "context_management": [{"type": "compaction", "compact_threshold": 1}]}, "input"),
        ({"input": "a", "previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
async def test_a_response_that_could_not_be_answered_is_not_rendered(fields: Any, param: str) -> None:
    assert (await post("/v1/responses/render", fields, status=400)).json()["error"]["param"] == param


async def test_offsets_say_where_in_the_prompt_a_token_is_from() -> None:
    body = {"messages": HELLO, "return_token_offsets": True}
    rendered = (await post(f"{CHAT}/render", body)).json()
    assert rendered["token_offsets"] == [[place, place + 1] for place in range(len(PROMPT))]
    assert "prompt_text" not in rendered
    assert "token_offsets" not in (await post(f"{CHAT}/render", {"messages": HELLO})).json()
    prompts = {"prompt": ["hi", "é!"], "return_token_offsets": True}
    words, letters = (await post(f"{COMPLETIONS}/render", prompts)).json()
    assert words["token_offsets"] == [[0, 1], [1, 2]]
    assert letters["token_offsets"] == [[0, 1], [0, 1], [1, 2]], "two bytes of one character"
    for side, place in (("left", 3), ("right", 0)):
        cut = {"prompt": "hello", "truncate_prompt_tokens": 2, "truncation_side": side, "return_token_offsets": True}
        (found,) = (await post(f"{COMPLETIONS}/render", cut)).json()
        assert found["token_offsets"] == [[place, place + 1], [place + 1, place + 2]]
    (tokens,) = (await post(f"{COMPLETIONS}/render", {"prompt": [104, 105], "return_token_offsets": True})).json()
    assert tokens["token_offsets"] is None
    # as in vLLM: nothing in an answer
    assert (await post(CHAT, body)).json()["choices"][0]["message"]["content"] == "ok"


async def test_tokens_are_answered_by_tokens() -> None:
    engine = FakeEngine(answer=says("ok"))
    engine.cached_tokens = 1
    body = {"token_ids": [104, 105], "sampling_params": {"logprobs": 1, "prompt_logprobs": 1}, "request_id": "abc"}
    answer = (await post(GENERATE, body, engine)).json()
    (choice,) = answer["choices"]
    assert (answer["request_id"], answer["model"], answer["kv_transfer_params"]) == ("abc", "fake/model", None)
    assert (choice["token_ids"], choice["finish_reason"]) == ([*b"ok", EOS], "stop")
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [
        "token_id:111",
        "token_id:107",
        "token_id:257",
    ]
    assert answer["prompt_logprobs"][0] is None
    assert answer["prompt_logprobs"][1]["105"]["logprob"] == -0.25
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert engine.streams[0].params.max_tokens == 510, "the rest of the context"


@pytest.mark.parametrize("burst", [1, 2])
async def test_a_stream_has_the_tokens_of_the_whole_answer(burst: int) -> None:
    engine = FakeEngine(answer=says("héllo"))
    engine.burst = burst
    body = {"token_ids": [1], "sampling_params": {"n": 2, "logprobs": 0}}
    whole = (await post(GENERATE, body, engine)).json()
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    chunks = chunks_of((await post(GENERATE, streamed, engine)).text)
    last = chunks.pop()
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    for index, choice in enumerate(whole["choices"]):
        mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
        assert [token for one in mine for token in one["token_ids"]] == choice["token_ids"]
        scores = [entry for one in mine if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert scores == choice["logprobs"]["content"]
        assert [one["finish_reason"] for one in mine] == [None] * (len(mine) - 1) + ["stop"]


async def test_a_stream_that_fails_ends_with_an_error() -> None:
    engine = FakeEngine()

    async def fail() -> None:
        engine.failure = "0xdeadbeef" if engine.streams and engine.streams[0]._prompt_done else None

    engine.pace = fail  # type: ignore[method-assign]
    body = {"token_ids": [1], "sampling_params": {}, "stream": True}
    events = events_of((await post(GENERATE, body, engine)).text)
    assert '"error"' in events[-1]
    assert "0xdeadbeef" not in events[-1]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"sampling_params": {}}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1]}, "sampling_params"),
        ({"token_ids": [999], "sampling_params": {}}, "token_ids"),
        ({"token_ids": [1] * 600, "sampling_params": {}}, "token_ids"),
        ({"token_ids": [1], "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"token_ids": [1], "sampling_params": {"max_tokens": 999}}, "sampling_params.max_tokens"),
        ({"token_ids": [1], "sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
        ({"token_ids": [1], "sampling_params": {"use_beam_search": True}}, "sampling_params.use_beam_search"),
        ({"token_ids": [1], "sampling_params": {"logits_processors": []}, "features": {"a": 1}}, "features"),
        ({"token_ids": [1], "sampling_params": {}, "stream_options": {}}, "stream_options"),
        ({"token_ids": [1], "sampling_params": {}, "output_mode": "text"}, "output_mode"),
        ({"token_ids": [1], "sampling_params": {}, "content_parts": [{}]}, "content_parts"),
        ({"token_ids": [1], "sampling_params": {"extra_args": {"a": 1}}}, "sampling_params.extra_args"),
        ({"token_ids": [1], "sampling_params": {"thinking_token_budget": 9}}, "sampling_params.thinking_token_budget"),
        (
            {"token_ids": [1], "sampling_params": {"prompt_logprob_token_ids": [[1]]}},
            "sampling_params.prompt_logprob_token_ids",
        ),
    ],
)
async def test_what_is_refused_is_named(body: Any, field: str) -> None:
    assert (await post(GENERATE, body, status=400)).json()["error"]["param"] == field


async def test_a_prompt_that_could_not_be_answered_is_not_rendered() -> None:
    long = [{"role": "user", "content": "a" * 999}]
    assert (await post(f"{CHAT}/render", {"messages": long}, status=400)).json()["error"]["param"] == "messages"
    assert (await post(f"{COMPLETIONS}/render", {"prompt": [999]}, status=400)).json()["error"]["param"] == "prompt"


# ---- vLLM's fields of chat


async def test_a_chat_answer_begins_with_the_message_that_it_continues_if_that_is_echoed() -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]}
    body = {"messages": [*HELLO, said], "continue_final_message": True, "add_generation_prompt": False, "n": 2}
    answer = (await post(CHAT, {**body, "echo": True})).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["He\nllook", "He\nllook"]
    chunks = chunks_of((await post(CHAT, {**body, "echo": True, "stream": True})).text)
    for index in range(2):
        pieces = [
            one["delta"].get("content") or "" for chunk in chunks for one in chunk["choices"] if one["index"] == index
        ]
        assert "".join(pieces) == "He\nllook"
    assert (await post(CHAT, body)).json()["choices"][0]["message"]["content"] == "ok"
    assert (await post(CHAT, {"messages": HELLO, "echo": True})).json()["choices"][0]["message"]["content"] == "ok"


async def test_the_text_of_the_prompt_comes_with_the_answer_and_with_the_first_chunk() -> None:
    body = {"messages": HELLO, "return_prompt_text": True, "return_token_ids": True}
    answer = (await post(CHAT, body)).json()
    assert (answer["prompt_text"], answer["prompt_token_ids"]) == (PROMPT, list(PROMPT.encode()))
    first, *rest = chunks_of((await post(CHAT, {**body, "stream": True})).text)
    assert (first["prompt_text"], first["prompt_token_ids"]) == (PROMPT, list(PROMPT.encode()))
    assert not any("prompt_text" in chunk for chunk in rest)
    assert "prompt_text" not in (await post(CHAT, {"messages": HELLO})).json()


async def test_a_conversation_of_anthropic_s_api_is_written_as_chat_writes_it() -> None:
    asked = {"model": "fake", "messages": HELLO, "max_tokens": 7}
    written = (await post("/v1/messages/render", asked)).json()
    assert written["token_ids"] == (await post(f"{CHAT}/render", asked)).json()["token_ids"]
    assert written["sampling_params"]["max_tokens"] == 7
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    refused = (await post("/v1/messages/render", {**asked, "context_management": edits}, status=400)).json()
    assert refused["type"] == "error"
    assert "`context_management`" in refused["error"]["message"]
