"""GGUF architectures that are converted to the equivalent config.json."""

import math
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError
from ..hf.latent import with_temperature
from ..spec.latent_attention import LatentAttentionSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers
from .recurrent import (
    by_part,
    gated_delta,
    granite_hybrid,
    jamba,
    lfm2,
    mamba,
    mamba2,
    mamba_alone,
    mamba_class,
    nemotron,
    tiled,
)
from .translation import GGUFFacts, GGUFTranslation, Values
from .windowed import gemma3n, gemma4, mimo2, step35, stretched_full

_SIGMOID: Final = 2
"""llama.cpp's number of the router's score."""
_MAVERICK_EXPERTS: Final = 128
_BAICHUAN_7B_LAYERS: Final = 32
_SCALES: Final[Mapping[str, str]] = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
}
"""Granite."""
_LATENTS: Final[Mapping[str, str]] = {
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
}
_NEMOTRON: Final[Mapping[str, str]] = {
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_routed_experts": "expert_count",
    "moe_latent_size": "moe_latent_size",
}
_LFM2: Final[Mapping[str, str]] = {
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "conv_L_cache": "shortconv.l_cache",
}
_LAYER_NORM: Final[Mapping[str, str]] = {"layer_norm_epsilon": "attention.layer_norm_epsilon"}
"""Families before Llama."""
_LOOPS: Final[Mapping[str, str]] = {"num_loops": "num_loops", "skip_loop_final_norm": "skip_loop_final_norm"}
_UNSCALED: Final[Mapping[str, object]] = {
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "shared_intermediate_size": 0,
}


