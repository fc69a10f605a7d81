"""Ollama's API over a fake engine, asked by Ollama's own client."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from msgspec.structs import replace

from stentor.engine.loading.checkpoint import Checkpoint
from stentor.engine.loading.generation_config import GenerationConfig
from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.server.app.application import create_app
from stentor.server.app.state import ServerState
from stentor.server.config.media import MediaConfig, MediaCounts
from stentor.server.config.model_facts import ModelFacts, facts_of
from stentor.server.http import sse
from stentor.server.media.collect import Accepted
from stentor.server.middleware.access_control import AccessControl
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.renderers.choose import TemplateRenderer
from stentor.server.text.renderers.interface import RenderRequest
from stentor.tests.fakes import FakeEngine, byte_pool, fake_state, says
from stentor.tests.server.harness import HELLO, in_memory
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.server.pooling.pooler import FakePooler, config, model_of, state_of
from stentor.tests.server.test_infill import with_tokens

pytestmark = pytest.mark.anyio

QWEN = OutputFormat(REASONING_FORMATS["qwen3"], TOOL_FORMATS["hermes"])
SAID = (
    "<think>\nHm, héllo.\n</think>\n\nI look. "
    '<tool_call>\n{"name": "look", "arguments": {"at": "the 😀 sky"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def look(at: str = "here") -> str:
    """Looks.

    Args:
        at: where
    """
    return at


@asynccontextmanager
async def asking(state: ServerState) -> AsyncIterator[ollama.AsyncClient]:
    """The client of Ollama's makers, without a socket."""
    async with ollama.AsyncClient("http://server", transport=httpx.ASGITransport(create_app(state))) as client:
        yield client


def prompt_of(engine: FakeEngine) -> str:
    return bytes(engine.streams[-1].prompt).decode()


# ---- answers


async def test_a_chat_is_answered_whole_and_says_what_it_took() -> None:
    engine = FakeEngine(answer=says("Yes."))
    async with asking(fake_state(engine)) as client:
        answer = await client.chat("fake", HELLO)
    assert (answer.message.role, answer.message.content) == ("assistant", "Yes.")
    assert (answer.model, answer.done, answer.done_reason) == ("fake", True, "stop")
    assert answer.created_at is not None
    assert answer.created_at.endswith("Z")
    assert answer.prompt_eval_count == len(engine.streams[0].prompt)
    assert answer.eval_count == 5, "the EOS was delivered too"
    assert (answer.load_duration, answer.prompt_eval_duration) == (500_000_000, 250_000_000), "the engine's seconds"
    assert answer.total_duration is not None
    assert answer.eval_duration is not None
    assert answer.total_duration >= answer.eval_duration > 0


@pytest.mark.parametrize("burst", [1, 3, 7])
async def test_a_stream_comes_to_the_whole_answer(burst: int) -> None:
    engine = FakeEngine(max_model_len=2048, answer=says(SAID))
    engine.burst = burst
    async with asking(fake_state(engine, output=QWEN)) as client:
        whole = await client.chat("fake", HELLO, tools=[look])
        chunks = [chunk async for chunk in await client.chat("fake", HELLO, tools=[look], stream=True)]
    assert whole.message.content is not None
    assert whole.message.content.strip() == "I look."
    assert whole.message.thinking is not None
    assert whole.message.thinking.strip() == "Hm, héllo."
    assert whole.message.tool_calls is not None
    assert [call.function.arguments for call in whole.message.tool_calls] == [{"at": "the 😀 sky"}, {}]
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content
    assert "".join(chunk.message.thinking or "" for chunk in chunks) == whole.message.thinking
    assert [call for chunk in chunks for call in chunk.message.tool_calls or ()] == whole.message.tool_calls
    assert (chunks[-1].done_reason, chunks[-1].eval_count) == (whole.done_reason, whole.eval_count)


