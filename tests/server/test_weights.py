"""Other weights over HTTP, in vLLM's and SGLang's shapes; what control routes tell of the server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from stentor.protocols.ipc.config import Weights, WorkerConfig
from stentor.server.app.state import ServerState
from stentor.server.config.described import SECRET_KINDS, described
from stentor.server.middleware.access_control import AccessControl
from stentor.server.options.kinds import KINDS
from stentor.server.options.option import OPTIONS
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, HELLO, in_memory, until
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.server.test_control import ADMIN, begin, code, hold

pytestmark = pytest.mark.anyio

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


def write(folder: Path, **config: Any) -> Path:
    """A model of which only headers are read here."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file({"model.norm.weight": torch.ones(16)}, folder / "model.safetensors")
    return folder


@asynccontextmanager
async def serving(
    folder: Path, *, allows: bool = True
) -> AsyncIterator[tuple[httpx.AsyncClient, FakeEngine, ServerState]]:
    """A server of ``model``, which may read other weights below ``steps``."""
    engine = FakeEngine(answer=says("hello there"))
    state = fake_state(
        engine,
        access=AccessControl(keys=keyring("user", admin=("root",))),
        worker=WorkerConfig(str(write(folder / "model"))),
        weights_folder=folder / "steps" if allows else None,
    )
    async with in_memory(state) as client:
        client.headers.update(ADMIN)
        yield client, engine, state


def update(path: str, **more: str) -> dict[str, Any]:
    return {"update_info": {"weights_path": path, **more}}


async def test_the_engine_loads_the_weights_of_a_folder_and_answers_tell_their_version(tmp_path: Path) -> None:
    step = write(tmp_path / "steps" / "1")
    async with serving(tmp_path) as (client, engine, state):
        assert "x-weight-version" not in (await begin(client)).headers
        updated = await client.post("/update_weights", json=update("1", weight_version="1"))
        assert updated.json() == {"message": "Weights updated", "weight_version": "1"}
        assert engine.loaded_weights == [Weights(str(step))]
        assert engine.told == ["reload"], "live requests go on"
        assert (await begin(client)).headers["x-weight-version"] == "1"
        assert (await client.get("/weight_info")).json() == {"weight_version": "1"}
        assert b'stentor:weight_version_info{model_name="fake/model",version="1"} 1.0' in state.metrics.render()
        assert b'stentor:weight_updates_total{model_name="fake/model"} 1.0' in state.metrics.render()
        seconds = (
            b'stentor:rl_weight_update_operation_duration_seconds_count{model_name="fake/model",operation="update"} 1.0'
        )
        assert seconds in state.metrics.render()
        again = await client.post("/update_weights", json=update(str(step)))
        assert again.json()["weight_version"] == "2", "the next number, without a name"
        own = await client.post("/update_weights", json={"update_info": {}})
        assert own.status_code == 200
        assert engine.loaded_weights[-1] == Weights(str(tmp_path / "model"))
        odd = await client.post("/update_weights", json=update("1", weight_version="a\nb: c"))
        assert odd.json()["error"]["param"] == "update_info.weight_version"
        renamed = await client.post("/update_weight_version", json={"new_version": "final"})
        assert renamed.json() == {"success": True, "new_version": "final"}
        assert (await client.get("/get_weight_version")).json() == {"weight_version": "final"}