def _unrounded(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """The bounds of the yarn ramp are not rounded, which no key says."""
    layers = []
    for layer in spec.layers:
        rope = layer.attention.rope
        assert rope is not None
        layers.append(replace(layer, mixer=replace(layer.attention, rope=replace(rope, truncate=False))))
    return replace(spec, layers=tuple(layers))


def _deepseek(facts: GGUFFacts) -> Values:
    fields = facts.fields
    rotating, groups = fields.integer("rope.dimension_count"), fields.integer("expert_group_count", 1)
    of_key = fields.integer("attention.key_length_mla", fields.integer("attention.key_length"))
    return {
        "qk_rope_head_dim": rotating,
        "qk_nope_head_dim": max(1, of_key - rotating),
        "v_head_dim": fields.integer("attention.value_length_mla", fields.integer("attention.value_length")),
        "head_dim": rotating,  # its rotating part
        "num_key_value_heads": facts.count("attention.head_count"),
        "attention_bias": facts.has("attn_kv_a_mqa.bias"),
        "first_k_dense_replace": facts.dense_first(),
        "topk_method": "group_limited_greedy" if groups > 1 else "greedy",
    }


def _deepseek_class(facts: GGUFFacts) -> str:
    if not facts.has("ffn_gate_inp.weight"):
        return "YoutuForCausalLM"
    sigmoid = facts.fields.integer("expert_gating_func", 1) == _SIGMOID or facts.has("exp_probs_b.bias")
    if sigmoid:
        return "DeepseekV3ForCausalLM"
    # Mistral Large 3 has the experts of Mistral 4
    return "Mistral4ForCausalLM" if facts.fields.flag("expert_weights_norm") else "DeepseekV2ForCausalLM"


def _kimi_linear(facts: GGUFFacts) -> Values:
    """Layers with attention have a latent."""
    attends = facts.having("attn_kv_a_mqa.weight")
    return {
        **_deepseek(facts),
        "topk_method": "noaux_tc",
        "linear_num_heads": facts.count("attention.head_count"),
        "linear_head_dim": facts.fields.integer("kda.head_dim"),
        "linear_conv_kernel_dim": facts.fields.integer("ssm.conv_kernel"),
        "layer_types": ["full_attention" if each else "linear_attention" for each in attends],
    }


def _latents(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Queries may be scaled by position (Mistral Large 3, Mistral 4)."""
    spec = _split_latents(spec, facts)
    if not (beta := facts.fields.number("attention.temperature_scale", 0.0)):
        return spec
    original = facts.fields.integer("rope.scaling.original_context_length", spec.max_position)
    return with_temperature(spec, beta, facts.fields.integer("attention.temperature_length", original))


def _split_latents(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """The projections to keys and to values are stored separately, except in old files."""
    apart = facts.having("attn_k_b.weight")
    layers = (
        replace(layer, mixer=replace(layer.mixer, made_apart=each))
        if isinstance(layer.mixer, LatentAttentionSpec)
        else layer
        for layer, each in zip(spec.layers, apart, strict=True)
    )
    return replace(spec, layers=tuple(layers))


def _glm4_moe(facts: GGUFFacts) -> Values:
    return {"use_qk_norm": facts.has("attn_q_norm.weight"), "first_k_dense_replace": facts.dense_first()}


def _llama4(facts: GGUFFacts) -> Values:
    """The largest model has no head norms, and attention may be chunked; no key says so."""
    sparse = facts.having("ffn_gate_inp.weight")
    values: Values = {
        "moe_layers": [layer for layer, each in enumerate(sparse) if each],
        "use_qk_norm": facts.count("expert_count") != _MAVERICK_EXPERTS,
    }
    if facts.fields.get("attention.sliding_window") == 0:
        return values | {"attention_chunk_size": None, "no_rope_layers": [1] * facts.layers}
    return values


def _ernie(facts: GGUFFacts) -> Values:
    shared = facts.outputs("ffn_up_shexp.weight", 0)
    return {"moe_num_shared_experts": shared // max(1, facts.count("expert_feed_forward_length"))}


def _hunyuan(facts: GGUFFacts) -> Values:
    inner = facts.outputs("ffn_up_shexp.weight", 0) // max(1, facts.count("feed_forward_length"))
    return {"num_shared_expert": max(1, inner), "moe_intermediate_size": facts.count("feed_forward_length")}


def _dense_first(facts: GGUFFacts) -> Values:
    return {"first_k_dense_replace": facts.dense_first(), "num_dense_layers": facts.dense_first()}


def _exaone_moe(facts: GGUFFacts) -> Values:
    return {
        **_dense_first(facts),
        "layer_types": facts.layer_types(4),
        "num_shared_experts": facts.count("expert_shared_count", 1),
    }


def _afmoe(facts: GGUFFacts) -> Values:
    scaled = {"mup_enabled": True}  # true of all published models; no key says so
    return {**_exaone_moe(facts), **scaled, "num_shared_experts": facts.count("expert_shared_count")}


def _minicpm(facts: GGUFFacts) -> Values:
    """Old files have no factors: those of the first models."""
    hidden, root = facts.fields.integer("embedding_length"), math.sqrt(facts.layers)
    return {
        "scale_emb": facts.fields.number("embedding_scale", 12.0),
        "scale_depth": facts.fields.number("residual_scale", 1.4 / root) * root,
        "dim_model_base": hidden / facts.fields.positive("logit_scale", hidden / 256),
    }


def _minicpm3(facts: GGUFFacts) -> Values:
    """Factors are those of the published models, which no key says."""
    fields, heads = facts.fields, facts.count("attention.head_count")
    rotating = fields.integer("rope.dimension_count")
    return {
        "qk_rope_head_dim": rotating,
        "qk_nope_head_dim": max(1, fields.integer("attention.key_length") - rotating),
        "v_head_dim": fields.integer("embedding_length") // max(1, heads),
        "head_dim": rotating,
        "num_key_value_heads": heads,
    }


def _baichuan(facts: GGUFFacts) -> Values:
    """Only those of 7 billion parameters rotate, which no key says."""
    if facts.layers == _BAICHUAN_7B_LAYERS:
        return {}
    return {"max_position_embeddings": None, "model_max_length": facts.fields.integer("context_length")}


def _unfused(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Queries, keys and values are stored apart."""
    return with_mixers(spec, fused=False)


def _ling2(facts: GGUFFacts) -> Values:
    if (gating := facts.fields.integer("expert_gating_func", _SIGMOID)) != _SIGMOID:
        raise ConfigError(f"expert_gating_func is {gating}, expected {_SIGMOID}: a sigmoid")
    return {
        "first_k_dense_replace": facts.dense_first(),
        "use_qkv_bias": facts.has("attn_qkv.bias"),
        "use_bias": facts.has("attn_output.bias"),
        "use_qk_norm": facts.has("attn_q_norm.weight"),
        "moe_router_enable_expert_bias": facts.has("exp_probs_b.bias"),
    }


def _nemotron_nas(facts: GGUFFacts) -> Values:
    """A layer without heads of keys has a matrix in place of attention, or neither."""
    blocks: list[object] = []
    counts = (facts.each(key) for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"))
    for heads, kv_heads, inner in zip(*counts, strict=True):
        attention = {"num_key_value_heads": kv_heads or None, "replace_with_linear": heads > 0 and not kv_heads}
        blocks.append({"attention": attention, "ffn": {"intermediate_size": inner or None}})
    return {"block_configs": blocks}


def _apart(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Queries, keys and values are stored apart."""
    return with_mixers(spec, fused=False)


def _undrafted(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Layers that predict further tokens are ignored."""
    return replace(spec, draft_layers=0)


def _falcon(facts: GGUFFacts) -> Values:
    """Models with one key-value head have one norm, others one or two; no key says more."""
    apart, kv_heads = facts.has("attn_norm_2.weight"), facts.count("attention.head_count_kv", 1)
    return {
        "new_decoder_architecture": apart or kv_heads > 1,
        "num_kv_heads": kv_heads,
        "num_ln_in_parallel_attn": 2 if apart else 1,
    }


def _mpt(facts: GGUFFacts) -> Values:
    """Fields of MPT's attention. A file without ALiBi has learned positions, which the config.json reader refuses."""
    steepest = facts.fields.number("attention.max_alibi_bias", 0.0)
    clip = facts.fields.number("attention.clamp_kqv", 0.0) or None
    return {"attn_config": {"alibi": steepest > 0, "alibi_bias_max": steepest or 8.0, "clip_qkv": clip}}


def _dbrx(facts: GGUFFacts) -> Values:
    """Fields of DBRX's attention and experts. The weights of a token's experts add up to 1, as llama.cpp has it."""
    attending = {
        "kv_n_heads": facts.count("attention.head_count_kv", 1),
        "clip_qkv": facts.fields.number("attention.clamp_kqv", 0.0) or None,
    }
    network = {
        "ffn_hidden_size": facts.count("feed_forward_length"),
        "moe_num_experts": facts.count("expert_count"),
        "moe_top_k": facts.count("expert_used_count"),
    }
    return {"attn_config": attending, "ffn_config": network}


def _in_rows(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """The spec for matrices stored as [outputs, inputs], with all queries before keys and values."""
    grouped = spec.layers[0].attention.by_group
    spec = with_mixers(spec, by_group=False, regrouped=grouped, transposed=False)
    return with_layers(spec, mlp=replace(dense_mlp(spec), transposed=False))


def _growing(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """The spec with query scaling by position, in steps of the original context length."""
    beta = facts.fields.number("attention.temperature_scale", 0.0)
    floor = facts.fields.integer("rope.scaling.original_context_length", spec.max_position)
    return with_mixers(spec, temperature_beta=beta, temperature_floor=floor) if beta else spec


TRANSLATIONS: Final[Mapping[str, GGUFTranslation]] = {
    "gpt-oss": GGUFTranslation(
        "GptOssForCausalLM",
        keys={"intermediate_size": "expert_feed_forward_length"},
        made=lambda facts: {"layer_types": facts.layer_types(2)},
        finish=_unrounded,
    ),
    "qwen3next": GGUFTranslation(
        "Qwen3NextForCausalLM",
        keys={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        unsaid={"norm_topk_prob": True},
        made=gated_delta,
        finish=by_part,
        plus_one=True,
    ),
    "qwen35": GGUFTranslation("Qwen3_5ForCausalLM", made=gated_delta, finish=tiled, plus_one=True),
    "qwen35moe": GGUFTranslation(
        "Qwen3_5MoeForCausalLM",
        keys={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        made=gated_delta,
        finish=tiled,
        plus_one=True,
    ),
    "deepseek2": GGUFTranslation(
        "DeepseekV3ForCausalLM",
        keys=_LATENTS,
        unsaid={"q_lora_rank": None},
        made=_deepseek,
        others=("DeepseekV2ForCausalLM", "YoutuForCausalLM", "Glm4MoeLiteForCausalLM", "Mistral4ForCausalLM"),
        named=_deepseek_class,
        finish=_latents,
    ),
    "mistral4": GGUFTranslation(
        "Mistral4ForCausalLM", keys=_LATENTS, unsaid={"q_lora_rank": None}, made=_deepseek, finish=_latents
    ),
    "minicpm3": GGUFTranslation("MiniCPM3ForCausalLM", keys=_LATENTS, unsaid={"q_lora_rank": None}, made=_minicpm3),
    "kimi-linear": GGUFTranslation(
        "KimiLinearForCausalLM",
        keys=_LATENTS,
        unsaid={"q_lora_rank": None, "norm_topk_prob": True},
        made=_kimi_linear,
        finish=_split_latents,
    ),
    "granitemoe": GGUFTranslation(
        "GraniteMoeForCausalLM",
        keys=_SCALES,
        unsaid=_UNSCALED,
        others=("GraniteMoeSharedForCausalLM",),
        permuted=True,
    ),
    "granitehybrid": GGUFTranslation(
        "GraniteMoeHybridForCausalLM", keys=_SCALES, unsaid=_UNSCALED, made=granite_hybrid, permuted=True
    ),
    "falcon-h1": GGUFTranslation("FalconH1ForCausalLM", unsaid={"mamba_norm_before_gate": False}, made=mamba),
    "mamba": GGUFTranslation(
        "MambaForCausalLM",
        keys={"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"},
        made=mamba_alone,
        others=("FalconMambaForCausalLM",),
        named=mamba_class,
    ),
    "jamba": GGUFTranslation("JambaForCausalLM", unsaid={"num_experts": 1}, made=jamba),
    "mamba2": GGUFTranslation(
        "Mamba2ForCausalLM", keys={"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}, made=mamba2
    ),
    "nemotron_h": GGUFTranslation("NemotronHForCausalLM", keys=_NEMOTRON, made=nemotron),
    "nemotron_h_moe": GGUFTranslation("NemotronHForCausalLM", keys=_NEMOTRON, made=nemotron),
    "lfm2": GGUFTranslation("Lfm2ForCausalLM", keys=_LFM2, made=lfm2),
    "lfm2moe": GGUFTranslation("Lfm2MoeForCausalLM", keys=_LFM2, unsaid={"norm_topk_prob": True}, made=lfm2),
    "minimax-m2": GGUFTranslation("MiniMaxM2ForCausalLM", keys={"intermediate_size": "expert_feed_forward_length"}),
    "glm4moe": GGUFTranslation("Glm4MoeForCausalLM", unsaid={"norm_topk_prob": True}, made=_glm4_moe),
    "llama4": GGUFTranslation(
        "Llama4ForCausalLM",
        keys={"intermediate_size": "expert_feed_forward_length", "intermediate_size_mlp": "feed_forward_length"},
        made=_llama4,
    ),
    "qwen2moe": GGUFTranslation(
        "Qwen2MoeForCausalLM",
        keys={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        made=lambda facts: {"qkv_bias": facts.has("attn_q.bias")},
    ),
    "ernie4_5-moe": GGUFTranslation(
        "Ernie4_5_MoeForCausalLM",
        keys={
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_layer_interval": "interleave_moe_layer_step",
            "moe_layer_start_index": "leading_dense_block_count",
        },
        made=_ernie,
    ),
    "hunyuan-moe": GGUFTranslation("HunYuanMoEV1ForCausalLM", keys={"moe_topk": "expert_used_count"}, made=_hunyuan),
    "dots1": GGUFTranslation("Dots1ForCausalLM", made=_dense_first),
    "exaone-moe": GGUFTranslation("ExaoneMoeForCausalLM", made=_exaone_moe),
    "afmoe": GGUFTranslation("AfmoeForCausalLM", keys={"route_scale": "expert_weights_scale"}, made=_afmoe),
    "mimo2": GGUFTranslation(
        "MiMoV2FlashForCausalLM",
        keys={"v_head_dim": "attention.value_length", "attention_value_scale": "attention.value_scale"},
        unsaid={"norm_topk_prob": True},
        made=mimo2,
        finish=_undrafted,
    ),
    "step35": GGUFTranslation(
        "Step3p5ForCausalLM",
        keys={
            "share_expert_dim": "expert_shared_feed_forward_length",
            "moe_router_scaling_factor": "expert_weights_scale",
        },
        made=step35,
        finish=stretched_full,
        common_rope=False,
        plus_one=True,
    ),
    "mistral3": GGUFTranslation("Ministral3ForCausalLM", finish=_growing, permuted=True),
    "olmo": GGUFTranslation("OlmoForCausalLM", keys={"clip_qkv": "attention.clamp_kqv"}, permuted=True),
    "minicpm": GGUFTranslation("MiniCPMForCausalLM", made=_minicpm, permuted=True),
    "baichuan": GGUFTranslation("BaichuanForCausalLM", made=_baichuan, finish=_unfused, permuted=True),
    "xverse": GGUFTranslation("XverseForCausalLM", permuted=True),
    "orion": GGUFTranslation("OrionForCausalLM", keys={"rms_norm_eps": "attention.layer_norm_epsilon"}),
    "qwen": GGUFTranslation("QWenLMHeadModel"),
    "pangu-embedded": GGUFTranslation(
        "PanguEmbeddedForCausalLM", made=lambda facts: {"bias": facts.has("attn_q.bias")}
    ),
    "nanbeige": GGUFTranslation("NanbeigeForCausalLM", keys=_LOOPS, unsaid={"num_loops": 1}, permuted=True),
    "ouro": GGUFTranslation("OuroForCausalLM", keys={"total_ut_steps": "num_loops"}, permuted=True),
    "deepseek": GGUFTranslation(
        "DeepseekForCausalLM",
        keys={"n_routed_experts": "expert_count"},
        made=_dense_first,
        permuted=True,
    ),
    "bailingmoe": GGUFTranslation(
        "BailingMoeForCausalLM",
        keys={"num_shared_experts": "expert_shared_count"},
        made=_dense_first,
        finish=_apart,
        permuted=True,
    ),
    "bailingmoe2": GGUFTranslation(
        "BailingMoeV2ForCausalLM",
        keys={"num_shared_experts": "expert_shared_count"},
        made=_ling2,
        finish=_undrafted,
    ),
    "deci": GGUFTranslation("DeciLMForCausalLM", made=_nemotron_nas, permuted=True),
    "jais2": GGUFTranslation(
        "Jais2ForCausalLM",
        keys={"layer_norm_eps": "attention.layer_norm_epsilon"},
        made=lambda facts: {"mlp_bias": facts.has("ffn_down.bias")},
    ),
    "phimoe": GGUFTranslation("PhimoeForCausalLM", made=lambda facts: {"lm_head_bias": "output.bias" in facts.shapes}),
    "gpt2": GGUFTranslation("GPT2LMHeadModel", keys=_LAYER_NORM, finish=_in_rows),
    "starcoder": GGUFTranslation("GPTBigCodeForCausalLM", keys=_LAYER_NORM, finish=_in_rows),
    "bloom": GGUFTranslation("BloomForCausalLM", keys=_LAYER_NORM, finish=_in_rows),
    "mpt": GGUFTranslation("MptForCausalLM", keys=_LAYER_NORM, made=_mpt, finish=_in_rows),
    "dbrx": GGUFTranslation("DbrxForCausalLM", keys=_LAYER_NORM, made=_dbrx),
    "gptneox": GGUFTranslation(
        "GPTNeoXForCausalLM",
        keys={
            "layer_norm_eps": "attention.layer_norm_epsilon",
            "use_parallel_residual": "use_parallel_residual",
        },
        made=lambda facts: {"attention_bias": facts.has("attn_qkv.bias")},
        finish=_in_rows,
    ),
    "falcon": GGUFTranslation("FalconForCausalLM", keys=_LAYER_NORM, made=_falcon, finish=_in_rows),
    "gemma3n": GGUFTranslation(
        "Gemma3nForCausalLM",
        keys={
            "final_logit_softcapping": "final_logit_softcapping",
            "hidden_size_per_layer_input": "embedding_length_per_layer_input",
            "altup_num_inputs": "altup.num_inputs",
            "altup_active_idx": "altup.active_idx",
        },
        made=gemma3n,
        common_rope=False,
    ),
    "gemma4": GGUFTranslation(
        "Gemma4ForCausalLM", keys={"final_logit_softcapping": "final_logit_softcapping"}, made=gemma4, common_rope=False
    ),
}
"""By llama.cpp's names."""
