"""A model whose files name another that holds its decoder (Ultravox)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.download.hub import resolve_model
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.weights import iterate_weights, tower_weights
from stentor.tests.parity.published_sounds import ultravox

_BEGIN = "language_model."


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """The published layout: the audio encoder, beside a decoder in a folder of its own."""
    whole, text = tmp_path / "whole", tmp_path / "text"
    for folder in (whole, text):
        folder.mkdir()
    ultravox(whole)
    config = json.loads((whole / "config.json").read_text())
    (text / "config.json").write_text(json.dumps(config.pop("text_config")))
    (whole / "config.json").write_text(json.dumps({**config, "text_model_id": str(text)}))
    tensors = load_file(whole / "model.safetensors")
    of_text = {name.removeprefix(_BEGIN): each for name, each in tensors.items() if name.startswith(_BEGIN)}
    save_file(of_text, text / "model.safetensors")
    save_file(
        {name: each for name, each in tensors.items() if not name.startswith(_BEGIN)}, whole / "model.safetensors"
    )
    return whole


def test_the_parts_are_one_model(apart: Path, tmp_path: Path) -> None:
    together = tmp_path / "together"
    together.mkdir()
    ultravox(together)
    found, expected = open_checkpoint(resolve_model(str(apart))), open_checkpoint(together)
    assert found.config == expected.config
    assert found.total_bytes == expected.total_bytes
    texts = [dict(iterate_weights(each, torch.float32)) for each in (found, expected)]
    towers = [dict(tower_weights(each)) for each in (found, expected)]
    for ours, theirs in (texts, towers):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_one_that_is_not_there_is_named(apart: Path) -> None:
    file = apart / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "text_model_id": "/nowhere/at/all"}))
    with pytest.raises(CheckpointError, match="/nowhere/at/all"):
        open_checkpoint(apart)
    with pytest.raises(CheckpointError, match="/nowhere/at/all"):
        resolve_model(str(apart))


def test_a_decoder_that_takes_media_itself_is_refused(apart: Path, tmp_path: Path) -> None:
    (tmp_path / "text" / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {}}))
    with pytest.raises(CheckpointError, match="takes media itself, expected a text model"):
        open_checkpoint(apart)
