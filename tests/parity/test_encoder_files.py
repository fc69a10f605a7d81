"""Encoders from files as their makers wrote them, before transformers knew them: other names, and other fields."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from stentor.engine.layers.forward_batch import ForwardBatch
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.varlen_batch import VarlenBatch
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.engine.model_config.encoders.hf import encoder_config_from_hf
from stentor.engine.models.pooling_model import PoolingModel

SIZES: dict[str, Any] = {"vocab_size": 130, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT: dict[str, Any] = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 96}
NOMIC = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "vocab_size": 130,
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 48,
    "n_layer": 2,
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "activation_function": "swiglu",
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "layer_norm_epsilon": 1e-12,
    "type_vocab_size": 2,
}
TEXTS = [[5, 9, 60, 7], [8], [101, 4, 4, 33, 90, 17, 6] * 5]


def older(model: Any, prefix: str, fused: Mapping[str, tuple[str, ...]], names: Mapping[str, str]) -> dict[str, Any]:
    """The model's tensors, parts put together as ``fused`` says, under the names that ``names`` makes of theirs."""
    state = dict(model.state_dict())
    for whole, parts in fused.items():
        for name in [name for name in state if parts[0] in name]:
            pieces = [state.pop(name.replace(parts[0], part)) for part in parts]
            state[name.replace(parts[0], whole)] = torch.cat(pieces)
    made = {}
    for name, tensor in state.items():
        for newer, old in names.items():
            name = re.sub(newer, old, name)
        made[prefix + name] = tensor.contiguous()
    return made


def check(folder: Path, theirs: Any, config: Mapping[str, object], tensors: dict[str, torch.Tensor]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    ours = PoolingModel(
        pooling_config(folder), LayerContext(torch.device("cpu"), torch.float32, False), max_model_len=64
    )
    ours.load(tensors.items(), lambda name: ())
    starts = torch.tensor([0, *map(len, TEXTS)]).cumsum(0)
    tokens = torch.tensor([token for text in TEXTS for token in text])
    found = ours.normed(ours.forward(ForwardBatch.whole(tokens, VarlenBatch(starts.int(), max(map(len, TEXTS))))))
    expected = [theirs(input_ids=torch.tensor([text])).last_hidden_state[0] for text in TEXTS]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-4)


def random(model: Any) -> Any:
    torch.manual_seed(5)
    for parameter in model.parameters():
        parameter.normal_(0.0, 0.2)
    return model.eval()


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


@torch.inference_mode()
def test_nomic_bert_under_its_published_names_is_transformers_model(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1000.0}
    theirs = random(transformers.NomicBertModel(transformers.NomicBertConfig(**BERT, rope_parameters=rope)))
    names = {
        r"embeddings\.LayerNorm": "emb_ln",
        r"^layers": "encoder.layers",
        r"self_attn\.o_proj": "attn.out_proj",
        "up_proj": "fc11",
        "gate_proj": "fc12",
        "down_proj": "fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }
    check(tmp_path, theirs, NOMIC, older(theirs, "", {"attn.Wqkv": QKV}, names))
    assert pooling_config(tmp_path).max_length == 2048


@pytest.mark.parametrize("factor", [1.0, 2.0])
@torch.inference_mode()
def test_gte_under_its_published_names_is_transformers_model(factor: float, tmp_path: Path) -> None:
    theirs = random(transformers.GteModel(transformers.GteConfig(**BERT, type_vocab_size=0)))
    rope: dict[str, object] = {"rope_theta": 160_000.0}
    if factor != 1.0:
        rope["rope_scaling"] = {"type": "ntk", "factor": factor}
        theirs.rotary_emb.inv_freq = ntk(8, 160_000.0, factor)
    names = {
        r"^layers": "encoder.layer",
        r"self_attn\.o_proj": "attention.o_proj",
        "post_attention_layernorm": "attn_ln",
        "post_mlp_layernorm": "mlp_ln",
    }
    fused = {"attention.qkv_proj": QKV, "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj")}
    config = {**BERT, "model_type": "new", "architectures": ["NewModel"], "type_vocab_size": 0, **rope}
    check(tmp_path, theirs, config, older(theirs, "new.", fused, names))


def ntk(dim: int, base: float, factor: float) -> torch.Tensor:
    """arXiv:2306.15595's successor as the makers of GTE compute it for a stretched context."""
    inverse = 1.0 / ((base * factor) ** (torch.arange(0, dim, 2).float() / dim))
    found: torch.Tensor = inverse / factor ** (2 / dim)
    return found


@torch.inference_mode()
def test_xlm_roberta_in_jinas_words(tmp_path: Path) -> None:
    config = {**BERT, "type_vocab_size": 1, "pad_token_id": 1}
    theirs = random(transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**config), add_pooling_layer=False))
    names = {
        r"embeddings\.LayerNorm": "emb_ln",
        r"^encoder\.layer\.": "encoder.layers.",
        r"attention\.output\.dense": "mixer.out_proj",
        r"attention\.output\.LayerNorm": "norm1",
        r"intermediate\.dense": "mlp.fc1",
        r"output\.dense": "mlp.fc2",
        r"output\.LayerNorm": "norm2",
    }
    parts = ("attention.self.query", "attention.self.key", "attention.self.value")
    described = {**config, "model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}
    check(tmp_path, theirs, described, older(theirs, "roberta.", {"mixer.Wqkv": parts}, names))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_experts": 8}, "num_experts is 8, expected 0"),
        ({"activation_function": "gelu"}, "activation_function is 'gelu'"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias is true"),
    ],
)
def test_relatives_that_are_not_known_are_refused(change: dict[str, object], says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**NOMIC, **change}))
    with pytest.raises(CheckpointError, match=says):
        pooling_config(tmp_path)


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "bert", **BERT}, "bert"),
        ({"model_type": "xlm-roberta", **BERT}, "roberta"),
        ({"model_type": "gte", **BERT, "position_embedding_type": "rope"}, "gte"),
    ],
)
def test_snowflakes_models_are_those_of_others(config: dict[str, object], family: str) -> None:
    assert encoder_config_from_hf(config).family == family
