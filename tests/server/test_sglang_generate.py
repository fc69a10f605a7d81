"""SGLang's ``/generate`` over a fake engine."""

import json
from itertools import pairwise
from typing import Any

import pytest

from stentor.tests.fakes import EOS, FakeEngine, fake_state, says
from stentor.tests.server.harness import chunks_of, events_of, in_memory

pytestmark = pytest.mark.anyio


async def post(engine: FakeEngine | None = None, status: int = 200, **body: Any) -> Any:
    async with in_memory(fake_state(engine or FakeEngine(answer=says("Héllo 😀")))) as client:
        response = await client.post("/generate", json=body)
    assert response.status_code == status, response.text
    return response


async def test_a_text_is_completed_with_what_it_took() -> None:
    engine = FakeEngine(answer=says("Héllo 😀"))
    engine.cached_tokens = 2
    answer = (await post(engine, text="hello", rid="abc")).json()
    assert answer["text"] == "Héllo 😀"
    assert answer["output_ids"] == [*"Héllo 😀".encode(), EOS]
    meta = answer["meta_info"]
    assert meta.pop("e2e_latency") > 0
    assert meta == {
        "id": "abc",
        "finish_reason": {"type": "stop", "matched": EOS},
        "prompt_tokens": 5,
        "weight_version": "default",
        "completion_tokens": 12,
        "cached_tokens": 2,
    }
    assert engine.streams[0].params.max_tokens == 128


async def test_token_ids_are_a_prompt_too_and_come_back() -> None:
    engine = FakeEngine(answer=says("ok"))
    answer = (await post(engine, input_ids=[104, 105], return_prompt_token_ids=True)).json()
    assert engine.streams[0].prompt == answer["prompt_token_ids"] == [104, 105]


async def test_sampling_params_reach_the_engine() -> None:
    engine = FakeEngine(answer=says("ok"))
    sampling: dict[str, Any] = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "max_new_tokens": 9}
    sampling |= {"min_new_tokens": 2, "frequency_penalty": 0.5, "presence_penalty": 0.25, "repetition_penalty": 1.1}
    sampling |= {"sampling_seed": 4, "stop_token_ids": [7], "logit_bias": {"5": 2}, "stream_interval": 3}
    await post(engine, text="hello", sampling_params=sampling, priority=3)
    params = engine.streams[0].params
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.max_tokens) == (0.5, 3, 0.9, 0.1, 9)
    assert (params.min_tokens, params.frequency_penalty, params.presence_penalty) == (2, 0.5, 0.25)
    assert (params.repetition_penalty, params.stop_token_ids, params.logit_bias) == (1.1, (7,), ((5, 2.0),))
    assert engine.submitted[0][:2] == ([4], 3)


async def test_without_a_number_of_tokens_128_are_made_or_as_many_as_fit_and_with_null_all_that_fit() -> None:
    engine = FakeEngine(max_model_len=48)
    assert (await post(engine, text="hello")).json()["meta_info"]["completion_tokens"] == 43
    engine = FakeEngine()
    answer = (await post(engine, text="hello", sampling_params={"max_new_tokens": None})).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 507}


async def test_a_stop_text_is_named_and_kept_only_if_that_is_wanted() -> None:
    answer = (await post(text="hello", sampling_params={"stop": "l"})).json()
    assert (answer["text"], answer["meta_info"]["finish_reason"]) == ("Hé", {"type": "stop", "matched": "l"})
    assert (await post(text="hello", sampling_params={"stop": ["l"], "no_stop_trim": True})).json()["text"] == "Hél"


async def test_a_text_ends_with_what_matches_a_pattern() -> None:
    for pattern in (r"\s", ["l{3}", r"\s"]):
        answer = (await post(text="hello", sampling_params={"stop_regex": pattern, "stop": "😀"})).json()
        assert (answer["text"], answer["meta_info"]["finish_reason"]) == ("Héllo ", {"type": "stop", "matched": r"\s"})
        assert answer["meta_info"]["completion_tokens"] == len("Héllo ".encode())


