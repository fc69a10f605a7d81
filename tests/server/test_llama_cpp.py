"""The endpoints of llama.cpp's server over a fake engine."""

import json
from typing import Any

import pytest

from stentor.protocols.ipc.adapters import AdapterRef
from stentor.server.config.adapters import AdapterRegistry
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.middleware.access_control import AccessControl
from stentor.server.text.pool import TokenizerPool
from stentor.tests.fakes import EOS, FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, HELLO, events_of, in_memory
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.server.pooling.pooler import FakePooler, config, model_of, state_of
from stentor.tests.server.test_infill import with_tokens

pytestmark = pytest.mark.anyio


async def post(engine: FakeEngine | None = None, path: str = "/completion", status: int = 200, **body: Any) -> Any:
    async with in_memory(fake_state(engine or FakeEngine(answer=says("Yes.\nNo.")))) as client:
        response = await client.post(path, json={"prompt": "hello", **body})
    assert response.status_code == status, response.text
    return response


@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_a_prompt_is_completed_whole_with_what_it_took(path: str) -> None:
    engine = FakeEngine(answer=says("Yes.\nNo."))
    engine.cached_tokens = 2
    answer = (await post(engine, path, return_tokens=True)).json()
    assert (answer["content"], answer["stop"], answer["stop_type"]) == ("Yes.\nNo.", True, "eos")
    assert answer["tokens"][:-1] == list(b"Yes.\nNo.")
    assert (answer["tokens_evaluated"], answer["tokens_predicted"], answer["has_new_line"]) == (5, 9, True)
    timings = answer["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (2, 3, 9)
    assert timings["prompt_ms"] == 250, "the engine's own seconds"
    assert timings["predicted_per_second"] == pytest.approx(8000 / timings["predicted_ms"]), (
        "of the steps after the prompt's"
    )


async def test_an_answer_of_one_token_has_no_rate() -> None:
    timings = (await post(n_predict=1)).json()["timings"]
    assert (timings["predicted_n"], timings["predicted_per_second"], timings["predicted_per_token_ms"]) == (1, 0, 0)


@pytest.mark.parametrize("burst", [1, 4])
async def test_a_stream_comes_to_the_whole_answer_and_ends_without_done(burst: int) -> None:
    engine = FakeEngine()
    engine.burst = burst
    whole = (await post(engine, n_predict=30)).json()
    events = [json.loads(event) for event in events_of((await post(engine, n_predict=30, stream=True)).text)]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["stop_type"] == whole["stop_type"] == "limit"
    assert events[-1]["tokens_predicted"] == 30


async def test_tokens_that_make_no_text_come_with_the_next_event() -> None:
    engine = FakeEngine(answer=says("é😀"))
    events = [json.loads(event) for event in events_of((await post(engine, stream=True)).text)]
    assert [(event["content"], event["tokens"]) for event in events] == [
        ("é", list("é".encode())),
        ("😀", list("😀".encode())),
        ("", [EOS]),
    ]


async def test_token_ids_are_a_prompt_and_a_stop_string_is_named() -> None:
    answer = (await post(prompt=[104, 105], stop=["No", "x"])).json()
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("Yes.\n", "word", "No")
    assert answer["tokens_evaluated"] == 2


async def test_options_reach_the_engine() -> None:
    engine = FakeEngine(answer=says("ok"))
    options: dict[str, Any] = {
        "temperature": -1,
        "top_k": 5,
        "min_p": 0.1,
        "repeat_penalty": 1.5,
        "seed": 7,
        "samplers": ["top_k"],
    }
    await post(engine, **options, logit_bias=[[5, 1.5], [6, False]], n_predict=4, typical_p=1.0)
    params = engine.streams[0].params
    assert (params.temperature, params.top_k, params.min_p, params.repetition_penalty) == (0, 5, 0.1, 1.5)
    assert (params.max_tokens, params.logit_bias, engine.submitted[0][0]) == (4, ((5, 1.5), (6, -100.0)), [7])


async def test_a_bias_for_a_text_is_for_each_of_its_tokens() -> None:
    engine = FakeEngine(answer=says("ok"))
    async with in_memory(fake_state(engine)) as client:
        for biases in ([["ab", -2], [99, False]], {"ab": -2, "99": False}):
            answer = await client.post("/completion", json={"prompt": "hello", "logit_bias": biases})
            assert answer.status_code == 200, answer.text
        for path, body in ((CHAT, {"messages": HELLO}), ("/v1/completions", {"prompt": ["hello", "hi"]})):
            answer = await client.post(path, json={**body, "logit_bias": [["ab", -2], [99, False]]})
            assert answer.status_code == 200, answer.text
    assert [stream.params.logit_bias for stream in engine.streams] == [((97, -2), (98, -2), (99, -100))] * 5


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_of_which_nothing_is_to_be_predicted_is_only_computed(stream: bool) -> None:
    engine = FakeEngine(answer=says(""))
    answer = await post(engine, n_predict=0, stream=stream, n_probs=1)
    (told,) = [json.loads(event) for event in events_of(answer.text)] if stream else [answer.json()]
    assert (told["content"], told["tokens_predicted"], told["stop_type"]) == ("", 0, "limit")
    assert (told["tokens_evaluated"], engine.streams[0].params.max_tokens) == (5, 1)


async def test_max_tokens_is_another_name_of_n_predict_which_comes_first() -> None:
    engine = FakeEngine(answer=says("ok"))
    await post(engine, max_tokens=3)
    await post(engine, max_tokens=3, n_predict=2)
    assert [stream.params.max_tokens for stream in engine.streams] == [3, 2]


async def test_a_grammar_and_a_schema_are_held() -> None:
    engine = FakeEngine(answer=says("a"))
    async with in_memory(fake_state(engine)) as client:
        for form in ({"grammar": 'root ::= "a" | "b"'}, {"json_schema": {"type": "object"}, "seed": -1}):
            assert (await client.post("/completion", json={"prompt": "hello", **form})).status_code == 200
    assert len(engine.grammars) == 2
    assert all(engine.grammars)


async def test_probabilities_and_chosen_fields_are_told() -> None:
    answer = (await post(n_probs=2, n_predict=2)).json()
    first = answer["completion_probabilities"][0]
    assert (first["id"], first["token"], first["bytes"]) == (ord("Y"), "Y", [ord("Y")])
    assert len(first["top_logprobs"]) == 2
    answer = (await post(engine := FakeEngine(), n_probs=2, n_predict=2, post_sampling_probs=True)).json()
    first = answer["completion_probabilities"][0]
    assert engine.streams[0].params.processed_logprobs
    assert set(first) == {"id", "token", "bytes", "prob", "top_probs"}
    assert all(0 < each["prob"] <= 1 for each in (first, *first["top_probs"]))
    chosen = (await post(response_fields=["content", "timings/prompt_n", "none/at_all"])).json()
    assert chosen == {"content": "Yes.\nNo.", "timings/prompt_n": 5}


async def test_the_middle_is_filled_in_behind_other_files() -> None:
    pool = TokenizerPool(with_tokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"))
    engine = FakeEngine(answer=lambda _prompt, _index: [*b"mid", 261])
    body = {"input_prefix": "a", "prompt": "b", "input_suffix": "", "input_extra": [{"filename": "f", "text": "t"}]}
    async with in_memory(fake_state(engine, pool=pool, vocab_size=300)) as client:
        answer = (await client.post("/infill", json=body)).json()
    assert (answer["content"], answer["stop_type"]) == ("mid", "eos")
    assert engine.streams[0].prompt == [261, *b"f\nt\n", 258, *b"ab", 259, 260]
    refused = (await post(path="/infill", status=400, input_prefix="a", input_suffix="b")).json()["error"]
    assert refused["message"].startswith("`input_suffix`: the model has no tokens to fill in the middle")


async def test_a_conversation_is_written_as_the_prompt_that_chat_has_of_it() -> None:
    engine = FakeEngine(answer=says("ok"))
    async with in_memory(fake_state(engine)) as client:
        written = (await client.post("/apply-template", json={"messages": HELLO})).json()
        await client.post(CHAT, json={"messages": HELLO})
    assert written == {"prompt": "<user>hello\n<assistant>"}
    assert bytes(engine.streams[0].prompt).decode() == written["prompt"]


@pytest.mark.parametrize("path", ["/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"])
async def test_the_prompt_of_a_conversation_is_counted_without_an_answer(path: str) -> None:
    engine = FakeEngine()
    async with in_memory(fake_state(engine)) as client:
        counted = await client.post(path, json={"messages": HELLO})
        usage = (await client.post(CHAT, json={"messages": HELLO})).json()["usage"]
        refused = await client.post(path, json={"messages": "hello"})
    assert counted.json() == {"input_tokens": usage["prompt_tokens"]}
    assert len(engine.streams) == 1
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


async def test_the_server_says_what_it_serves_and_how_many_sequences_it_computes() -> None:
    async with in_memory(fake_state()) as client:
        props = (await client.get("/props")).json()
        assert props["default_generation_settings"]["n_ctx"] == 512
        assert (props["model_alias"], props["total_slots"], props["eos_token"]) == ("fake/model", 4, "</s>")
        assert props["modalities"] == {"vision": False, "audio": False}
        assert "<assistant>" in props["chat_template"]
        assert props["is_sleeping"] is False
        slots = (await client.get("/slots?fail_on_no_slot=1")).json()
    assert [slot["is_processing"] for slot in slots] == [True] + [False] * 3, "the fake engine runs one"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": 9}, "temperature"),
        ({"mirostat": 2}, "mirostat"),
        ({"dry_multiplier": 0.5}, "dry_multiplier"),
        ({"t_max_predict_ms": 20}, "t_max_predict_ms"),
        ({"grammar": 'root ::= "a"', "grammar_lazy": True}, "grammar_lazy"),
        ({"n_cmpl": 2}, "n_cmpl"),
        ({"n": 2}, "n"),
        ({"image_data": [{"id": 1, "data": "aGk="}]}, "image_data"),
        ({"lora": [{"id": 0}]}, "lora"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"json_schema": {"type": "nonsense"}}, "json_schema"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"prompt": ["a", ["b"], 3]}, "prompt[2]"),
        ({"prompt": ["a", {}]}, "prompt[1]"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["aGk="]}}, "prompt.multimodal_data"),
        ({"prompt": ["a", {"prompt_string": "b", "multimodal_data": ["aGk="]}]}, "prompt[1].multimodal_data"),
        ({"prompt": ["a"] * 9999}, "prompt"),
        ({"logit_bias": [[1.5, 2]]}, "logit_bias[0]"),
        ({"logit_bias": [[999999, 2]]}, "logit_bias"),
        ({"logit_bias": [["a", True]]}, "logit_bias[0]"),
        ({"logit_bias": [["a", 101]]}, "logit_bias[0]"),
        ({"logit_bias": [["a", 1]] * 9999}, "logit_bias"),
        ({"logit_bias": [["a" * 99_999, 1]]}, "logit_bias"),
    ],
)
async def test_what_is_refused_is_named_in_the_client_s_words_and_shape(body: dict[str, Any], field: str) -> None:
    error = (await post(status=400, **body)).json()["error"]
    assert error.keys() == {"code", "message", "type"}
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert f"`{field}" in error["message"]


