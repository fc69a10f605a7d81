"""Reads Gemma 4's config.json."""

import math

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.expert_norms import PartNorms
from ..spec.layer import LayerSpec, PerLayerSpec
from ..spec.mlp import ExpertNames, RouterSpec
from ..spec.model import SANDWICH, ModelSpec, dense_mlp, with_mixers
from ..spec.token_input import TokenInputSpec
from .common import attention_bias, common, gelu_tanh, softcap_of
from .moe import experts_of
from .rope import rope_from_hf

_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
"""Defaults."""
_EXPERTS = ExpertNames(router="router.proj", into=("experts.gate_up_proj",), out="experts.down_proj")
_PART_NORMS = PartNorms(
    experts_in="pre_feedforward_layernorm_2",
    experts_out="post_feedforward_layernorm_2",
    shared_in="pre_feedforward_layernorm",
    shared_out="post_feedforward_layernorm_1",
    router_scale="router.scale",
    expert_scale="router.per_expert_scale",
)


def gemma4(fields: Fields, name: str) -> ModelSpec:
    """Two kinds of layers, which differ in window, heads and rotation. The last layers may share earlier layers' keys
    and values, and layers may have per-layer embeddings."""
    if fields.text("use_bidirectional_attention", "vision") != "vision":
        raise ConfigError("use_bidirectional_attention is 'all', and only causal decoders are supported")
    told = {"rope_parameters": _ROPE, "tie_word_embeddings": True, **fields.values}
    fields = Fields({**told, "hidden_act": gelu_tanh(fields)})
    spec = attention_bias(fields, common(fields, name, head_dim=256))
    spec = with_mixers(spec, scale=1.0, qk_norm="head", v_norm=True)
    kinds = _kinds(fields, len(spec.layers))
    first = len(spec.layers) - fields.integer("num_kv_shared_layers", 0, least=0)
    layers = tuple(_layer(fields, spec, kinds, number, first) for number in range(len(spec.layers)))
    default = 0 if "hidden_size_per_layer_input" in fields.values else 256  # null: none
    dim = fields.integer("hidden_size_per_layer_input", default, least=0)
    per_layer = fields.integer("vocab_size_per_layer_input", 262_144, least=1 if dim else 0)
    return replace(
        spec,
        layers=layers,
        max_position=fields.integer("max_position_embeddings"),
        input=TokenInputSpec(scale=math.sqrt(spec.hidden_size)),
        logits_softcap=softcap_of(fields, "final_logit_softcapping", 0.0),
        per_layer=PerLayerSpec(per_layer, dim, fields.token_id("pad_token_id") or 0) if dim else None,
    )


def gemma4_unified(fields: Fields, name: str) -> ModelSpec:
    """Gemma 4 whose media have no encoder: without embeddings of layers, and with windows twice as long by default."""
    return gemma4(Fields({"sliding_window": 1024, **fields.values, "hidden_size_per_layer_input": None}), name)


def _kinds(fields: Fields, layers: int) -> list[str]:
    """The kind of attention of each layer; the last is always full."""
    pattern = ["full_attention" if (layer + 1) % 6 == 0 else "sliding_attention" for layer in range(layers)]
    kinds = list(fields.texts("layer_types") or pattern)
    if len(kinds) != layers or not {*kinds} <= {*_ROPE}:
        raise ConfigError(f"layer_types is not {' or '.join(_ROPE)} for each of {layers} layers")
    return [*kinds[:-1], "full_attention"]


def _layer(fields: Fields, spec: ModelSpec, kinds: list[str], number: int, first: int) -> LayerSpec:
    """``first``: the first layer that shares another's keys and values."""
    mixer, mlp, kind = spec.layers[0].attention, dense_mlp(spec), kinds[number]
    mixer = _full(fields, mixer, number) if kind == "full_attention" else mixer
    mixer = replace(mixer, rope=rope_from_hf(fields.values, mixer.head_dim, layer_type=kind))
    window = fields.integer("sliding_window", 512, least=0)
    if kind == "sliding_attention" and window < fields.integer("max_position_embeddings"):
        mixer = replace(mixer, window=window)
    if number >= first:
        if kind not in kinds[:first]:
            raise ConfigError(f"num_kv_shared_layers leaves no layer of {kind} whose keys the others could see")
        mixer = replace(mixer, shares=first - 1 - kinds[:first][::-1].index(kind))
        mlp = replace(mlp, inner=mlp.inner * (2 if fields.flag("use_double_wide_mlp") else 1))
    if not fields.flag("enable_moe_block"):
        return LayerSpec(mixer, mlp, SANDWICH, scalar="layer_scalar")
    router = RouterSpec(fields.integer("top_k_experts"))
    moe = experts_of(fields, spec, router, experts=fields.integer("num_experts"))
    moe = replace(moe, names=(_EXPERTS,), shared=mlp, part_norms=_PART_NORMS)
    return LayerSpec(mixer, moe, replace(SANDWICH, mlp_in=""), scalar="layer_scalar")


def _full(fields: Fields, mixer: AttentionSpec, number: int) -> AttentionSpec:
    """A full layer's attention. Published files give its heads once; transformers gives them for each layer that
    differs."""
    tied = fields.flag("attention_k_eq_v")
    listed = fields.table("per_layer_config")
    if listed is not None:
        # transformers writes layer 5 of 30 as "05"
        key = next((key for key in listed if key.lstrip("0") == str(number).lstrip("0")), "")
        own = Fields(Fields(listed).table(key) or {})
        head_dim = own.integer("head_dim", mixer.head_dim)
        kv_heads = own.integer("num_key_value_heads", mixer.kv_heads)
    else:
        head_dim = fields.integer("global_head_dim", 512)
        kv_heads = fields.integer("num_global_key_value_heads", mixer.kv_heads) if tied else mixer.kv_heads
    return replace(mixer, head_dim=head_dim, kv_heads=kv_heads, tied_values=tied)
