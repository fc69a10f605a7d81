"""Reads the config.json of families whose code comes with their checkpoints. None of it runs: each is a combination of
parts that other families have, under names of its own."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from .config_fields import ConfigError, Fields, UnknownArchitectureError
from .hf_common import check_silu, common, expect
from .hf_dense import llama, qwen2
from .hf_latent import latent
from .hf_moe import deepseek_experts, experts_of, shared_experts, sparse_from, with_experts
from .mlp_spec import APART, MLPSpec, MoESpec, RouterSpec
from .model_spec import LayerSpec, ModelSpec, Norms, dense_mlp, with_layers, with_mixers, with_mtp
from .mtp_form import DEEPSEEK, LING, MIMO

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
_LING_NAMES: Final = (replace(APART, correction="mlp.gate.expert_bias"),)
_PANGU: Final[Mapping[str, str]] = {
    "attention_kv_lora_dim": "kv_lora_rank",
    "attention_q_lora_dim": "q_lora_rank",
    "attention_qk_dim": "qk_nope_head_dim",
    "attention_qk_rope_dim": "qk_rope_head_dim",
    "attention_v_dim": "v_head_dim",
    "num_dense_layers": "first_k_dense_replace",
    "num_mtp_layers": "num_nextn_predict_layers",
    "num_routed_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
}
"""Names of DeepSeek's fields in some files of openPangu."""
_PANGU_NORMS: Final = Norms(
    mixer_in="input_layernorm",
    mixer_out="post_attention_layernorm",
    mlp_in="pre_mlp_layernorm",
    mlp_out="post_mlp_layernorm",
)
_ONE_GROUP: Final[Mapping[str, object]] = {"n_group": 1, "topk_group": 1}


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


def ling(fields: Fields, name: str) -> ModelSpec:
    """Ling 1 and Ring 1: Qwen2's experts by a softmax beside shared ones, and a head whose columns may be normed."""
    check_silu(fields)
    expect(fields, {"score_function": "softmax", "norm_softmax": False, "multi_gate": False, "use_bias": False})
    if fields.flag("use_qk_norm") and not fields.flag("use_rmsnorm"):
        raise ConfigError("use_qk_norm is set without use_rmsnorm, expected both: layer norms of heads are not known")
    if fields.has("rotary_dim"):
        head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
        fields = Fields({"partial_rotary_factor": fields.integer("rotary_dim") / head_dim, **fields.values})
    spec = _ling_attention(fields, name, normed=False)
    router = RouterSpec(fields.integer("num_experts_per_tok", 2), renormalize=fields.flag("norm_topk_prob", True))
    moe = experts_of(fields, spec, router, experts=64)
    moe = _with_shared(fields, spec, replace(moe, names=(APART,)), fields.integer("num_shared_experts", 0, least=0))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 0, least=0)))


def ling2(fields: Fields, name: str) -> ModelSpec:
    """Ling 2.0, Ring 2.0: experts routed as in DeepSeek-V3, heads that are normed and rotate in part."""
    defaults = {"partial_rotary_factor": 0.5, "num_experts": 256, "n_group": 8, "topk_group": 4}
    spec = _ling2(Fields({**defaults, "routed_scaling_factor": 2.5, **fields.values}), name)
    spec = replace(spec, draft_prefix=f"{spec.prefix}.{len(spec.layers)}.")
    return with_mtp(spec, LING, fields.integer("num_nextn_predict_layers", 1, least=0))


def sarvam_moe(fields: Fields, name: str) -> ModelSpec:
    """Sarvam 30B: a Ling 2.0 whose heads rotate as a whole."""
    return _ling2(Fields({"routed_scaling_factor": 2.5, **fields.values}), name)


