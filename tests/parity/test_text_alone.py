"""Decoders of multimodal models that are stored without their towers, or under another name."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, assert_close, check_whole, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.tiny import SHAPE, transformers

MODELS = {
    "Glm5NextForCausalLM": "glm5-next-seeing",
    "MllamaForCausalLM": "mllama-text",
    "MuseGlimmerForCausalLM": "muse-glimmer",
}
"""The tiny model of each architecture."""


def _renamed(folder: Path, architecture: str, *, alone: bool) -> None:
    """Gives a checkpoint the name ``architecture``; ``alone``: and leaves out all but its text part."""
    config = json.loads((folder / "config.json").read_text())
    config = {**(config["text_config"] if alone else config), "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    if alone:
        stored = load_file(folder / "model.safetensors")
        kept = {
            name.replace("model.language_model.", "model."): tensor
            for name, tensor in stored.items()
            if name.startswith(("model.language_model.", "lm_head."))
        }
        assert 0 < len(kept) < len(stored)
        save_file(kept, folder / "model.safetensors")


def test_a_glm_5_3_flash_without_its_tower_is_read(tmp_path: Path) -> None:
    model = tiny.make(MODELS["Glm5NextForCausalLM"], tmp_path)
    _renamed(tmp_path, "Glm5NextForCausalLM", alone=True)
    check_whole(model, PagedDecoder(tmp_path))


def test_a_muse_glimmer_may_have_the_name_that_vllm_gives_it(tmp_path: Path) -> None:
    model = tiny.make(MODELS["MuseGlimmerForCausalLM"], tmp_path)
    _renamed(tmp_path, "MuseGlimmerForCausalLM", alone=False)
    check_whole(model, PagedDecoder(tmp_path))


def test_texts_pass_the_layers_of_pictures_in_a_llama_3_2_vision_without_a_tower(tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model("mllama_text_model", **SHAPE, cross_attention_layers=[1])
    model, ours = tiny.make_of(config, MODELS["MllamaForCausalLM"], tmp_path), PagedDecoder(tmp_path)
    ours.add(0, prompt := prompt_of(1))
    logits = torch.cat([*ours.run((0, 0, 50)), *ours.run((0, 50, LENGTH - 50))])
    assert_close(logits[:, : len(model.lm_head.weight)], expected_logits(model, prompt))
    assert logits[:, len(model.lm_head.weight) :].max() == -torch.inf