async def test_the_mode_says_what_becomes_of_live_requests(tmp_path: Path) -> None:
    write(tmp_path / "steps" / "1")
    async with serving(tmp_path) as (client, engine, state):
        live = await hold(client, engine)
        waiting = asyncio.create_task(client.post("/update_weights?mode=wait", json=update("1")))
        await until(lambda: state.admission.paused)
        assert engine.loaded_weights == []
        engine.gate.set()
        assert (await live).status_code == 200
        assert (await waiting).status_code == 200
        assert (await begin(client)).status_code == 200, "it is resumed"
        live = await hold(client, engine)
        assert (await client.post("/update_weights?mode=abort", json=update("1"))).status_code == 200
        assert code(await live) == (503, "aborted")
        engine.gate.set()
        await client.post("/pause?mode=keep")
        assert (await client.post("/update_weights", json=update("1"))).status_code == 200
        assert (await client.get("/is_paused")).json() == {"is_paused": True}, "a pause from before stays"
        assert code(await client.post("/update_weights?mode=later", json=update("1"))) == (400, "invalid_value")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("other", "another architecture"),
        ("missing", "There is no model"),
        ("empty", "config.json is missing"),
        ("../../etc", "does not lie in the folder"),
        ("/etc", "does not lie in the folder"),
        ("link", "does not lie in the folder"),
        ("a\0b", "does not lie in the folder"),
    ],
)
async def test_weights_that_are_not_usable_are_refused_before_anything_is_ended(
    tmp_path: Path, path: str, why: str
) -> None:
    write(tmp_path / "steps" / "other", num_hidden_layers=2)
    save_file({"a": torch.ones(1)}, write(tmp_path / "steps" / "empty") / "model.safetensors")
    (tmp_path / "steps" / "empty" / "config.json").unlink()
    (tmp_path / "steps" / "link").symlink_to("/etc")
    async with serving(tmp_path) as (client, engine, _state):
        refused = await client.post("/update_weights", json=update(path))
        assert code(refused) == (400, "weights_not_usable")
        assert why in refused.json()["error"]["message"]
        assert refused.json()["error"]["param"] == "update_info.weights_path"
        told = await client.post("/update_weights_from_disk", json={"model_path": path})
        assert (told.status_code, told.json()["error"]["param"]) == (400, "model_path")
        assert engine.told == []


async def test_without_a_folder_only_the_model_s_own_files_are_read_again(tmp_path: Path) -> None:
    write(tmp_path / "steps" / "1")
    async with serving(tmp_path, allows=False) as (client, engine, _state):
        refused = await client.post("/update_weights", json=update(str(tmp_path / "steps" / "1")))
        assert "--weights-folder" in refused.json()["error"]["message"]
        own = {"model_path": str(tmp_path / "model"), "load_format": "safetensors"}
        assert (await client.post("/update_weights_from_disk", json=own)).status_code == 200
        assert engine.loaded_weights == [Weights(str(tmp_path / "model"))]
        odd = await client.post("/update_weights_from_disk", json={**own, "load_format": "flash_rl"})
        assert odd.json()["error"]["param"] == "load_format"
        kept = await client.post("/update_weights_from_disk", json={**own, "flush_cache": False})
        assert kept.json()["error"]["param"] == "flush_cache"


async def test_an_engine_that_cannot_load_them_keeps_its_weights_and_their_version(tmp_path: Path) -> None:
    write(tmp_path / "steps" / "1")
    async with serving(tmp_path) as (client, engine, _state):
        engine.refuses_weights = "a tensor is missing"
        refused = await client.post("/update_weights?mode=abort", json=update("1", weight_version="1"))
        assert code(refused) == (400, "weights_not_usable")
        assert "a tensor is missing" in refused.json()["error"]["message"]
        assert (await begin(client)).status_code == 200
        told = await client.post("/update_weights_from_disk", json={"model_path": "1", "weight_version": "1"})
        assert (told.status_code, told.json()["success"]) == (400, False)
        assert "a tensor is missing" in told.json()["message"]
        assert (await client.get("/weight_info")).json() == {"weight_version": "default"}


async def test_sglang_s_clients_pause_update_and_go_on(tmp_path: Path) -> None:
    write(tmp_path / "steps" / "1")
    async with serving(tmp_path) as (client, engine, state):
        live = await hold(client, engine)
        assert (await client.post("/pause_generation", json={"mode": "in_place"})).json() == {"status": "paused"}
        assert (await client.post("/flush_cache")).status_code == 200
        told = await client.post("/update_weights_from_disk", json={"model_path": "1", "weight_version": "s1"})
        assert told.json() == {
            "success": True,
            "message": "Succeeded to update model weights.",
            "num_paused_requests": 1,
        }
        assert state.control.paused
        engine.gate.set()
        assert (await client.post("/continue_generation", json={})).json() == {"status": "resumed"}
        assert (await live).status_code == 200
        about = (await client.get("/model_info", headers={"authorization": "Bearer user"})).json()
        assert (about["weight_version"], about["is_generation"]) == ("s1", True)
        info = (await client.get("/get_server_info")).json()
        assert (info["weight_version"], info["max_total_num_tokens"], info["dp_size"]) == ("s1", 1024, 1)
        assert info["internal_states"][0]["num_running_reqs"] == 1
        (load,) = (await client.get("/get_load")).json()
        assert (load["num_running_reqs"], load["max_total_num_tokens"]) == (1, 1024)
        assert load["num_reqs"] == load["num_running_reqs"] + load["num_waiting_reqs"]
        assert (await client.get("/v1/loads")).json()["loads"] == [load]
        assert (await client.get("/get_load", headers={"authorization": "Bearer user"})).status_code == 403
        left = await client.post("/update_weights_from_disk", json={"model_path": "1", "keep_pause": True})
        assert left.json()["success"]
        assert code(await begin(client)) == (503, "paused")