def echoes() -> FakeEngine:
    """Answers a prompt with its last two bytes."""
    return FakeEngine(answer=lambda prompt, _index: [*prompt[-2:], EOS])


SEVERAL = ["ab", [99, "d", 101], [102, 103], ["gh"]]


async def test_several_prompts_have_an_answer_each() -> None:
    engine = echoes()
    answers = (await post(engine, prompt=SEVERAL)).json()
    assert [(answer["index"], answer["content"]) for answer in answers] == [(0, "ab"), (1, "de"), (2, "fg"), (3, "gh")]
    assert [stream.prompt for stream in engine.streams] == [[*b"ab"], [*b"cde"], [*b"fg"], [*b"gh"]]
    assert (await post(echoes(), prompt=["ab"])).json()["content"] == "ab", "of one prompt it is no list"


async def test_a_stream_of_several_prompts_tells_them_apart_and_ends_each() -> None:
    events = [json.loads(event) for event in events_of((await post(echoes(), prompt=SEVERAL, stream=True)).text)]
    whole = (await post(echoes(), prompt=SEVERAL)).json()
    for number, answer in enumerate(whole):
        own = [event for event in events if event["index"] == number]
        assert "".join(event["content"] for event in own) == answer["content"]
        assert [event["stop"] for event in own] == [False] * (len(own) - 1) + [True]


