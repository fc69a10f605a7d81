"""A config.json that says that the head is the embedding, beside files that hold a head too."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, assert_close, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder

transformers: Any = untyped_transformers


def _with_head(folder: Path, factor: float) -> None:
    """Stores the embedding, times a factor, as the head."""
    file = folder / "model.safetensors"
    stored = load_file(file)
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"] * factor
    save_file(stored, file, metadata={"format": "pt"})


def test_a_head_with_values_of_its_own_is_used(tmp_path: Path) -> None:
    tiny.make("llama-wide-heads", tmp_path)
    _with_head(tmp_path, -0.7)
    assert not open_checkpoint(tmp_path).decoder.tie_embeddings
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours, prompt = PagedDecoder(tmp_path), prompt_of(1)
    ours.add(0, prompt)
    assert_close(ours.run((0, 0, LENGTH))[0], expected_logits(model, prompt))


def test_a_stored_copy_of_the_embedding_takes_no_memory(tmp_path: Path) -> None:
    tiny.make("llama-wide-heads", tmp_path)
    _with_head(tmp_path, 1.0)
    assert open_checkpoint(tmp_path).decoder.tie_embeddings
    PagedDecoder(tmp_path)


@pytest.mark.parametrize("name", ["nemotron-h", "ling"])
def test_a_class_of_transformers_that_never_ties_them_keeps_its_head(name: str, tmp_path: Path) -> None:
    config = tiny.ARCHITECTURES[name]()
    config.tie_word_embeddings = True
    model = tiny.make_of(config, name, tmp_path)
    ours, prompt = PagedDecoder(tmp_path), prompt_of(1)
    ours.add(0, prompt)
    assert_close(ours.run((0, 0, LENGTH))[0], expected_logits(model, prompt))


def test_the_text_part_of_llama4_alone_says_whether_its_head_is_tied(tmp_path: Path) -> None:
    config = tiny.ARCHITECTURES["llama4-seeing"]()
    config.text_config.tie_word_embeddings, config.tie_word_embeddings = True, False
    model = tiny.make_of(config, "llama4-seeing", tmp_path)
    assert open_checkpoint(tmp_path).decoder.tie_embeddings
    ours, prompt = PagedDecoder(tmp_path), prompt_of(1)
    ours.add(0, prompt)
    assert_close(ours.run((0, 0, LENGTH))[0], expected_logits(model, prompt))