async def test_a_stream_is_what_comes_unless_the_client_says_otherwise_a_line_a_chunk() -> None:
    async with in_memory(fake_state()) as client:
        options = {"num_predict": 3}
        response = await client.post("/api/chat", json={"model": "fake", "messages": HELLO, "options": options})
    assert response.headers["content-type"] == "application/x-ndjson"
    chunks = [json.loads(line) for line in response.text.splitlines()]
    assert chunks[-1]["done_reason"] == "length"
    assert all(chunk.keys() == {"model", "created_at", "message", "done"} for chunk in chunks[:-1])


async def test_a_prompt_is_answered_by_the_template_or_raw_as_it_stands() -> None:
    engine = FakeEngine(answer=says("ok"))
    async with asking(fake_state(engine)) as client:
        answer = await client.generate("fake", "hello", system="Be brief.")
        assert (answer.response, prompt_of(engine)) == ("ok", "<system>Be brief.\n<user>hello\n<assistant>")
        raw = await client.generate("fake", "hello", raw=True)
        assert (raw.response, prompt_of(engine)) == ("ok", "hello")
        chunks = [chunk async for chunk in await client.generate("fake", "hello", raw=True, stream=True)]
    assert "".join(chunk.response or "" for chunk in chunks) == "ok"
    assert chunks[-1].prompt_eval_count == 5


@pytest.mark.parametrize("raw", [False, True])
async def test_an_answer_has_as_many_tokens_as_the_context_has_room_for(raw: bool) -> None:
    engine = FakeEngine(max_model_len=64)
    engine.burst = 64
    async with asking(fake_state(engine)) as client:
        for options in ({}, {"num_predict": -1}, {"num_predict": 9999}):
            answer = await client.generate("fake", "hello", raw=raw, options=options)
            assert answer.done_reason == "length"
            assert (answer.eval_count or 0) + (answer.prompt_eval_count or 0) == 64


async def test_options_reach_the_engine_and_those_of_loading_change_nothing() -> None:
    engine = FakeEngine(answer=says("ok"))
    options = {
        **{"num_predict": 7, "temperature": 0.5, "top_k": 9, "top_p": 0.8, "min_p": 0.1, "repeat_penalty": 1.2},
        **{"presence_penalty": 0.3, "frequency_penalty": 0.4, "seed": 5, "stop": ["x"], "num_ctx": 9, "mirostat": 0},
    }
    async with asking(fake_state(engine)) as client:
        await client.chat("fake", HELLO, options=options, keep_alive="5m")
        params = engine.streams[0].params
        assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (7, 0.5, 9, 0.8)
        assert (params.min_p, params.repetition_penalty) == (0.1, 1.2)
        assert (params.presence_penalty, params.frequency_penalty) == (0.3, 0.4)
        assert engine.submitted[0][0] == [5]
        stopped = await client.chat("fake", HELLO, options={"stop": "k", "seed": -1})
    assert stopped.message.content == "o"


