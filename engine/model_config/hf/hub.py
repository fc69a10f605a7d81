"""Reads the config.json of families whose code comes with their checkpoints. None of it runs: each is a combination of
parts that other families have, under names of its own."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..config_fields import ConfigError, Fields, UnknownArchitectureError
from ..spec.mlp import MLPSpec
from ..spec.model import LayerSpec, ModelSpec, Norms, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import MIMO
from .common import common
from .dense import llama, qwen2

_EXAONE: Final = {
    "num_layers": "num_hidden_layers",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}
"""Its names of common fields."""
_FFN_MULTIPLE: Final = 256
_UNKNOWN_PARTS: Final = (
    *("replace_with_linear", "sparsify", "window_length", "num_sink_tokens"),
    *("mamba", "llama4", "moe"),
)
"""What blocks of Nemotron NAS may have in place of attention or a network."""


def internlm2(fields: Fields, name: str) -> ModelSpec:
    """InternLM 2 and 2.5: a Llama whose queries, keys and values are stored as one matrix, head by head."""
    bias = fields.flag("bias", True)
    spec = with_mixers(
        common(fields, name),
        qkv_bias=bias,
        output_bias=bias,
        fused=True,
        by_group=True,
        name="attention",
        into="wqkv",
        out="wo",
    )
    mlp = replace(dense_mlp(spec), into=("feed_forward.w1", "feed_forward.w3"), out="feed_forward.w2")
    spec = with_layers(spec, mlp=mlp, norms=Norms(mixer_in="attention_norm", mlp_in="ffn_norm"))
    return replace(spec, embedding="model.tok_embeddings")


def exaone(fields: Fields, name: str) -> ModelSpec:
    """EXAONE 3, 3.5 and Deep: a Llama with GPT-2's names."""
    values = fields.values
    usual = {ours: values[theirs] for theirs, ours in _EXAONE.items() if theirs in values}
    fields = Fields({"tie_word_embeddings": True, **values, **usual})
    if not fields.has("intermediate_size"):
        fields = Fields({**fields.values, "intermediate_size": 4 * fields.integer("hidden_size")})
    spec = with_mixers(common(fields, name, eps=1e-5), name="attn.attention", out="out_proj")
    mlp = replace(dense_mlp(spec), into=("mlp.c_fc_0", "mlp.c_fc_1"), out="mlp.c_proj")
    spec = with_layers(spec, mlp=mlp, norms=Norms(mixer_in="ln_1", mlp_in="ln_2"))
    return replace(spec, prefix="transformer.h", embedding="transformer.wte", final_norm="transformer.ln_f")


def minicpm(fields: Fields, name: str) -> ModelSpec:
    """MiniCPM 1, 2 and 4: a Llama with factors on embeddings, parts of layers and logits. Attention is dense, also of
    files that allow a sparse one in long texts (``sparse_config``)."""
    if fields.integer("num_experts", 0, least=0):
        raise UnknownArchitectureError(f"its form of {name}, with experts, is not native here")
    fields = Fields({"tie_word_embeddings": True, **fields.values})
    spec = llama(fields, name)
    return replace(
        spec,
        embedding_scale=fields.number("scale_emb", 1.0),
        residual_scale=fields.number("scale_depth", 1.0) / math.sqrt(len(spec.layers)),
        logits_divisor=spec.hidden_size / fields.positive("dim_model_base", 1.0),
    )


def mimo(fields: Fields, name: str) -> ModelSpec:
    """MiMo 7B: a Qwen 2 with layers that predict further tokens."""
    return with_mtp(qwen2(fields, name), MIMO, fields.integer("num_nextn_predict_layers", 1, least=0))


def nemotron_nas(fields: Fields, name: str) -> ModelSpec:
    """Llama Nemotron Super and Ultra: a Llama whose layers differ in heads and width, and may lack a part."""
    blocks = fields.get("block_configs")
    if not isinstance(blocks, list):
        raise UnknownArchitectureError(f"its form of {name}, without block_configs, is not native here")
    # no layer has this width
    spec = llama(Fields({**fields.values, "intermediate_size": fields.integer("hidden_size")}), name)
    if len(blocks) != len(spec.layers):
        raise ConfigError(f"block_configs is of {len(blocks)} layers, expected {len(spec.layers)}")
    layers = (_block(block, layer, spec.hidden_size) for block, layer in zip(blocks, spec.layers, strict=True))
    return replace(spec, layers=tuple(layers))


def _block(block: object, layer: LayerSpec, hidden: int) -> LayerSpec:
    """The layer of Nemotron NAS as ``block_configs`` has it."""
    if not isinstance(block, Mapping):
        raise ConfigError(f"block_configs holds {str(block)[:40]}, expected a table for each layer")
    attention, network = (Fields(Fields(block).table(part) or {}) for part in ("attention", "ffn"))
    for part in (attention, network):
        if (unknown := next((field for field in _UNKNOWN_PARTS if part.values.get(field)), None)) is not None:
            raise ConfigError(f"block_configs has {unknown}, expected layers of attention and an MLP")
    mixer, mlp, norms = layer.attention, layer.mlp, layer.norms
    if attention.flag("no_op") or not (attention.has("n_heads_in_group") or attention.has("num_key_value_heads")):
        layer, norms = replace(layer, mixer=None), replace(norms, mixer_in="")
    else:
        shared = mixer.heads // attention.integer("num_key_value_heads", mixer.heads, most=mixer.heads)
        kv_heads = mixer.heads // attention.integer("n_heads_in_group", shared, most=mixer.heads)
        layer = replace(layer, mixer=replace(mixer, kv_heads=kv_heads))
    if network.flag("no_op") or not (network.has("ffn_mult") or network.has("intermediate_size")):
        return replace(layer, mlp=None, norms=replace(norms, mlp_in=""))
    width = int(2 * network.positive("ffn_mult", 1.0) * hidden / 3)
    if not network.has("intermediate_size"):
        network = Fields({"intermediate_size": -(-width // _FFN_MULTIPLE) * _FFN_MULTIPLE})
    assert isinstance(mlp, MLPSpec)
    return replace(layer, mlp=replace(mlp, inner=network.integer("intermediate_size")), norms=norms)
