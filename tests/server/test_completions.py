"""Text completions over a fake engine."""

import json
from itertools import chain
from typing import Any

import pytest
from openai.types import Completion

from stentor.protocols.common.limits import Limits
from stentor.server.config.limits import OverloadConfig
from stentor.server.text.output.stop import StopStrings
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import COMPLETIONS, chunks_of, in_memory

pytestmark = [pytest.mark.anyio, pytest.mark.sampled]


async def post(engine: FakeEngine, **body: Any) -> Any:
    async with in_memory(fake_state(engine)) as client:
        response = await client.post(COMPLETIONS, json=body)
    assert response.status_code == 200, response.text
    return response


PROMPTS: list[Any] = ["once", [111, 110], ["once", "twice"], [[111], [110, 99]]]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("extra", [{}, {"n": 2}, {"logprobs": 2}, {"echo": True}, {"return_token_ids": True}])
async def test_every_response_is_valid_to_the_sdk_strictly(prompt: Any, extra: dict[str, Any]) -> None:
    response = await post(FakeEngine(), prompt=prompt, max_tokens=5, **extra)
    completion = Completion.model_validate_json(response.content, strict=True)
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert [choice.index for choice in completion.choices] == list(range(prompts * extra.get("n", 1)))


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"n": 2, "stop": "wör"},
        {"echo": True},
        {"echo": True, "logprobs": 1, "n": 2},
        {"echo": True, "logprobs": 1, "logprob_token_ids": [97, 98, 99]},
        {"logprobs": 0, "return_token_ids": True},
        {"echo": True, "max_tokens": 0},
        {"echo": True, "max_tokens": 0, "logprobs": 2},
    ],
)
async def test_a_stream_says_what_the_whole_response_says(prompt: Any, extra: dict[str, Any]) -> None:
    body = {"prompt": prompt, "max_tokens": 11, **extra}
    whole = (await post(FakeEngine(), **body)).json()
    chunks = chunks_of((await post(FakeEngine(), **body, stream=True, stream_options={"include_usage": True})).text)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [p["finish_reason"] for p in mine if p["finish_reason"]] == [choice["finish_reason"]]
        if choice["logprobs"]:
            for field, values in choice["logprobs"].items():
                parts = [part["logprobs"][field] for part in mine if part["logprobs"]]
                assert list(chain(*parts)) == values, field


async def test_every_chunk_but_for_its_open_finish_reason_is_valid_to_the_sdk() -> None:
    # The SDK's type asks for a finish reason in every chunk; OpenAI's own server sends null before the last.
    for chunk in chunks_of((await post(FakeEngine(), prompt="a", max_tokens=6, stream=True, logprobs=1)).text):
        for choice in chunk["choices"]:
            assert "finish_reason" in choice
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        Completion.model_validate_json(json.dumps(chunk), strict=True)


async def test_logprobs_are_parallel_lists_and_the_first_of_an_echoed_prompt_is_null() -> None:
    choice = (await post(FakeEngine(), prompt="né", echo=True, logprobs=2, max_tokens=4)).json()["choices"][0]
    lists = choice["logprobs"]
    assert choice["text"] == "néHél"
    assert lists["tokens"] == ["n", "\ufffd", "\ufffd", "H", "\ufffd", "\ufffd", "l"]
    assert lists["text_offset"] == [0, 1, 1, 2, 3, 3, 4], "a split character's tokens share its place"
    assert lists["token_logprobs"][0] is None
    assert lists["top_logprobs"][0] is None
    assert lists["token_logprobs"][1:] == [-0.25] * 6
    assert lists["top_logprobs"][3] == {"H": -0.25, "I": -2.0}


async def test_named_tokens_stand_beside_each_generated_token_and_the_likeliest_beside_those_of_an_echo() -> None:
    body = {"prompt": "ab", "echo": True, "max_tokens": 2, "logprobs": 1, "logprob_token_ids": [97, 122]}
    lists = (await post(FakeEngine(), **body)).json()["choices"][0]["logprobs"]
    assert lists["top_logprobs"] == [None, {"b": -0.25}, {"a": -48.5, "z": -61, "H": -0.25}, lists["top_logprobs"][3]]
    assert len(lists["top_logprobs"][3]) == 3


