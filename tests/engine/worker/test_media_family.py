"""Setting up a vision model: what is told of it, and what happens where its tower cannot run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.protocols.ipc.cache_groups import CacheGroup, group_of
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.server.options.model_facts import describe_model
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.pictures import PICTURES, prompt_of
from stentor.tests.parity.seeing import MAKERS
from stentor.tests.support.vision_models import FAMILIES

NAME = "gemma3"
GREEDY = SamplingParams(max_tokens=4, temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(NAME)
    FAMILIES[NAME](made)
    return made


def _changed(folder: Path, made: Path, **tensors: torch.Tensor) -> Path:
    """A copy with other tensors."""
    for file in folder.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    save_file({**load_file(folder / "model.safetensors"), **tensors}, made / "model.safetensors")
    return made


def test_start_up_says_what_its_tower_takes_and_how_it_runs(folder: Path) -> None:
    ready = LocalEngine(model_config(folder, max_model_len=64, kv_cache_memory=4 << 20)).ready
    lines = {line.what: line.bytes for line in ready.memory}
    tower = [
        tensor.nbytes for name, tensor in load_file(folder / "model.safetensors").items() if "language" not in name
    ]
    assert lines["encoder of media"] == sum(tower)
    assert lines["encoded media"] == 4 * 64 * 64 * 4
    assert group_of(ready.groups, "cross") == CacheGroup("cross", capacity=4 * 64, sliced=True, whole=256 - 64)
    assert not any("transformers" in note for note in ready.notes)
    assert "on layers of our own" in describe_model(folder, [])


def test_start_up_says_where_a_tower_runs_on_transformers_code(tmp_path: Path) -> None:
    MAKERS["qwen2_audio"](tmp_path)
    ready = LocalEngine(model_config(tmp_path, max_model_len=64, kv_cache_memory=4 << 20)).ready
    assert any(note.startswith("audios are encoded by transformers' modelling code") for note in ready.notes)
    assert "on transformers' modelling code" in describe_model(tmp_path, [])


def test_a_tower_that_cannot_be_read_leaves_the_text(folder: Path, tmp_path: Path) -> None:
    odd = _changed(folder, tmp_path, **{"vision_tower.odd.weight": torch.ones(2)})
    engine = LocalEngine(model_config(odd, max_model_len=64, kv_cache_memory=4 << 20))
    assert group_of(engine.ready.groups, "cross") is None
    (note,) = (note for note in engine.ready.notes if "no media are taken" in note)
    assert "vision_tower.odd.weight, which this architecture has no place for" in note
    whole = LocalEngine(model_config(folder, max_model_len=64, kv_cache_memory=4 << 20))
    assert engine.generate([40, 41, 42], GREEDY) == whole.generate([40, 41, 42], GREEDY)


def test_what_is_to_read_text_alone_makes_no_tower(folder: Path) -> None:
    config = model_config(folder, max_model_len=64, kv_cache_memory=4 << 20, language_model_only=True)
    ready = LocalEngine(config).ready
    assert group_of(ready.groups, "cross") is None
    assert "encoder of media" not in {line.what for line in ready.memory}


def test_dummy_weights_see_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text())))
    config = model_config(tmp_path, max_model_len=64, kv_cache_memory=4 << 20, load_format="dummy")
    engine, kind = LocalEngine(config), PICTURES[NAME]
    prompt = prompt_of(kind, [40], kind.draw(torch.Generator().manual_seed(1), 0), [50])
    rid = engine.submit(prompt.tokens, GREEDY, media=prompt.media)
    engine.run(check=True)
    end = engine.outcomes[rid, 0].finished
    assert end is not None
    assert end.reason == "length"