async def test_a_prompt_may_be_tokens_and_texts_in_turn() -> None:
    engine = echoes()
    await post(engine, prompt=[97, "bc", 100, "e"])
    assert bytes(engine.streams[0].prompt) == b"abcde"


async def test_a_prompt_may_be_the_text_of_an_object() -> None:
    engine = echoes()
    alone = (await post(engine, prompt={"prompt_string": "ab"}, post_sampling_probs=True)).json()
    among = (await post(engine, prompt=["cd", {"prompt_string": "ef", "multimodal_data": []}])).json()
    assert [alone["content"], *(answer["content"] for answer in among)] == ["ab", "cd", "ef"]


async def test_errors_have_the_types_of_llama_cpp_s() -> None:
    error = (await post(status=400, prompt="x" * 600)).json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (600, 512)
    assert (await post(status=404, model="none")).json()["error"]["type"] == "not_found_error"
    async with in_memory(fake_state(access=AccessControl(keyring("secret")))) as client:
        assert (await client.get("/props")).json()["error"]["type"] == "authentication_error"


async def test_a_failure_in_a_stream_is_an_event_with_an_error() -> None:
    broken = FakeEngine()

    async def fail() -> None:
        broken.failure = "0xdeadbeef" if broken.streams and broken.streams[0]._prompt_done else None

    broken.pace = fail  # type: ignore[method-assign]
    events = events_of((await post(broken, stream=True)).text)
    assert json.loads(events[-1])["error"]["code"] == 500