async def test_conversations_reach_the_model_with_thoughts_calls_and_results() -> None:
    seen = SeenMessages(byte_pool())
    messages: Any = [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": "",
            "thinking": "Hm.",
            "tool_calls": [
                {"function": {"name": "look", "arguments": {"at": "up"}}},
                {"function": {"name": "hear", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "noise", "tool_name": "hear"},
        {"role": "tool", "content": "sky"},
    ]
    async with asking(fake_state(FakeEngine(answer=says("ok")), renderer=seen)) as client:
        await client.chat("fake", messages)
    called = seen.messages[1]
    assert called["reasoning_content"] == "Hm."
    ids = {call["function"]["name"]: call["id"] for call in called["tool_calls"]}
    assert [message["tool_call_id"] for message in seen.messages[2:]] == [ids["hear"], ids["look"]]


async def test_a_last_message_of_the_assistant_s_is_continued() -> None:
    engine = FakeEngine(answer=says("ok"))
    async with asking(fake_state(engine)) as client:
        await client.chat("fake", [*HELLO, {"role": "assistant", "content": "It is"}])
    assert prompt_of(engine) == "<user>hello\n<assistant>It is"


async def test_a_format_is_a_grammar() -> None:
    engine = FakeEngine(answer=says('{"city": "Rome"}'))
    async with asking(fake_state(engine)) as client:
        await client.chat("fake", HELLO, format="json")
        await client.generate("fake", "hello", format=SCHEMA, raw=True)
    assert len(engine.grammars) == 2
    assert all(engine.grammars)


async def test_thinking_is_switched_and_hidden_where_it_is_not_wanted() -> None:
    seen = SeenMessages(byte_pool())
    engine = FakeEngine(max_model_len=2048, answer=says("<think>\nHm.\n</think>\n\nYes."))
    async with asking(fake_state(engine, renderer=seen, output=QWEN)) as client:
        answer = await client.chat("fake", HELLO, think=False)
        assert answer.message.thinking is None
        answer = await client.chat("fake", HELLO, think="low")
        assert answer.message.thinking is not None
        generated = await client.generate("fake", "hello", think=True)
        assert generated.thinking is not None


async def test_a_model_that_does_not_think_says_so_when_it_is_asked_to() -> None:
    async with asking(fake_state()) as client:
        with pytest.raises(ollama.ResponseError, match='"fake" does not support thinking') as refused:
            await client.chat("fake", HELLO, think=True)
        assert refused.value.status_code == 400
        assert (await client.chat("fake", HELLO, think=False, options={"num_predict": 2})).done


async def test_log_probabilities_are_told_streamed_and_whole() -> None:
    async with asking(fake_state(FakeEngine(answer=says("ok")))) as client:
        whole = await client.chat("fake", HELLO, logprobs=True, top_logprobs=2)
        chunks = [chunk async for chunk in await client.chat("fake", HELLO, stream=True, logprobs=True)]
        raw = await client.generate("fake", "hello", raw=True, logprobs=True)
    assert whole.logprobs is not None
    assert [each.token for each in whole.logprobs[:2]] == ["o", "k"]
    assert [len(each.top_logprobs or ()) for each in whole.logprobs] == [2, 2, 2]
    streamed = [each.token for chunk in chunks for each in chunk.logprobs or ()]
    assert streamed == [each.token for each in whole.logprobs]
    assert raw.logprobs is not None
    assert [each.token for each in raw.logprobs] == streamed


class SeenMessages(TemplateRenderer):
    """Renders the texts, and remembers all."""

    messages: list[Any]

    async def render(self, request: RenderRequest) -> list[int]:
        self.messages = [dict(message) for message in request.messages]
        texts = [{"role": message["role"], "content": "x", "tool_call_id": "1"} for message in request.messages]
        return await super().render(replace(request, messages=texts))

    def takes_tools(self, chat_template: str | None) -> bool:
        return True


async def test_images_stand_before_the_text_where_the_model_sees_and_are_refused_by_place_where_not() -> None:
    seen = SeenMessages(byte_pool())
    state = fake_state(FakeEngine(answer=says("ok")), renderer=seen)
    sees = Accepted.of(MediaSpec({"image": 5}), MediaConfig(counts=MediaCounts(image=2)))
    seeing = replace(state, chat=replace(state.chat, accepted=sees))
    message = {"role": "user", "content": "What is this?", "images": [b"\x00" * 3, "AAAA"]}
    async with asking(seeing) as client:
        await client.chat("fake", [message])
        assert [part["type"] for part in seen.messages[0]["content"]] == ["image", "image", "text"]
        await client.generate("fake", "What?", images=["AAAA"])
        assert [part["type"] for part in seen.messages[0]["content"]] == ["image", "text"]
    async with asking(state) as client:
        with pytest.raises(ollama.ResponseError, match=r"`messages\[0\]\.images\[0\]`: the model takes no images"):
            await client.chat("fake", [message])


# ---- models


async def test_models_go_by_their_names_with_and_without_the_tag_that_clients_add() -> None:
    async with asking(fake_state(FakeEngine(answer=says("ok")))) as client:
        assert (await client.chat("fake:latest", HELLO)).model == "fake:latest"
        assert (await client.show("fake/model:latest")).capabilities == ["completion"]
        with pytest.raises(ollama.ResponseError, match=r"The model `none:7b` does not exist\.") as refused:
            await client.chat("none:7b", HELLO)
    assert refused.value.status_code == 404


async def test_models_are_listed_shown_and_loaded_for_ever() -> None:
    state = fake_state(output=QWEN)
    facts = ModelFacts("Qwen3MoeForCausalLM", "safetensors", "bfloat16", 9 << 30, 4_500_000_000, 2048)
    state = replace(state, chat=replace(state.chat, facts=facts))
    async with asking(state) as client:
        listed = (await client.list()).models
        assert [model.model for model in listed] == ["fake/model", "fake"]
        assert listed[0].details is not None
        assert (listed[0].details.family, listed[0].details.parameter_size) == ("qwen3moe", "4.5B")
        assert listed[0].size == 9 << 30
        shown = await client.show("fake")
        assert shown.capabilities == ["completion", "tools", "thinking"]
        assert shown.modelinfo is not None
        assert shown.modelinfo["general.architecture"] == "qwen3moe"
        assert shown.modelinfo["qwen3moe.context_length"] == 512
        assert "<assistant>" in (shown.template or "")
        running = (await client.ps()).models
        assert [(model.name, model.context_length) for model in running] == [("fake/model", 512), ("fake", 512)]
        assert running[0].expires_at is not None
        assert running[0].expires_at.year == 9999


async def test_an_embedding_model_is_listed_with_its_size_type_and_parameters() -> None:
    stored = {"float32": 4 * 22_700_000, "I64": 8 * 512}
    read = Checkpoint("safetensors", Path(), (), config(), "float32", GenerationConfig(()), stored)
    async with asking(state_of(model_of(FakePooler(), config(), facts=facts_of(read)))) as client:
        for listed in ((await client.list()).models, (await client.ps()).models):
            model = next(each for each in listed if each.model == "vectors")
            assert model.size == sum(stored.values())
            assert model.details is not None
            assert (model.details.format, model.details.family) == ("safetensors", "bert")
            assert (model.details.parameter_size, model.details.quantization_level) == ("22.7M", "float32")


async def test_a_request_without_a_prompt_loads_the_model_which_is_there() -> None:
    engine = FakeEngine()
    async with asking(fake_state(engine)) as client:
        assert (await client.generate("fake")).done_reason == "load"
        assert (await client.generate("fake", keep_alive=0)).done_reason == "unload"
        loaded = [chunk async for chunk in await client.chat("fake", stream=True)]
    assert [(chunk.done, chunk.done_reason, chunk.message.content) for chunk in loaded] == [(True, "load", "")]
    assert not engine.streams


async def test_pulling_what_is_served_succeeds_and_all_else_says_what_to_do_instead() -> None:
    async with asking(fake_state()) as client:
        assert (await client.pull("fake")).status == "success"
        with pytest.raises(ollama.ResponseError, match="start the server with `stentor serve MODEL`"):
            await client.pull("llama3")
        for refused in (
            client.create("mine", from_="fake"),
            client.copy("fake", "mine"),
            client.push("fake"),
            client.delete("fake"),
        ):
            with pytest.raises(ollama.ResponseError, match=r"stentor serve|not pushed from here"):
                await refused


async def test_texts_are_embedded_in_vectors_of_length_1() -> None:
    pooler = FakePooler()
    vectors = model_of(pooler, config(matryoshka=True))
    async with asking(state_of(vectors)) as client:
        answer = await client.embed("vectors", ["a b", "c"], dimensions=4)
        assert [len(each) for each in answer.embeddings] == [4, 4]
        assert answer.prompt_eval_count == 7
        assert pooler.streams[0].pooling.normalize
        one = await client.embed("vectors:latest", "a b " * 40)
        assert len(one.embeddings) == 1
        with pytest.raises(ollama.ResponseError, match=r"`input.* or set `truncate` to have the rest cut off"):
            await client.embed("vectors", "a b " * 40, truncate=False)
        assert (await client.embed("vectors", "")).embeddings == []
        assert len((await client.embeddings("vectors", "a b")).embedding) == 8
        with pytest.raises(ollama.ResponseError, match="`fake/model` is a chat model; this needs an embedding model"):
            await client.embed("fake/model", "a")
        assert (await client.show("vectors")).capabilities == ["embedding"]


async def test_the_version_is_one_that_clients_take() -> None:
    async with in_memory(fake_state()) as client:
        assert (await client.get("/api/version")).json() == {"version": "0.12.11"}


# ---- errors


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"options": {"temperature": 9}}, "options.temperature"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"typical_p": 0.5}}, "options.typical_p"),
        ({"options": {"repeat_penalty": -1}}, "options.repeat_penalty"),
        ({"format": "xml"}, "format"),
        ({"format": {"type": "nonsense"}}, "format"),
        ({"think": "very"}, "think"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}, {"role": "user", "images": "x"}]}, "messages[1].images"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ],
)
async def test_what_is_refused_is_named_in_ollama_s_words_and_shape(body: dict[str, Any], field: str) -> None:
    async with in_memory(fake_state()) as client:
        response = await client.post("/api/chat", json={"model": "fake", "messages": HELLO, **body})
    assert response.status_code == 400
    (message,) = response.json().values()
    assert response.json().keys() == {"error"}
    assert f"`{field}" in message