def param2(fields: Fields, name: str) -> ModelSpec:
    """Param 2: a Ling 2.0 whose files tell the size of all shared experts together."""
    if fields.has("moe_shared_expert_intermediate_size"):
        number = fields.integer("num_shared_experts", 1)
        size = fields.integer("moe_shared_expert_intermediate_size")
        fields = Fields({**fields.values, "moe_shared_expert_intermediate_size": size // number})
    return _ling2(fields, name)


def sarvam_mla(fields: Fields, name: str) -> ModelSpec:
    """Sarvam 105B: a DeepSeek-V3 without a latent of queries."""
    check_silu(fields)
    expect(fields, {"score_function": "sigmoid", "moe_layer_freq": 1})
    shared = fields.integer("num_shared_experts", 1, least=0)
    defaults = {"q_lora_rank": None, "num_experts": 128, "intermediate_size": 16384, "routed_scaling_factor": 2.5}
    fields = Fields({**defaults, **fields.values})
    # head_dim is the size of its rotating part
    spec = common(Fields({**fields.values, "head_dim": fields.integer("qk_rope_head_dim", 64)}), name)
    spec = latent(fields, spec)
    moe = _with_shared(fields, spec, deepseek_experts(fields, spec, renormalize=True, top_k=8), shared)
    moe = replace(moe, correction=fields.flag("moe_router_enable_expert_bias", True))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 1, least=0)))


def pangu_ultra(fields: Fields, name: str) -> ModelSpec:
    """openPangu Ultra: a DeepSeek-V3 with norms behind both parts of a layer, and all experts in one group."""
    check_silu(fields)
    values = fields.values
    usual = {ours: values[theirs] for theirs, ours in _PANGU.items() if theirs in values}
    fields = Fields({"routed_scaling_factor": 2.5, "rope_theta": 10_000.0, **values, **usual, **_ONE_GROUP})
    if fields.has("rope_scaling"):
        raise ConfigError("rope_scaling is set, expected null: its context is not extended")
    # head_dim is the size of its rotating part
    spec = common(Fields({**fields.values, "head_dim": fields.integer("qk_rope_head_dim", 64)}), name, eps=1e-5)
    spec = latent(fields, spec)
    spec = with_mtp(spec, DEEPSEEK, fields.integer("num_nextn_predict_layers", 1, least=0))
    if fields.flag("sandwich_norm"):
        spec = with_layers(spec, norms=_PANGU_NORMS)
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8, shared=1)
    moe = replace(moe, correction=fields.flag("router_enable_expert_bias"))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 3, least=0)))


def _ling2(fields: Fields, name: str) -> ModelSpec:
    """Experts routed as in DeepSeek-V3 behind attention that is stored as one matrix."""
    check_silu(fields)
    expect(fields, {"score_function": "sigmoid"})
    spec = _ling_attention(fields, name, normed=True)
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8)
    moe = replace(moe, names=_LING_NAMES, correction=fields.flag("moe_router_enable_expert_bias", True))
    moe = _with_shared(fields, spec, moe, fields.integer("num_shared_experts", 1, least=0))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 0, least=0)))


def _ling_attention(fields: Fields, name: str, *, normed: bool) -> ModelSpec:
    """The dense model; ``normed``: whether heads have norms by default."""
    spec = with_mixers(
        common(fields, name),
        qkv_bias=fields.flag("use_qkv_bias"),
        output_bias=fields.flag("use_bias"),
        qk_norm="head" if fields.flag("use_qk_norm", normed) else "none",
        qk_norm_names=("query_layernorm", "key_layernorm"),
        fused=True,
        name="attention",
        into="query_key_value",
        out="dense",
    )
    return replace(spec, embedding="model.word_embeddings", normed_head=fields.flag("norm_head"))


def _with_shared(fields: Fields, spec: ModelSpec, moe: MoESpec, number: int) -> MoESpec:
    """The experts beside ``number`` shared ones, which may have a size of their own."""
    each = fields.integer("moe_shared_expert_intermediate_size", moe.inner)
    return replace(moe, shared=shared_experts(spec, "mlp.shared_experts", each * number) if number else None)
