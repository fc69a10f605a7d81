"""Adapters over HTTP: named as models by every protocol, listed, loaded and unloaded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.actors import Stats
from stentor.protocols.openai.realtime.session import RealtimeSession
from stentor.server.api.realtime.connections.serving import ServedModels
from stentor.server.api.realtime.conversation.session import SessionRules
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.transcribing import ModelTranscriber
from stentor.server.app.state import ServerState
from stentor.server.config.adapters import AdapterModule, AdapterRegistry, AdaptersConfig
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.middleware.access_control import AccessControl
from stentor.server.observability.figures import AdapterFigures
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.asr.scripted import ScriptedEngine, model_of, sound
from stentor.tests.server.asr.test_http import TRANSCRIPTIONS, TRANSLATIONS, WavReader, hears, post
from stentor.tests.server.batches import test_batches as batches
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.server.pooling import pooler
from stentor.tests.server.pooling.pooler import NAME, FakePooler, config, state_of
from stentor.tests.server.realtime.session_fakes import Running, voice_state
from stentor.tests.server.realtime.test_text_sessions import user

pytestmark = pytest.mark.anyio

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def write(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


@asynccontextmanager
async def serving(
    folder: Path | None = None, **modules: str
) -> AsyncIterator[tuple[httpx.AsyncClient, FakeEngine, ServerState]]:
    engine = FakeEngine(answer=says("hello there"))
    registry = ModelRegistry([], AdapterRegistry(modules, folder))
    access = AccessControl(keys=keyring("user", admin=("root",)))
    state = fake_state(engine, access=access, registry=registry)
    async with in_memory(state) as client:
        client.headers["authorization"] = "Bearer root"
        yield client, engine, state


def error(response: httpx.Response) -> tuple[int, str, str]:
    found = response.json()["error"]
    return response.status_code, found["type"], found["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO}),
        (COMPLETIONS, {"prompt": "hello"}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}),
    ],
)
async def test_every_protocol_names_an_adapter_as_its_model(path: str, body: dict[str, Any], tmp_path: Path) -> None:
    async with serving(one=str(write(tmp_path / "one"))) as (client, engine, state):
        for model in ("one", "fake", "one"):
            answer = await client.post(path, json={"model": model, **body})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == model
        (one,) = state.registry.adapters
        assert engine.adapters == [one, None, one]


async def test_an_adapter_s_name_wins_over_a_pattern(tmp_path: Path) -> None:
    engine = FakeEngine(answer=says("hello there"))
    models = [ServedModel("chat", ("fake/model",), patterns=("*",))]
    adapters = AdapterRegistry({"one": str(write(tmp_path / "modules" / "one"))}, tmp_path / "modules")
    write(tmp_path / "modules" / "two")
    async with in_memory(fake_state(engine, registry=ModelRegistry(models, adapters))) as client:
        for model in ("one", "two", "three"):
            answer = await client.post(CHAT, json={"model": model, "messages": HELLO})
            assert answer.json()["model"] == model
    assert [None if each is None else each.name for each in engine.adapters] == ["one", "two", None]


async def test_a_batch_names_an_adapter_line_by_line(tmp_path: Path) -> None:
    engine = FakeEngine(answer=says("hello there"))
    adapters = AdapterRegistry({"one": str(write(tmp_path / "one"))})
    state = fake_state(engine, registry=ModelRegistry([], adapters))
    async with batches.served(state) as client:
        data = b"\n".join(batches.lines(name, body={**batches.CHAT, "model": name}) for name in ("one", "fake"))
        batch = await batches.begun(client, data)
        done = await batches.ended(client, batch.id, "completed")
        answers = await batches.read(client, done.output_file_id)
    assert [answer["response"]["status_code"] for answer in answers] == [200, 200]
    assert {answer["custom_id"]: answer["response"]["body"]["model"] for answer in answers} == {
        "one": "one",
        "fake": "fake",
    }
    (one,) = adapters
    assert sorted(engine.adapters, key=bool) == [None, one]


def session_of(model: str, rules: SessionRules) -> RealtimeSession:
    return rules.realtime("sess_1", model, 1)


async def test_a_realtime_session_has_the_adapter_that_it_names(tmp_path: Path) -> None:
    engine = FakeEngine(answer=says("Yes."), max_model_len=512)
    adapters = AdapterRegistry({"one": str(write(tmp_path / "one"))})
    models = [ServedModel("transcription", ("fake-whisper",))]
    for name in ("one", "fake"):
        state = voice_state(engine, speaks=False, registry=ModelRegistry(models, adapters))
        running = Running(state, partial(session_of, name))
        running.start()
        created = await running.until("session.created")
        assert created["session"]["model"] == name
        running.say(type="conversation.item.create", item=user("Is it?"))
        running.say(type="response.create")
        done = await running.until("response.done")
        assert done["response"]["status"] == "completed"
        await running.end()
    (one,) = adapters
    assert engine.adapters == [one, None]


async def test_an_adapter_of_a_model_that_embeds_is_named_as_its_model_too(tmp_path: Path) -> None:
    engine = FakePooler()
    adapters = AdapterRegistry({"one": str(write(tmp_path / "one"))}, kind="embedding")
    registry = ModelRegistry([ServedModel("embedding", (NAME,))], adapters)
    state = state_of(pooler.model_of(engine, config()), registry=registry)
    async with in_memory(state) as client:
        for path, body in (("/v1/embeddings", {"input": "a b"}), ("/v1/score", {"text_1": "a", "text_2": "b"})):
            for model in ("one", NAME):
                answer = await client.post(path, json={"model": model, **body})
                assert answer.status_code == 200, answer.text
                assert answer.json()["model"] == model
        cards = {card["id"]: card for card in (await client.get("/v1/models")).json()["data"]}
        assert (cards["one"]["parent"], cards["one"]["kind"]) == (NAME, "embedding")
        assert (await client.post(CHAT, json={"model": "one", "messages": HELLO})).status_code == 400
    (one,) = adapters
    assert engine.adapters == [one, None, one, one, None, None]


async def test_a_transcription_model_has_adapters_too_which_files_and_sessions_name(tmp_path: Path) -> None:
    paths = {name: str(write(tmp_path / name)) for name in ("chatting", "hearing")}
    adapters = AdapterRegistry(paths, kinds={"hearing": "transcription"})
    models = [ServedModel("chat", ("fake/model", "fake")), ServedModel("transcription", ("whisper",))]
    model = model_of(hears)
    engine = model.client
    assert isinstance(engine, ScriptedEngine)
    registry = ModelRegistry(models, adapters)
    runners = {"transcription": engine}
    state = fake_state(registry=registry, transcription=model, runners=runners, decoder=WavReader())  # type: ignore
    _, hearing = adapters
    for name, status, adapter in (("hearing", 200, hearing), ("whisper", 200, None), ("chatting", 400, None)):
        engine.asked.clear()
        for path in (TRANSCRIPTIONS, TRANSLATIONS):
            assert (await post(state, [("model", name)], path=path)).status_code == status
        assert {asked.adapter for asked in engine.asked} == ({adapter} if status == 200 else set())
    engine.asked.clear()
    assert ServedModels(state.for_realtime).transcription_model("hearing", "model") == "hearing"
    transcribe = ModelTranscriber(model, state.metrics.realtime.passes, adapter_of=registry.adapter_of)
    for name in ("hearing", "whisper"):
        settings = TranscriptionSettings(language="de", model=name)
        await transcribe(sound(1), settings, continued="", final=True)
    assert [asked.adapter for asked in engine.asked] == [hearing, None]


def test_an_adapter_is_for_the_model_that_it_names(tmp_path: Path) -> None:
    path = str(write(tmp_path / "one"))
    modules = AdaptersConfig((AdapterModule("a", path), AdapterModule("b", path, "whisper")))
    known = modules.registry(enabled=True, kinds={"whisper": "transcription"})
    assert [known.kind_of(name) for name in ("a", "b")] == ["chat", "transcription"]
    with pytest.raises(CheckpointError, match="base_model_name is 'whisper'"):
        modules.registry(enabled=True)


async def test_adapters_are_listed_with_the_model_that_they_are_added_to(tmp_path: Path) -> None:
    async with serving(one=str(write(tmp_path / "one"))) as (client, _, _):
        cards = {card["id"]: card for card in (await client.get("/v1/models")).json()["data"]}
        assert (cards["one"]["parent"], cards["one"]["root"]) == ("fake/model", str(tmp_path / "one"))
        assert cards["fake"]["parent"] is None
        assert (await client.get("/v1/models/one")).json() == cards["one"]
        unknown = await client.post(CHAT, json={"model": "two", "messages": HELLO})
        assert unknown.status_code == 404


async def test_an_adapter_of_the_folder_is_loaded_when_a_request_first_names_it_and_nothing_outside_ever_is(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    write(root / "one")
    write(tmp_path / "out")
    (root / "linked").symlink_to(tmp_path / "out")
    async with serving(root) as (client, engine, state):
        for name in ("../out", "linked", str(tmp_path / "out"), "one/../../out", ".", "..", "", "one\0"):
            assert (await client.post(CHAT, json={"model": name, "messages": HELLO})).status_code == 404, name
        assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["fake/model", "fake"]
        assert (await client.post(CHAT, json={"model": "one", "messages": HELLO})).status_code == 200
        assert "one" in [card["id"] for card in (await client.get("/v1/models")).json()["data"]]
        assert engine.adapters[-1] == next(iter(state.registry.adapters))


async def test_a_file_of_the_folder_is_an_adapter_with_and_without_its_ending(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "one.gguf").write_bytes(b"GGUF")
    async with serving(tmp_path / "root") as (client, engine, _):
        for name in ("one", "one.gguf"):
            assert (await client.post(CHAT, json={"model": name, "messages": HELLO})).status_code == 200
            assert engine.adapters[-1] is not None
            assert engine.adapters[-1].path == "one.gguf"
        body = {"lora_name": "mine", "lora_path": "one.gguf"}
        assert (await client.post(LOAD, json=body)).status_code == 200


async def test_an_adapter_is_loaded_replaced_and_unloaded_with_vllms_answers(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root / "team" / "one")
    async with serving(root) as (client, engine, state):
        body = {"lora_name": "mine", "lora_path": "team/one"}
        loaded = await client.post(LOAD, json=body)
        assert loaded.status_code == 200
        assert loaded.text == "Success: LoRA adapter 'mine' added successfully."
        assert loaded.headers["content-type"].startswith("text/plain")
        (first,) = state.registry.adapters
        assert engine.loaded == [first]
        again = await client.post(LOAD, json=body)
        assert error(again)[:2] == (400, "InvalidUserInput")
        assert "already been loaded" in error(again)[2]
        absolute = {**body, "lora_path": str(root / "team" / "one"), "load_inplace": True}
        assert (await client.post(LOAD, json=absolute)).status_code == 200
        (second,) = state.registry.adapters
        assert second.number > first.number
        unloaded = await client.post(UNLOAD, json={"lora_name": "mine"})
        assert unloaded.text == "Success: LoRA adapter 'mine' removed successfully."
        assert (await client.post(CHAT, json={"model": "mine", "messages": HELLO})).status_code == 404
        missing = await client.post(UNLOAD, json={"lora_name": "mine"})
        assert error(missing) == (404, "NotFoundError", "The lora adapter 'mine' cannot be found.")


async def test_an_adapter_is_loaded_and_unloaded_with_sglang_s_answers(tmp_path: Path) -> None:
    write(tmp_path / "root" / "one")
    async with serving(tmp_path / "root") as (client, _, state):
        body = {"lora_name": "mine", "lora_path": "one"}
        loaded = await client.post("/load_lora_adapter", json=body)
        assert (loaded.status_code, loaded.json()) == (
            200,
            {"success": True, "loaded_adapters": {"mine": "mine"}, "error_message": None},
        )
        again = await client.post("/load_lora_adapter", json=body)
        assert (again.status_code, again.json()["success"]) == (400, False)
        assert "already been loaded" in again.json()["error_message"]
        unloaded = await client.post("/unload_lora_adapter", json={"lora_name": "mine"})
        assert unloaded.json() == {"success": True, "loaded_adapters": {}, "error_message": None}
        assert "mine" not in state.registry.adapters
        missing = await client.post("/unload_lora_adapter", json={"lora_name": "mine"})
        assert (missing.status_code, missing.json()["success"]) == (400, False)
        typed = await client.post("/load_lora_adapter", json={"lora_name": 3})
        assert error(typed)[:2] == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({}, 400, "InvalidUserInput"),
        ({"lora_name": "a"}, 400, "InvalidUserInput"),
        ({"lora_name": "fake", "lora_path": "one"}, 400, "InvalidUserInput"),
        ({"lora_name": "a", "lora_path": "nobody"}, 404, "NotFoundError"),
        ({"lora_name": "a", "lora_path": "../out"}, 400, "InvalidUserInput"),
        ({"lora_name": "a", "lora_path": "/etc"}, 400, "InvalidUserInput"),
        ({"lora_name": "a", "lora_path": "linked"}, 404, "NotFoundError"),
        ({"lora_name": 3, "lora_path": "one"}, 400, "invalid_request_error"),
    ],
)
async def test_what_cannot_be_loaded_is_refused(body: dict[str, Any], status: int, kind: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root / "one")
    write(tmp_path / "out")
    (root / "linked").symlink_to(tmp_path / "out")
    async with serving(root) as (client, engine, _):
        assert error(await client.post(LOAD, json=body))[:2] == (status, kind)
        assert not engine.loaded


async def test_an_adapter_that_the_worker_refuses_is_not_served(tmp_path: Path) -> None:
    write(tmp_path / "root" / "one")
    async with serving(tmp_path / "root") as (client, engine, state):
        engine.refuses_adapters = "it has rank 64, and the server takes 16"
        refused = await client.post(LOAD, json={"lora_name": "a", "lora_path": "one"})
        assert error(refused) == (400, "InvalidUserInput", engine.refuses_adapters)
        assert "a" not in state.registry.adapters


@pytest.mark.parametrize("path", [LOAD, UNLOAD, "/load_lora_adapter", "/unload_lora_adapter"])
async def test_loading_and_unloading_want_an_admin_key_and_a_folder(path: str) -> None:
    async with serving() as (client, _, _):
        user = {"authorization": "Bearer user"}
        assert (await client.post(path, json={}, headers=user)).status_code == 403
        body = {"lora_name": "a", "lora_path": "b"}
        if path == LOAD:
            assert "--lora-folder" in error(await client.post(path, json=body))[2]


def test_the_metric_names_adapters_that_run_and_wait() -> None:
    registry: Any = type("Registry", (), {"register": lambda self, collector: None})()
    stats = Stats(1, 1, 0.0, 0, 0, 0, 0, 0, running_adapters=[2, 1], waiting_adapters=[3, 4])
    names = {1: "a", 2: "b", 3: "c"}
    (found,) = AdapterFigures("m", 4, lambda: stats, lambda number: names.get(number, ""), registry).collect()
    assert found.samples[0].labels == {
        "model_name": "m",
        "max_lora": "4",
        "running_lora_adapters": "a,b",
        "waiting_lora_adapters": "c",
    }


async def test_no_adapter_is_loaded_while_the_server_sleeps(tmp_path: Path) -> None:
    write(tmp_path / "one")
    async with serving(tmp_path) as (client, engine, _state):
        body = {"lora_name": "first", "lora_path": "one"}
        await client.post("/sleep")
        refused = await client.post(LOAD, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "asleep")
        await client.post("/wake_up")
        assert (await client.post(LOAD, json=body)).status_code == 200
        assert len(engine.loaded) == 1