@pytest.mark.parametrize("field", ["template", "context", "width"])
async def test_what_a_prompt_may_not_bring_is_refused_by_name(field: str) -> None:
    value: Any = {"template": "{{ .Prompt }}", "context": [1], "width": 9}[field]
    async with asking(fake_state()) as client:
        with pytest.raises(ollama.ResponseError, match=f"`{field}` is not supported"):
            await client.generate("fake", "hello", **{field: value})


async def test_every_error_below_the_path_has_the_shape() -> None:
    async with in_memory(fake_state(access=AccessControl(keyring("secret")))) as client:
        for path in ("/api/chat", "/api/tags", "/api/nothing"):
            response = await client.get(path)
            assert response.status_code == 401
            assert response.json().keys() == {"error"}
    async with in_memory(fake_state()) as client:
        assert (await client.get("/api/nothing")).json() == {"error": "There is no route for GET /api/nothing."}
        assert (await client.post("/api/chat", content=b"{")).json().keys() == {"error"}


async def test_a_failure_in_a_stream_is_a_line_and_the_last() -> None:
    broken = FakeEngine()

    async def fail() -> None:
        broken.failure = "0xdeadbeef" if broken.streams and broken.streams[0]._prompt_done else None

    broken.pace = fail  # type: ignore[method-assign]
    async with asking(fake_state(broken)) as client:
        with pytest.raises(ollama.ResponseError, match="The generation failed"):
            [chunk async for chunk in await client.chat("fake", HELLO, stream=True)]


async def test_a_long_silence_is_broken_by_chunks_that_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(answer=says("ok"))
    engine.delay = 0.03
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.005)
    async with asking(fake_state(engine)) as client:
        chunks = [chunk async for chunk in await client.chat("fake", HELLO, stream=True)]
    assert chunks[0].message.content == ""
    assert "".join(chunk.message.content or "" for chunk in chunks) == "ok"


async def test_a_suffix_is_filled_in_before_by_models_made_for_that() -> None:
    pool = TokenizerPool(with_tokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"))
    engine = FakeEngine(answer=says("mid"))
    async with asking(fake_state(engine, pool=pool, vocab_size=300)) as client:
        assert (await client.generate("fake", "a", "b")).response == "mid"
        assert "insert" in ((await client.show("fake")).capabilities or ())
    assert engine.streams[0].prompt == [258, ord("a"), 259, ord("b"), 260]
    async with asking(fake_state()) as client:
        with pytest.raises(ollama.ResponseError, match=r"`suffix`: the model has no tokens"):
            await client.generate("fake", "a", "b")