@pytest.mark.parametrize("more", [{}, {"logprobs": 0, "echo": True, "max_tokens": 0}])
async def test_named_tokens_need_log_probabilities_and_generated_tokens(more: dict[str, Any]) -> None:
    async with in_memory(fake_state(FakeEngine())) as client:
        response = await client.post(COMPLETIONS, json={"prompt": "a", "logprob_token_ids": [97], **more})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logprob_token_ids"


async def test_an_echo_alone_asks_nothing_of_the_engine_and_with_logprobs_only_for_the_prompt() -> None:
    engine = FakeEngine()
    body = (await post(engine, prompt="abc", echo=True, max_tokens=0)).json()
    assert (body["choices"][0]["text"], body["usage"]["completion_tokens"]) == ("abc", 0)
    assert engine.streams == []
    body = (await post(engine, prompt="abc", echo=True, max_tokens=0, logprobs=1)).json()
    assert body["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]
    assert body["usage"]["completion_tokens"] == 0
    assert engine.live == 0


async def test_sixteen_tokens_are_the_default_and_less_where_the_context_ends() -> None:
    assert (await post(FakeEngine(), prompt="a")).json()["usage"]["completion_tokens"] == 16
    assert (await post(FakeEngine(max_model_len=10), prompt="abc")).json()["usage"]["completion_tokens"] == 7


async def test_the_usage_of_several_prompts_is_their_sum_and_a_prompt_counts_once_for_n() -> None:
    usage = (await post(FakeEngine(), prompt=["ab", "cde"], n=2, max_tokens=3)).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 12, 17)


async def test_a_text_prompt_is_echoed_as_it_was_sent_and_token_ids_as_their_text() -> None:
    answer = says("!")
    bodies = [
        (await post(FakeEngine(answer=answer), prompt=prompt, echo=True)).json()
        for prompt in ("hé", list("hé".encode()))
    ]
    assert [body["choices"][0]["text"] for body in bodies] == ["hé!", "hé!"]


async def test_many_prompts_stream_together() -> None:
    engine = FakeEngine(delay=0.01)
    response = await post(engine, prompt=[f"p{i}" for i in range(20)], max_tokens=5, stream=True)
    chunks = chunks_of(response.text)
    assert {part["index"] for chunk in chunks for part in chunk["choices"]} == set(range(20))
    first_ends = next(place for place, chunk in enumerate(chunks) if chunk["choices"][0]["finish_reason"])
    assert len({chunk["choices"][0]["index"] for chunk in chunks[:first_ends]}) == 20, "none waited for another to end"


async def test_stop_strings_are_compiled_once_for_all_prompts_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, ...]] = []
    compiling = StopStrings.__init__

    def counted(self: StopStrings, stops: tuple[str, ...]) -> None:
        compiled.append(stops)
        compiling(self, stops)

    monkeypatch.setattr(StopStrings, "__init__", counted)
    stops = [f"{number}, compiled once" for number in range(16)]
    response = await post(FakeEngine(), prompt=["a"] * 64, n=2, max_tokens=2, stop=stops)
    assert len(response.json()["choices"]) == 128
    assert compiled == [tuple(stops)]


@pytest.mark.parametrize("extra", [{"prompt_logprobs": 20}, {"echo": True, "logprobs": 20}])
async def test_log_probabilities_of_many_long_prompts_are_refused_before_they_are_computed(extra: Any) -> None:
    engine = FakeEngine(max_model_len=8192)
    per_prompt = 4000
    most = Limits().max_answer_bytes // (21 * 32 * per_prompt)
    async with in_memory(fake_state(engine)) as client:
        body = {"prompt": [[1] * per_prompt] * most, "max_tokens": 1, **extra}
        refused = await client.post(COMPLETIONS, json=body)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("response_too_large", "prompt")
        assert not engine.streams
        fewer = {"prompt": ["a"] * 2, "max_tokens": 1, **extra}
        assert (await client.post(COMPLETIONS, json=fewer)).status_code == 200