@pytest.mark.parametrize("burst", [1, 3])
async def test_each_event_has_all_so_far_and_the_last_is_the_whole_answer(burst: int) -> None:
    engine = FakeEngine(answer=says("Héllo 😀"))
    engine.burst = burst
    body: dict[str, Any] = {
        "text": "hello",
        "return_logprob": True,
        "top_logprobs_num": 2,
        "logprob_start_len": 0,
        "rid": "abc",
    }
    whole = (await post(engine, **body)).json()
    chunks = chunks_of((await post(engine, **body, stream=True)).text)
    for before, after in pairwise(chunks):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
    for one in (chunks[-1], whole):
        assert one["meta_info"].pop("e2e_latency") > 0
    assert chunks[-1] == whole
    assert len(chunks) >= 12 // burst


async def test_a_long_stream_is_not_sent_again_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.server.api.sglang.encoder._SMALL", 100)
    monkeypatch.setattr("stentor.server.api.sglang.encoder._GROWTH", 2)
    body: dict[str, Any] = {"text": "hello", "sampling_params": {"max_new_tokens": 200}}
    whole = (await post(FakeEngine(), **body)).json()
    chunks = chunks_of((await post(FakeEngine(), **body, stream=True)).text)
    assert chunks[-1]["text"] == whole["text"]
    assert len(chunks) < 40


async def test_several_prompts_and_choices_are_a_list_in_their_order() -> None:
    engine = FakeEngine(answer=lambda prompt, index: [*prompt, *b"abc"[index : index + 1], EOS])
    body: dict[str, Any] = {"text": ["hi", "ho"], "sampling_params": {"n": 2}, "rid": "x"}
    answers = (await post(engine, **body)).json()
    assert [answer["text"] for answer in answers] == ["hia", "hib", "hoa", "hob"]
    assert [answer["meta_info"]["id"] for answer in answers] == ["x_0", "x_1", "x_2", "x_3"]
    last = {chunk["index"]: chunk["text"] for chunk in chunks_of((await post(engine, **body, stream=True)).text)}
    assert last == {0: "hia", 1: "hib", 2: "hoa", 3: "hob"}
    (alone,) = (await post(engine, input_ids=[[104]])).json()
    assert alone["text"] == "ha"


async def test_each_of_several_prompts_may_have_parameters_of_its_own() -> None:
    engine = FakeEngine(answer=lambda prompt, index: [*prompt, *b"abc"[index : index + 1], EOS])
    body: dict[str, Any] = {
        "text": ["hi", "ho"],
        "sampling_params": [{"max_new_tokens": 1, "temperature": 0}, {"max_new_tokens": 2, "temperature": 0.5}],
        "rid": ["x", "y"],
        "return_logprob": [False, True],
        "top_logprobs_num": [0, 1],
        "logprob_start_len": [-1, 0],
    }
    first, second = (await post(engine, **body)).json()
    assert [stream.params.temperature for stream in engine.streams] == [0, 0.5]
    assert (first["text"], first["meta_info"]["id"]) == ("h", "x")
    assert (second["text"], second["meta_info"]["id"]) == ("ho", "y")
    assert "output_token_logprobs" not in first["meta_info"]
    assert [len(second["meta_info"][name]) for name in ("input_token_logprobs", "output_top_logprobs")] == [2, 2]
    last = {chunk["index"]: chunk for chunk in chunks_of((await post(engine, **body, stream=True)).text)}
    assert [last[place]["meta_info"]["id"] for place in (0, 1)] == ["x", "y"]
    body["sampling_params"] = [{"n": 2}, {"n": 2}]
    answers = (await post(engine, **body)).json()
    assert [answer["text"] for answer in answers] == ["hia", "hib", "hoa", "hob"]
    assert [answer["meta_info"]["id"] for answer in answers] == ["x_0", "x_1", "y_0", "y_1"]


@pytest.mark.parametrize("form", [[73, 72], [[73, 72]]])
async def test_probed_tokens_come_in_the_order_of_the_request(form: Any) -> None:
    engine = FakeEngine(answer=says("Hi"))
    body: dict[str, Any] = {"text": ["hey"], "return_logprob": True, "token_ids_logprob": form}
    (answer,) = (await post(engine, **body)).json()
    meta = answer["meta_info"]
    assert engine.streams[0].params.logprob_token_ids == (73, 72)
    assert meta["input_token_ids_logprobs"] == []
    assert [[token for _, token, _ in one] for one in meta["output_token_ids_logprobs"]] == [[73, 72]] * 3
    assert "output_top_logprobs" not in meta


