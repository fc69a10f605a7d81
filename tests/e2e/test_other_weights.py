"""A real server gets other weights while it runs, and traces its steps."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.made_up import CONFIG, VOCABULARY, describe

HIDDEN, INNER = 128, 256
TOKENS = 3000
"""More than are drawn before the pause comes."""


def _write(folder: Path, *without: str) -> None:
    """Random weights of the made-up model, but for those of these names."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(2):
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = (HIDDEN,)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = (HIDDEN, HIDDEN)
        for name in ("gate_proj", "up_proj"):
            shapes[f"model.layers.{layer}.mlp.{name}.weight"] = (INNER, HIDDEN)
        shapes[f"model.layers.{layer}.mlp.down_proj.weight"] = (HIDDEN, INNER)
    made = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=made) * 0.2 for name, shape in shapes.items() if name not in without}
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the folders of a model, of other weights and of traces."""
    root = tmp_path_factory.mktemp("weights")
    for folder in ("model", "steps", "traces"):
        (root / folder).mkdir()
    _write(root / "steps" / "whole")
    _write(root / "steps" / "torn", "model.norm.weight")
    return root


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[httpx.Client]:
    """Of a server with made-up weights."""
    folders = ["--weights-folder", str(root / "steps"), "--profiler-folder", str(root / "traces")]
    arguments = [*describe(root / "model"), *folders, "--dtype", "float32", "--admin-key", "root"]
    with ServerProcess(arguments) as server:
        headers = {"authorization": "Bearer root"}
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=120, headers=headers) as client:
            yield client


def _body(**more: Any) -> dict[str, Any]:
    rules = {"model": "made-up", "prompt": [5, 6, 7], "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {**rules, "max_tokens": 8, **more}


def _tokens(client: httpx.Client, count: int = 8) -> list[int]:
    answer = client.post("/v1/completions", json=_body(max_tokens=count))
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


def test_live_requests_go_on_with_other_weights_and_those_that_cannot_be_loaded_change_nothing(
    client: httpx.Client,
) -> None:
    before = _tokens(client, 100)
    update = {"update_info": {"weights_path": "whole", "weight_version": "1"}}
    drawn: list[int] = []
    updated: httpx.Response | None = None
    with client.stream("POST", "/v1/completions", json=_body(stream=True, max_tokens=TOKENS)) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event
                drawn += [token for choice in event["choices"] for token in choice.get("token_ids", [])]
                if updated is None:
                    client.post("/pause?mode=keep")
                    updated = client.post("/update_weights", json=update)
                    client.post("/resume")
    assert updated is not None
    assert updated.json() == {"message": "Weights updated", "weight_version": "1"}
    assert len(drawn) == TOKENS
    assert drawn[0] == before[0]
    assert not set(drawn[-100:]) <= set(before), "it went on with the other weights"
    after = _tokens(client)
    assert after != before[:8]
    torn = client.post("/update_weights_from_disk", json={"model_path": "torn", "weight_version": "2"})
    assert (torn.status_code, torn.json()["success"]) == (400, False)
    assert "model.norm.weight" in torn.json()["message"]
    assert _tokens(client) == after
    assert client.get("/weight_info").json() == {"weight_version": "1"}
    assert client.post("/sleep?level=2").status_code == 200
    assert client.post("/update_weights", json={"update_info": {}}).json()["weight_version"] == "2"
    assert client.post("/wake_up").json() == {"status": "awake"}
    assert _tokens(client) == before[:8], "the first weights, which no file holds"


def test_a_profile_of_the_steps_is_written_to_the_folder(client: httpx.Client, root: Path) -> None:
    assert client.post("/start_profile").json() == {"status": "profiling"}
    assert client.post("/start_profile").status_code == 400
    _tokens(client)
    assert client.post("/stop_profile").json() == {"status": "written"}
    (file,) = (root / "traces").iterdir()
    assert json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert client.post("/stop_profile").status_code == 400
    assert _tokens(client)
