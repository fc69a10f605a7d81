"""Files of random weights: of the shape that a configuration says, in every form, and values that stay in range."""

import math
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.loadtest.peers.random_models import RANDOM_MODELS, RandomModel, tensors
from stentor.loadtest.peers.random_weights import RandomWeights, write_random_gguf
from stentor.loadtest.peers.weights import Form, WeightsError
from stentor.tests.loadtest.peers.vocabulary import write_gguf_vocabulary

SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 40,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
MODELS = {
    "dense": RANDOM_MODELS["qwen3-1.7b"]._replace(fewer=SMALL),
    "experts": RANDOM_MODELS["qwen3-30b-a3b"]._replace(fewer={**SMALL, **EXPERTS}),
}


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    return write_gguf_vocabulary(tmp_path / "vocabulary.gguf")


@pytest.mark.parametrize("form", ["q4_0", "q4_1", "q8_0"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_product_with_a_matrix_keeps_the_size_of_its_input(
    form: Form, model: RandomModel, vocabulary: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(RandomWeights("m", model, vocabulary, tmp_path).form(form))
    assert checkpoint.dtype == form.upper()
    for name, weight in iterate_weights(checkpoint, torch.float32):
        if "norm" not in name:
            assert weight.std().item() == pytest.approx(1 / math.sqrt(weight.shape[-1]), rel=0.2), name
            assert abs(weight.mean().item()) < 0.2 / math.sqrt(weight.shape[-1]), name  # codes lean by half a step


def test_the_file_is_read_as_the_configuration_it_was_made_of(vocabulary: Path, tmp_path: Path) -> None:
    spec = open_checkpoint(RandomWeights("m", MODELS["experts"], vocabulary, tmp_path).form("q4_0")).decoder
    assert spec.architecture == "Qwen3MoeForCausalLM"
    assert (spec.vocab_size, spec.hidden_size, len(spec.layers)) == (40, 64, 2)


def test_the_vocabulary_is_that_of_the_other_file_and_padded(vocabulary: Path, tmp_path: Path) -> None:
    fields = gguf.GGUFReader(RandomWeights("m", MODELS["dense"], vocabulary, tmp_path).form("q4_0")).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert tokens[26:] == ["x", "y", "z", *(f"<unused{n}>" for n in range(29, 40))]
    assert len(fields["tokenizer.ggml.token_type"].contents()) == 40
    assert fields["tokenizer.ggml.eos_token_id"].contents() == 2
    few = MODELS["dense"]._replace(fewer={**SMALL, "vocab_size": 8})
    with pytest.raises(WeightsError, match="has 29 tokens, expected at most 8"):
        write_random_gguf(few, "q4_0", vocabulary, tmp_path / "small.gguf")


def test_a_file_is_made_once_the_same_again_and_removed(vocabulary: Path, tmp_path: Path) -> None:
    weights = RandomWeights("m", MODELS["dense"], vocabulary, tmp_path)
    first = weights.form("q8_0")
    content, changed = first.read_bytes(), first.stat().st_mtime_ns
    assert weights.form("q8_0").stat().st_mtime_ns == changed
    weights.remove()
    assert not first.exists()
    assert weights.form("q8_0").read_bytes() == content
    with pytest.raises(WeightsError, match="made as q4_0, q4_1, q8_0, not as bf16"):
        weights.form("bf16")


@pytest.mark.parametrize(("name", "billions"), [("qwen3-30b-a3b", 30.5), ("qwen3-1.7b", 1.72), ("lfm2-1.2b", 1.17)])
def test_a_model_has_as_many_parameters_as_its_publisher_says(name: str, billions: float) -> None:
    count = sum(math.prod(tensor.shape) for tensor in tensors(RANDOM_MODELS[name].config()))
    assert count / 1e9 == pytest.approx(billions, abs=0.05)