async def test_sglang_s_clients_release_memory_and_get_it_back_in_parts(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, engine, _state):
        asleep = await client.post("/release_memory_occupation", json={"tags": ["kv_cache", "weights"]})
        assert asleep.json() == {"status": "sleeping"}
        assert engine.told == ["pause", "sleep"]
        for tag in ("cuda_graph", "weights"):
            told = await client.post("/resume_memory_occupation", json={"tags": [tag]})
            assert told.json() == {"status": "sleeping"}
        assert (await client.post("/resume_memory_occupation", json={"tags": ["kv_cache"]})).json() == {
            "status": "awake"
        }
        assert engine.told[-2:] == ["wake", "resume"]


async def test_requests_are_aborted_by_id_in_sglang_s_shape(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, engine, _state):
        engine.gate.clear()
        live = begin(client, **{"x-request-id": "abc"})
        await until(lambda: engine.streams)
        assert code(await client.post("/abort_request", json={})) == (400, "missing_required_parameter")
        assert (await client.post("/abort_request", json={"rid": "abc"})).status_code == 200
        assert code(await live) == (503, "aborted")


async def test_what_needs_a_connection_to_workers_is_refused_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _engine, _state):
        for path, named in {
            "/collective_rpc": "/update_weights",
            "/init_weight_transfer_engine": "--weights-folder",
            "/scale_elastic_ep": "number of workers",
        }.items():
            refused = await client.post(path, json={"method": "reload_weights"})
            assert code(refused) == (400, "unsupported")
            assert named in refused.json()["error"]["message"]
        assert (await client.get("/get_world_size")).json() == {"world_size": 1}


async def test_the_server_describes_its_options_without_secrets_and_its_tokenizer(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _engine, state):
        info = (await client.get("/server_info?config_format=json")).json()
        assert info["vllm_config"]["max-queued-requests"] == state.config.overload.max_queued_requests
        assert info["vllm_config"]["api-key"] is False
        assert info["system_env"]["torch"]
        assert "max-queued-requests = 2048" in (await client.get("/server_info")).json()["vllm_config"]
        about = (await client.get("/tokenizer_info", headers={"authorization": "Bearer user"})).json()
        assert (about["bos_token"], about["vocab_size"]) == ("<s>", 258)
        assert "messages" in about["chat_template"]
    assert {name for name, kind in KINDS.items() if kind.secret} <= SECRET_KINDS


async def test_caches_of_media_are_emptied_and_profiles_want_a_folder(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, engine, _state):
        for path in ("/reset_mm_cache", "/reset_encoder_cache"):
            assert (await client.post(path)).json() == {"status": "reset"}
        assert code(await client.post("/start_profile")) == (400, "no_folder")
        assert engine.told == ["reset_encoder_cache"]
    profiled = FakeEngine()
    access = AccessControl(keys=keyring("user", admin=("root",)))
    state = fake_state(profiled, access=access, worker=WorkerConfig("", profiler_folder=str(tmp_path)))
    async with in_memory(state) as client:
        client.headers.update(ADMIN)
        assert (await client.post("/start_profile")).json() == {"status": "profiling"}
        assert (await client.post("/stop_profile")).json() == {"status": "written"}
        assert profiled.told == ["start_profile", "stop_profile"]
        assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 1})).status_code == 200


async def test_every_option_is_described() -> None:
    assert set(described(fake_state().config)) == {option.name for option in OPTIONS}
