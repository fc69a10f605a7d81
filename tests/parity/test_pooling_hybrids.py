"""Decoders with recurrent states that make vectors and scores, against transformers in float32."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.protocols.ipc.pooling import Pooling
from stentor.tests.parity.hybrids import EACH_KIND, JAMBA, QWEN, configs
from stentor.tests.parity.test_embedders import both_ways
from stentor.tests.parity.test_pooling_decoders import TEXTS, changed, close, pooled, saved
from stentor.tests.parity.tiny import SHAPE, make

library: Any = transformers  # whose types know no labels
CACHED = ("kimi-linear", "ling", "deepseek-v4", "zamba2", "glm5-next-seeing")
"""Some of their layers need a cache."""
SCORERS: dict[str, Callable[[], Any]] = {
    "Jamba": lambda: library.JambaForSequenceClassification(
        library.JambaConfig(**SHAPE, **JAMBA, num_experts=4, num_labels=1)
    ),
    "Qwen3.5": lambda: library.Qwen3_5ForSequenceClassification(
        library.Qwen3_5TextConfig(**SHAPE, **QWEN, head_dim=32, num_labels=3)
    ),
}


@pytest.mark.parametrize("name", [name for name in EACH_KIND if name not in CACHED])
@torch.inference_mode()
def test_hidden_states_are_those_of_transformers_whatever_shares_the_batch(name: str, tmp_path: Path) -> None:
    theirs = make(name, tmp_path)
    assert not pooling_config(tmp_path).cached
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("token_embed")), strict=True):
        close(found, theirs.base_model(input_ids=torch.tensor([text]), use_cache=False).last_hidden_state[0], 1e-3)


@pytest.mark.parametrize("name", SCORERS)
@torch.inference_mode()
def test_texts_are_scored_by_the_last_token(name: str, tmp_path: Path) -> None:
    theirs = saved(SCORERS[name](), tmp_path)
    raw = Pooling("classify", last=True, activate=False)
    for text, found in zip(TEXTS, pooled(tmp_path, raw), strict=True):
        close(found, theirs(input_ids=torch.tensor([text])).logits, 1e-3)


@pytest.mark.parametrize("name", CACHED)
def test_what_needs_a_cache_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    with pytest.raises(CheckpointError, match="beside layers with a recurrent state, of which no vectors"):
        pooling_config(tmp_path)


@torch.inference_mode()
def test_a_colbert_of_liquids_makes_a_vector_of_each_token(tmp_path: Path) -> None:
    theirs = saved(library.Lfm2Model(configs(SHAPE)["lfm2"]()), tmp_path)
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Dense").mkdir()
    dense = {"in_features": 64, "out_features": 16, "bias": False}
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    (tmp_path / "1_Dense/config.json").write_text(json.dumps({**dense, **identity}))
    layer = torch.randn(16, 64)
    save_file({"linear.weight": layer}, tmp_path / "1_Dense/model.safetensors")
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("token_embed")), strict=True):
        hidden = theirs(input_ids=torch.tensor([text])).last_hidden_state[0]
        close(found, torch.nn.functional.normalize(hidden @ layer.T, dim=-1))


def centered(conv: Any, hidden: torch.Tensor) -> torch.Tensor:
    """A short convolution of transformers', over both sides of a token. [1, tokens, hidden] → the same"""
    b, c, x = conv.in_proj(hidden).transpose(1, 2).chunk(3, dim=1)
    weight = conv.conv.weight
    mixed = torch.nn.functional.conv1d(
        b * x, weight, conv.conv.bias, padding=weight.shape[2] // 2, groups=weight.shape[0]
    )
    made: torch.Tensor = conv.out_proj((c * mixed).transpose(1, 2))
    return made


@pytest.mark.parametrize("biased", [False, True])
@torch.inference_mode()
def test_liquids_embedder_sees_both_sides_of_a_token(biased: bool, tmp_path: Path) -> None:
    config = library.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention", "conv"], conv_bias=biased)
    theirs = saved(library.Lfm2Model(config), tmp_path)
    changed(tmp_path, architectures=["Lfm2BidirectionalModel"])
    assert kind_of(tmp_path) == "embedding"
    for layer in theirs.layers:
        if hasattr(layer, "conv"):
            layer.conv.forward = lambda hidden_states, _conv=layer.conv, **_: centered(_conv, hidden_states)
    whole, vectors = pooled(tmp_path, Pooling("token_embed")), pooled(tmp_path, Pooling("embed"))
    for text, found, vector in zip(TEXTS, whole, vectors, strict=True):
        hidden = both_ways(theirs, text)
        close(found, hidden, 1e-3)
        close(vector, hidden[:1] / hidden[:1].norm())


def test_a_convolution_of_an_even_width_has_no_middle(tmp_path: Path) -> None:
    described = {**SHAPE, "architectures": ["Lfm2BidirectionalModel"], "model_type": "lfm2", "conv_L_cache": 4}
    (tmp_path / "config.json").write_text(json.dumps({**described, "layer_types": ["conv"] * 3}))
    with pytest.raises(CheckpointError, match="conv_L_cache is 4, expected an odd number"):
        pooling_config(tmp_path)
