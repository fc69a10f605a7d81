"""What torch.save wrote is the model that transformers saved: whole or in shards, tied, and turned in memory."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stentor.engine.loading.checkpoint import Checkpoint, open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pooling_checkpoint import open_pooling
from stentor.engine.loading.weights import iterate_weights
from stentor.tests.engine.tiny_whisper import write_whisper
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import check_whole
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.test_encoders import made

SINGLE = "pytorch_model.bin"


def saved(tensors: Mapping[str, torch.Tensor], beside: Path, folder: Path, shards: int = 1) -> Path:
    """torch's files of these tensors, with what lies beside the safetensors of ``beside``."""
    folder.mkdir()
    for file in beside.iterdir():
        if file.is_file() and ".safetensors" not in file.name:
            shutil.copy(file, folder)
    if shards == 1:
        torch.save(dict(tensors), folder / SINGLE)
        return folder
    places = {name: f"pytorch_model-{number % shards + 1:05}-of-{shards:05}.bin" for number, name in enumerate(tensors)}
    for place in set(places.values()):
        torch.save({name: tensor for name, tensor in tensors.items() if places[name] == place}, folder / place)
    (folder / f"{SINGLE}.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def read(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in iterate_weights(checkpoint, torch.float32)}


@pytest.fixture(scope="module", params=["opt", "gpt2", "llama"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.make(request.param, folder), folder


def test_a_state_dictionary_gives_transformers_logits(pair: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = pair
    check_whole(model, PagedDecoder(saved(model.state_dict(), folder, tmp_path / "torch")))


def test_shards_and_tensors_turned_in_memory_give_the_same_logits(pair: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = pair
    turned = {
        name: weight.T.contiguous().T if weight.dim() == 2 and number % 2 else weight
        for number, (name, weight) in enumerate(load_file(folder / "model.safetensors").items())
    }
    check_whole(model, PagedDecoder(saved(turned, folder, tmp_path / "torch", shards=3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_those_of_safetensors(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny.make("opt", tmp_path)
    model.to(dtype).save_pretrained(tmp_path)
    folder = saved(model.state_dict(), tmp_path, tmp_path / "torch")
    ours, theirs = open_checkpoint(folder), open_checkpoint(tmp_path)
    assert (ours.format, ours.dtype, ours.stored_bytes) == ("pytorch", theirs.dtype, theirs.stored_bytes)
    found, wanted = read(ours), read(theirs)
    assert {*found} == {*wanted, "lm_head.weight"}, "the tied head is named too"
    assert all(torch.equal(found[name], wanted[name]) and found[name].dtype == dtype for name in wanted)
    reports: list[tuple[int, int]] = []
    for _ in iterate_weights(ours, dtype, progress=lambda *at: reports.append(at)):
        pass
    assert reports[-1] == (ours.total_bytes, ours.total_bytes), "what is tied counts once"


def test_a_model_in_both_forms_is_read_from_safetensors(tmp_path: Path) -> None:
    model = tiny.make("llama", tmp_path)
    (tmp_path / SINGLE).write_bytes(b"not looked at")
    check_whole(model, PagedDecoder(tmp_path))


def test_transformers_modules_are_filled_from_torch_files(tmp_path: Path) -> None:
    model = tiny.make("llama", tmp_path)
    check_whole(model, PagedDecoder(saved(model.state_dict(), tmp_path, tmp_path / "torch"), model_impl="transformers"))


def test_transcription_models_and_encoders_are_read_too(tmp_path: Path) -> None:
    whisper, bert = tmp_path / "whisper", tmp_path / "bert"
    whisper.mkdir()
    bert.mkdir()
    write_whisper(whisper)
    made("bert", bert)
    for folder, open_it in ((whisper, open_checkpoint), (bert, open_pooling)):
        stored = load_file(folder / "model.safetensors")
        found = open_it(saved(stored, folder, folder / "torch", shards=2))
        assert found.config == open_it(folder).config
        tensors = read(found)
        assert tensors.keys() == stored.keys()
        assert all(torch.equal(tensors[name], stored[name]) for name in stored)


def test_what_is_missing_or_asked_for_in_vain_is_said(tmp_path: Path) -> None:
    model = tiny.make("llama", tmp_path)
    folder = saved(model.state_dict(), tmp_path, tmp_path / "torch", shards=2)
    with pytest.raises(CheckpointError, match="it holds torch's files alone; leave --load-format out"):
        open_checkpoint(folder, "safetensors")
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(CheckpointError, match=r"'pytorch_model-00002-of-00002\.bin' is missing, although"):
        open_checkpoint(folder)