async def test_texts_are_embedded_as_lists_of_one_vector() -> None:
    pooler = FakePooler()
    async with in_memory(state_of(model_of(pooler, config()))) as client:
        plain = (await client.post("/v1/embeddings", json={"input": ["a b", "c"]})).json()["data"]
        for path, field in (("/embedding", "content"), ("/embeddings", "input")):
            found = (await client.post(path, json={field: ["a b", "c"]})).json()
            assert found == [{"index": one["index"], "embedding": [one["embedding"]]} for one in plain]
        await client.post("/embedding", json={"content": "a b", "embd_normalize": -1})
        refused = [{}, {"content": "a", "embd_normalize": 1}, {"content": "a " * 50}]
        errors = [(await client.post("/embedding", json=body)).json()["error"] for body in refused]
    assert (pooler.streams[-2].pooling.normalize, pooler.streams[-1].pooling.normalize) == (True, False)
    assert [error["code"] for error in errors] == [400, 400, 400]
    assert ["`content" in error["message"] for error in errors] == [True, False, True]


async def test_what_is_embedded_may_be_texts_and_tokens_in_turn_and_objects() -> None:
    pooler = FakePooler()
    async with in_memory(state_of(model_of(pooler, config()))) as client:

        async def prompts(content: Any, field: str = "content") -> list[list[int]]:
            before = len(pooler.streams)
            found = await client.post("/embedding", json={field: content})
            assert found.status_code == 200, found.text
            assert [one["index"] for one in found.json()] == list(range(len(found.json())))
            return [list(stream.prompt) for stream in pooler.streams[before:]]

        (text,) = await prompts("a b")
        (other,) = await prompts("c")
        assert await prompts({"prompt_string": "a b"}) == [text]
        assert await prompts([{"prompt_string": "a b"}, "c"], "input") == [text, other]
        parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
        assert await prompts({"content": parts}) == await prompts([{"content": parts}]) == [text]
        assert await prompts(["a b", 3, 4]) == [[*text, 3, 4]]
        assert await prompts(["a b", [3, 4], [3, "c"]]) == [text, [3, 4], [3, *other[1:-1]]]
        for content, field in (
            ([[3], 4], "content[1]"),
            ([], "content"),
            ([{"prompt_string": "a", "multimodal_data": ["x"]}], "content[0].multimodal_data"),
            ({"content": []}, "content.prompt_string"),
            ({"content": [{"type": "image_url"}]}, "content.content[0].type"),
        ):
            refused = await client.post("/embedding", json={"content": content})
            assert refused.status_code == 400
            assert f"`{field}`" in refused.json()["error"]["message"]


async def test_adapters_are_listed_by_their_names() -> None:
    adapters = AdapterRegistry()
    adapters.add(AdapterRef(1, "pirate", "/srv/pirate"))
    registry = ModelRegistry([ServedModel("chat", ("fake",))], adapters)
    async with in_memory(fake_state(registry=registry)) as client:
        assert (await client.get("/lora-adapters")).json() == [{"id": 0, "path": "pirate", "scale": 0.0}]


@pytest.mark.parametrize("path", ["/props", "/lora-adapters", "/slots/0?action=save"])
async def test_what_is_not_done_here_names_the_alternative(path: str) -> None:
    error = (await post(path=path, status=400)).json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("This server does not do that: ")