async def test_log_probabilities_are_lists_of_value_token_and_text() -> None:
    body: dict[str, Any] = {"text": "hey", "return_logprob": True, "sampling_params": {"max_new_tokens": 2}}
    meta = (await post(**body)).json()["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.25, 72, None], [-0.25, 195, None]]
    assert (meta["output_token_logprobs_length"], meta["input_token_logprobs"]) == (2, [])
    assert "output_top_logprobs" not in meta
    body |= {"logprob_start_len": 1, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    meta = (await post(**body)).json()["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 101, "e"], [-0.25, 121, "y"]]
    assert meta["input_top_logprobs"] == [None, [[-0.25, 121, "y"], [-2.0, 122, "z"]]]
    assert meta["output_top_logprobs"][0] == [[-0.25, 72, "H"], [-2.0, 73, "I"]]


async def test_a_prompt_is_scored_without_an_answer() -> None:
    body: dict[str, Any] = {
        "text": "hey",
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 0},
    }
    answer = (await post(**body)).json()
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert [token for _, token, _ in answer["meta_info"]["input_token_logprobs"]] == list(b"hey")
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


@pytest.mark.parametrize(
    ("name", "form"), [("json_schema", '{"type": "object"}'), ("regex", "a|b"), ("ebnf", 'root ::= "a"')]
)
async def test_a_form_of_the_answer_is_held(name: str, form: str) -> None:
    engine = FakeEngine(answer=says("a"))
    await post(engine, text="hello", sampling_params={name: form})
    assert all(engine.grammars)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": "a", "input_ids": [1]}, "input_ids"),
        ({"sampling_params": {}}, "text"),
        ({"input_embeds": [[0.5]]}, "input_embeds"),
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"top_p": "x"}}, "sampling_params.top_p"),
        ({"text": "a", "sampling_params": {"max_tokens": 3}}, "sampling_params"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 9999}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"stop_regex": "x$"}}, "sampling_params.stop_regex"),
        ({"text": "a", "sampling_params": {"stop_regex": ["x", "(x"]}}, "sampling_params.stop_regex[1]"),
        ({"text": "a", "sampling_params": {"stop_regex": ["x"] * 99}}, "sampling_params.stop_regex"),
        ({"text": "a", "sampling_params": {"json_schema": '{"type": "x"}'}}, "sampling_params.json_schema.type"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": 2}, "logprob_start_len"),
        ({"text": "a", "sampling_params": [{"n": 1}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": ["a", "b"], "lora_path": [None, 5]}, "lora_path[1]"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [1], "top_logprobs_num": 2}, "token_ids_logprob"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [1], "logprob_start_len": 0}, "token_ids_logprob"),
        ({"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [1, [2]]}, "token_ids_logprob"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [999]}, "token_ids_logprob"),
        ({"text": "a" * 9999}, "text"),
        ({"input_ids": [999]}, "input_ids"),
        ({"input_ids": [1, [2]]}, "input_ids[1]"),
        ({"text": "a", "lora_path": "nobody"}, "lora_path"),
    ],
)
async def test_what_is_refused_is_named_in_the_shape_that_sglang_s_clients_read(body: Any, field: str) -> None:
    status = 404 if field == "lora_path" else 400
    error = (await post(status=status, **body)).json()["error"]
    assert (error["param"], error["type"]) == (field, "invalid_request_error")


async def test_a_request_with_inputs_is_text_generation_inference_s_and_so_is_one_with_nothing() -> None:
    assert "generated_text" in (await post(inputs="hi", text="ho")).json()
    assert (await post(status=400)).json()["error_type"] == "validation"


async def test_a_stream_that_fails_ends_with_an_error() -> None:
    engine = FakeEngine()

    async def fail() -> None:
        engine.failure = "0xdeadbeef" if engine.streams and engine.streams[0]._prompt_done else None

    engine.pace = fail  # type: ignore[method-assign]
    events = events_of((await post(engine, text="hi", stream=True)).text)
    assert "0xdeadbeef" not in json.loads(events[-1])["error"]["message"]
    assert not engine.live