async def test_all_prompts_of_a_request_share_one_object_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    state = fake_state(engine)
    encoded: list[list[str]] = []
    encode_batch = state.chat.pool.encode_batch

    async def counting(texts: list[str], *args: Any, **fields: Any) -> list[list[int]]:
        encoded.append(texts)
        return await encode_batch(texts, *args, **fields)

    monkeypatch.setattr(state.chat.pool, "encode_batch", counting)
    async with in_memory(state) as client:
        body = {"prompt": ["a", "b", "c" * 510], "bad_words": ["one", "two"], "max_tokens": None}
        assert (await client.post(COMPLETIONS, json=body)).status_code == 200
    first, second, last = (stream.params for stream in engine.streams)
    assert first is second
    assert (first.max_tokens, last.max_tokens) == (16, 2)
    assert first.banned_sequences
    assert first.banned_sequences is last.banned_sequences
    assert encoded.count(["one", "two", " one", " two"]) == 1


async def test_parameters_count_for_each_prompt_as_the_engine_is_given_them() -> None:
    engine = FakeEngine()
    state = fake_state(engine, overload=OverloadConfig(max_inflight_bytes=32 << 20))
    words = ["x" * 900 + str(number) for number in range(60)]
    async with in_memory(state) as client:
        body = {"prompt": ["a"], "bad_words": words, "max_tokens": 1}
        assert (await client.post(COMPLETIONS, json=body)).status_code == 200
        refused = await client.post(COMPLETIONS, json={**body, "prompt": ["a"] * 100})
    assert (refused.status_code, refused.json()["error"]["param"]) == (413, "bad_words")
    assert len(engine.streams) == 1
    assert state.admission.memory.bytes == 0


async def test_either_side_of_a_prompt_can_be_truncated_and_the_echo_is_what_was_kept() -> None:
    for side, kept in (("left", "cdef"), ("right", "abcd")):
        engine = FakeEngine()
        answer = await post(
            engine, prompt="abcdef", truncate_prompt_tokens=4, truncation_side=side, echo=True, max_tokens=0
        )
        assert answer.json()["choices"][0]["text"] == kept


@pytest.mark.parametrize("burst", [1, 7])
async def test_a_choice_that_repeats_itself_is_ended_where_asked(burst: int) -> None:
    engine = FakeEngine(answer=says("so on ", repeat=True))
    engine.burst = burst
    detection = {"max_pattern_size": 8, "min_pattern_size": 2, "min_count": 3}
    body = {"prompt": "and", "max_tokens": 200, "n": 2, "repetition_detection": detection, "logprobs": 0}
    answer = (await post(engine, **body)).json()
    for choice in answer["choices"]:
        assert choice["text"] == "so on " * 3
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition_detected")
        assert len(choice["logprobs"]["tokens"]) == 18
    assert answer["usage"]["completion_tokens"] == 36
    assert engine.live == 0
    later = (await post(FakeEngine(answer=says("so on ", repeat=True)), **body, min_tokens=30)).json()
    assert len(later["choices"][0]["text"]) == 30
    without = (
        await post(FakeEngine(answer=says("so on ", repeat=True)), **(body | {"repetition_detection": {}}))
    ).json()
    assert len(without["choices"][0]["text"]) == 200


async def test_llama_cpp_s_bound_of_an_answer_is_taken_too() -> None:
    engine = FakeEngine(max_model_len=64)
    for bound in ({}, {"n_predict": 3}, {"n_predict": -1}, {"n_predict": 3, "max_tokens": 2}):
        await post(engine, prompt=[1] * 4, **bound)
    assert [stream.params.max_tokens for stream in engine.streams] == [16, 3, 60, 2]
