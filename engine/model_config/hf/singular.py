"""Reads the config.json of families of transformers whose attention or network no other family has."""

from dataclasses import replace

from ..config_fields import ConfigError, Fields
from ..spec.layer import Norms
from ..spec.mlp import ExpertNames, RouterSpec
from ..spec.model import ModelSpec, with_layers, with_mixers
from .common import clip_of, common, renamed
from .moe import experts_of


def dbrx(fields: Fields, name: str) -> ModelSpec:
    """DBRX: an MPT with rotation and experts. Files have the rotary base beside the clip of queries, keys and
    values."""
    attending = Fields(fields.table("attn_config") or {})
    network = Fields(fields.table("ffn_config") or {})
    activation = Fields(network.table("ffn_act_fn") or {}).text("name", "silu")
    sizes = renamed(
        fields,
        {
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "max_seq_len": "max_position_embeddings",
        },
        **{"hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24, "max_position_embeddings": 2048},
        vocab_size=32000,
    )
    usual: dict[str, object] = {
        "num_key_value_heads": attending.integer("kv_n_heads", 1),
        "intermediate_size": network.integer("ffn_hidden_size", 3584),
        "num_experts": network.integer("moe_num_experts", 4),
        "hidden_act": activation,
        "head_dim": None,
    }
    if attending.has("rope_theta") and not fields.has("rope_parameters"):
        usual["rope_theta"] = attending.number("rope_theta")
    sizes = Fields({**sizes.values, **usual})
    spec = common(sizes, name, eps=1e-5, eps_field="layer_norm_epsilon")
    power = network.number(
        "moe_normalize_expert_weights", 0.0 if "moe_normalize_expert_weights" in network.values else 1.0
    )
    if power not in (0, 1):
        raise ConfigError(f"ffn_config.moe_normalize_expert_weights is {power}, expected 1 or null: no other is known")
    router = RouterSpec(network.integer("moe_top_k", 1), renormalize=power == 1)
    names = ExpertNames(
        router="ffn.router.layer",
        into=("ffn.experts.mlp.w1", "ffn.experts.mlp.v1"),
        out="ffn.experts.mlp.w2",
        flat=True,
        out_transposed=True,
    )
    inner = "norm_attn_norm"
    spec = with_mixers(spec, clip=clip_of(attending), fused=True, name=f"{inner}.attn", into="Wqkv", out="out_proj")
    moe = replace(experts_of(sizes, spec, router, experts=4, inner="intermediate_size"), names=(names,))
    norms = Norms(mixer_in=f"{inner}.norm_1", mlp_in=f"{inner}.norm_2", kind="layer")
    return replace(
        with_layers(spec, norms=norms, mlp=moe),
        prefix="transformer.blocks",
        embedding="transformer.wte",
        final_norm="transformer.norm_f",
    )
