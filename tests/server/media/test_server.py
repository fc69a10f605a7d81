"""Requests with pictures over HTTP, as far as the engine: what it is given, what clients are told."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from safetensors.numpy import load

from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.server.app.state import ServerState
from stentor.tests.fakes import FakeEngine
from stentor.tests.server.harness import CHAT, chunks_of, in_memory
from stentor.tests.server.media.opened import PictureServer
from stentor.tests.server.media.pictures import png
from stentor.tests.support.vision_models import VOCAB, qwen2_5_vl, token

Use = Callable[[httpx.AsyncClient, ServerState, FakeEngine], Awaitable[object]]
IMAGE = token("<|image_pad|>")
SPEC = MediaSpec({"image": IMAGE, "video": token("<|video_pad|>")})


@pytest.fixture(scope="module")
def run_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Use], None]]:
    """Runs a test with a server of a vision model, whose process lives from test to test."""
    folder = tmp_path_factory.mktemp("qwen2_5_vl")
    qwen2_5_vl(folder)
    server = PictureServer(folder, SPEC, VOCAB, CacheGroup("cross", capacity=1024), 2048)

    async def body(use: Use) -> None:
        async with in_memory(server.state) as client:
            await use(client, server.state, server.engine)

    with asyncio.Runner() as runner:
        yield lambda use: runner.run(body(use))
        server.close()


def image(data: bytes, **fields: object) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def asked(*parts: dict[str, Any] | str, **fields: object) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"model": "fake", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}


def test_the_engine_is_given_pictures_where_they_stand_and_usage_counts_them(run_shared: Callable[[Use], None]) -> None:
    async def use(client: httpx.AsyncClient, state: ServerState, engine: FakeEngine) -> None:
        body = asked(image(png(40, 30)), "and", image(png(64, 64)))
        response = await client.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["message"]["content"] == "a cat"
        prompt, (first, second) = engine.streams[-1].prompt, engine.media[-1]
        assert [each.grid for each in (first, second)] == [(1, 4, 5), (1, 8, 8)]
        for each in (first, second):
            assert prompt[each.start : each.start + each.length] == [IMAGE] * each.length
            assert load(bytes(each.data)).keys() == {"pixel_values", "image_grid_thw"}
        usage = response.json()["usage"]
        assert usage["prompt_tokens"] == len(prompt)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "image_tokens": 84}
        streamed = await client.post(CHAT, json={**body, "stream": True, "stream_options": {"include_usage": True}})
        assert chunks_of(streamed.text)[-1]["usage"] == usage
        assert engine.media[-1] == (first, second), "the same pictures have the same digests"
        plain = await client.post(CHAT, json=asked("hello"))
        assert plain.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert not engine.media[-1]
        page = (await client.get("/metrics")).text
        assert 'stentor:mm_cache_queries_total{model_name="fake/model"} 4.0' in page
        assert 'stentor:mm_cache_hits_total{model_name="fake/model"} 2.0' in page
        assert state.admission.memory.bytes == 0, "what was held for them is given back"

    run_shared(use)


def test_tokens_of_media_are_counted_for_whoever_asks(run_shared: Callable[[Use], None]) -> None:
    async def use(client: httpx.AsyncClient, state: ServerState, engine: FakeEngine) -> None:
        body = asked(image(png(40, 30)), "what is this?")
        await client.post(CHAT, json=body)
        prompt = engine.streams[-1].prompt
        tokens = (await client.post("/tokenize", json={name: body[name] for name in ("model", "messages")})).json()
        assert tokens["tokens"] == prompt
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(40, 30)).decode()}
        content = [{"type": "image", "source": source}, {"type": "text", "text": "what is this?"}]
        counted = await client.post(
            "/v1/messages/count_tokens",
            json={"model": "fake", "messages": [{"role": "user", "content": content}]},
        )
        assert counted.json() == {"input_tokens": len(prompt)}

    run_shared(use)


def test_every_protocol_brings_pictures_to_the_engine(run_shared: Callable[[Use], None]) -> None:
    async def use(client: httpx.AsyncClient, state: ServerState, engine: FakeEngine) -> None:
        await client.post(CHAT, json=asked(image(png(40, 30)), "hi"))
        (wanted,) = engine.media[-1]
        url = image(png(40, 30))["image_url"]["url"]
        content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "hi"}]
        response = await client.post(
            "/v1/responses", json={"model": "fake", "input": [{"role": "user", "content": content}]}
        )
        assert response.json()["status"] == "completed", response.text
        assert [each._replace(field=wanted.field) for each in engine.media[-1]] == [wanted]
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        blocks = [{"type": "image", "source": source}, {"type": "text", "text": "hi"}]
        message = await client.post(
            "/v1/messages", json={"model": "fake", "max_tokens": 8, "messages": [{"role": "user", "content": blocks}]}
        )
        assert message.json()["stop_reason"] == "end_turn", message.text
        assert [each._replace(field=wanted.field) for each in engine.media[-1]] == [wanted]

    run_shared(use)


@pytest.mark.parametrize(
    ("parts", "fields", "param", "says"),
    [
        (["hi", image(b"none")], {}, "messages[0].content[1].image_url.url", "no image that can be read"),
        ([image(png(9, 9)), "<|image_pad|>"], {}, "messages[0].content[1]", "leave it out of texts"),
        (
            [{"type": "image_url", "image_url": None, "uuid": "cat"}],
            {},
            "messages[0].content[0].image_url",
            "nothing is kept under this uuid",
        ),
        (
            [image(png(9, 9))],
            {"mm_processor_kwargs": {"crop_size": 3}},
            "mm_processor_kwargs.crop_size",
            "is not taken",
        ),
        (
            [image(png(9, 9))],
            {"mm_processor_kwargs": {"max_pixels": -1}},
            "mm_processor_kwargs.max_pixels",
            "must be a whole number",
        ),
        (
            [image(png(9, 9))],
            {"mm_processor_kwargs": {"do_pan_and_scan": True}},
            "mm_processor_kwargs",
            "has no do_pan_and_scan",
        ),
        ([image(png(9, 9))], {"media_io_kwargs": {"audio": {}}}, "media_io_kwargs.audio", "is not taken"),
        ([image(png(9, 9))], {"media_io_kwargs": {"video": {"a": 1}}}, "media_io_kwargs.video.a", "known are"),
        (["hi"], {"mm_processor_kwargs": {"size": 5}}, "mm_processor_kwargs.size", "must be an object"),
        (["hi"], {"media_io_kwargs": {"video": None}}, "media_io_kwargs.video", "is not taken"),
        ([image(png(64, 64)), "hi"], {"truncate_prompt_tokens": 40}, "truncate_prompt_tokens", "cuts through"),
    ],
)
def test_what_is_refused_names_its_field(
    run_shared: Callable[[Use], None], parts: list[Any], fields: dict[str, Any], param: str, says: str
) -> None:
    async def use(client: httpx.AsyncClient, state: ServerState, engine: FakeEngine) -> None:
        response = await client.post(CHAT, json=asked(*parts, **fields))
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param
        assert says in error["message"]
        assert state.admission.memory.bytes == 0

    run_shared(use)


def test_a_request_says_how_finely_its_pictures_are_seen(run_shared: Callable[[Use], None]) -> None:
    async def use(client: httpx.AsyncClient, state: ServerState, engine: FakeEngine) -> None:
        await client.post(CHAT, json=asked(image(png(64, 64))))
        (whole,) = engine.media[-1]
        for body in (
            asked(image(png(64, 64)), mm_processor_kwargs={"max_pixels": 1024}),
            asked(image(png(64, 64)), mm_processor_kwargs={"images_kwargs": {"size": {"longest_edge": 1024}}}),
        ):
            assert (await client.post(CHAT, json=body)).status_code == 200
            (coarse,) = engine.media[-1]
            assert 0 < coarse.length < whole.length
        asked_of_chat = engine.media[-1][0].length
        url = image(png(64, 64))["image_url"]["url"]
        turn = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
        body = {"model": "fake", "input": [turn], "mm_processor_kwargs": {"max_pixels": 1024}}
        assert (await client.post("/v1/responses", json=body)).status_code == 200
        assert engine.media[-1][0].length == asked_of_chat
        refused = await client.post("/v1/responses", json={**body, "media_io_kwargs": {"audio": {}}})
        assert refused.json()["error"]["param"] == "media_io_kwargs.audio"
        await client.post(CHAT, json=asked(image(png(64, 64), detail="high")))
        assert engine.media[-1] == (whole,)

    run_shared(use)


def test_a_picture_sent_once_need_not_be_sent_again(run_shared: Callable[[Use], None]) -> None:
    async def use(client: httpx.AsyncClient, state: ServerState, engine: FakeEngine) -> None:
        sent = await client.post(CHAT, json=asked({**image(png(40, 30)), "uuid": "dog"}, "hi"))
        assert sent.status_code == 200
        first = engine.media[-1]
        again = await client.post(CHAT, json=asked({"type": "image_url", "image_url": None, "uuid": "dog"}, "hi"))
        assert again.status_code == 200, again.text
        assert [each._replace(field="") for each in engine.media[-1]] == [each._replace(field="") for each in first]

    run_shared(use)


def test_an_engine_without_its_encoder_is_told(run_shared: Callable[[Use], None]) -> None:
    async def use(client: httpx.AsyncClient, state: ServerState, engine: FakeEngine) -> None:
        assert engine.ready is not None
        sees, engine.ready = engine.ready, msgspec.structs.replace(engine.ready, groups=(CacheGroup("full"),))
        response = await client.post(CHAT, json=asked(image(png(40, 30))))
        engine.ready = sees
        assert response.status_code == 400
        assert "served without its encoder" in response.json()["error"]["message"]

    run_shared(use)


def test_a_file_is_read_as_text_and_pictures_of_it_are_seen(run_shared: Callable[[Use], None]) -> None:
    async def use(client: httpx.AsyncClient, state: ServerState, engine: FakeEngine) -> None:
        content = base64.b64encode(b"a plain text").decode()
        named = {"type": "file", "file": {"file_data": f"data:text/plain;base64,{content}", "filename": "a.txt"}}
        assert (await client.post(CHAT, json=asked(named))).status_code == 200
        assert "a.txt\n\na plain text" in await state.chat.pool.decode(engine.streams[-1].prompt)
        drawn = base64.b64encode(png(40, 30)).decode()
        seen = {"type": "file", "file": {"file_data": f"data:image/png;base64,{drawn}"}}
        assert (await client.post(CHAT, json=asked(seen))).status_code == 200
        assert [each.grid for each in engine.media[-1]] == [(1, 4, 5)]

    run_shared(use)
