"""GGUF architectures that are converted to the equivalent config.json."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Final

from .attention_spec import LatentAttentionSpec
from .config_fields import ConfigError
from .gguf_translation import GGUFFacts, GGUFTranslation, Values
from .model_spec import ModelSpec, dense_mlp, with_layers, with_mixers
from .recurrent_spec import GatedDeltaSpec

_SIGMOID: Final = 2
"""llama.cpp's number of the router's score."""
_MAVERICK_EXPERTS: Final = 128
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
_UNSCALED: Final[Mapping[str, object]] = {
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "shared_intermediate_size": 0,
}


def _gpt_oss(facts: GGUFFacts) -> Values:
    slides = facts.slides(2)
    return {"layer_types": ["sliding_attention" if each else "full_attention" for each in slides]}


def _unrounded(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """The bounds of the yarn ramp are not rounded, which no key says."""
    layers = []
    for layer in spec.layers:
        rope = layer.attention.rope
        assert rope is not None
        layers.append(replace(layer, mixer=replace(layer.attention, rope=replace(rope, truncate=False))))
    return replace(spec, layers=tuple(layers))


def _gated_delta(facts: GGUFFacts) -> Values:
    heads = facts.fields.integer("ssm.time_step_rank")
    attends = facts.having("attn_output.weight")
    return {
        "linear_num_key_heads": facts.fields.integer("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": facts.fields.integer("ssm.state_size"),
        "linear_value_head_dim": max(1, facts.fields.integer("ssm.inner_size") // heads),
        "linear_conv_kernel_dim": facts.fields.integer("ssm.conv_kernel"),
        "layer_types": ["full_attention" if each else "linear_attention" for each in attends],
    }


def _by_part(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Qwen3-Next's projections are stored as Qwen3.5's, except in files of its first converter."""
    if facts.has("ssm_in.weight"):
        return spec
    layers = (
        replace(layer, mixer=replace(layer.mixer, stored="by_part"))
        if isinstance(layer.mixer, GatedDeltaSpec)
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def _tiled(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Value heads of a key head are not adjacent."""
    layers = (
        replace(layer, mixer=replace(layer.mixer, tiled=layer.mixer.v_heads > layer.mixer.k_heads))
        if isinstance(layer.mixer, GatedDeltaSpec)
        else layer
        for layer in spec.layers
    )
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
    return "DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM"


def _kimi_linear(facts: GGUFFacts) -> Values:
    """Layers with attention have a latent."""
    attends = facts.having("attn_kv_a_mqa.weight")
    return {
        **_deepseek(facts),
        "linear_num_heads": facts.count("attention.head_count"),
        "linear_head_dim": facts.fields.integer("kda.head_dim"),
        "linear_conv_kernel_dim": facts.fields.integer("ssm.conv_kernel"),
        "layer_types": ["full_attention" if each else "linear_attention" for each in attends],
    }


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


def _mamba(facts: GGUFFacts) -> Values:
    """For Granite 4, Bamba and Falcon-H1."""
    fields = facts.fields
    return {
        "mamba_n_heads": fields.integer("ssm.time_step_rank"),
        "mamba_d_ssm": fields.integer("ssm.inner_size"),
        "mamba_expand": fields.integer("ssm.inner_size") / fields.integer("embedding_length"),
        "mamba_n_groups": fields.integer("ssm.group_count"),
        "mamba_d_state": fields.integer("ssm.state_size"),
        "mamba_d_conv": fields.integer("ssm.conv_kernel"),
        "mamba_conv_bias": facts.has("ssm_conv1d.bias"),
        "mamba_proj_bias": facts.has("ssm_in.bias"),
        "projectors_bias": facts.has("ssm_in.bias"),
        "mamba_rms_norm": facts.has("ssm_norm.weight"),
        "mlp_bias": facts.has("ffn_down.bias"),
    }


def _granite_hybrid(facts: GGUFFacts) -> Values:
    if facts.fields.flag("rope.scaling.finetuned", True) and facts.has("ssm_in.weight"):
        raise ConfigError("it is a Bamba, whose rotated heads a GGUF file stores in no known order")
    stem = "ffn_up_shexp" if facts.has("ffn_gate_inp.weight") else "ffn_up"
    return {
        **_mamba(facts),
        "num_local_experts": facts.count("expert_count"),
        "shared_intermediate_size": facts.outputs(f"{stem}.weight", 0),
        "position_embedding_type": "nope" if facts.has("ssm_in.weight") else "rope",
        "layer_types": ["mamba" if each else "attention" for each in facts.having("ssm_in.weight")],
    }


def _nemotron(facts: GGUFFacts) -> Values:
    fields = facts.fields
    stored = {"M": "ssm_in.weight", "*": "attn_q.weight", "E": "ffn_gate_inp.weight", "-": "ffn_up.weight"}
    having = {letter: facts.having(tensor) for letter, tensor in stored.items()}
    heads = fields.integer("ssm.time_step_rank")
    return {
        "hybrid_override_pattern": "".join(
            next((letter for letter in having if having[letter][layer]), "?") for layer in range(facts.layers)
        ),
        "mamba_num_heads": heads,
        "mamba_head_dim": max(1, fields.integer("ssm.inner_size") // heads),
        "n_groups": fields.integer("ssm.group_count"),
        "ssm_state_size": fields.integer("ssm.state_size"),
        "conv_kernel": fields.integer("ssm.conv_kernel"),
        "use_conv_bias": facts.has("ssm_conv1d.bias"),
        "use_bias": facts.has("ssm_in.bias"),
        "mlp_bias": facts.has("ffn_down.bias"),
    }


def _mamba_alone(facts: GGUFFacts) -> Values:
    fields = facts.fields
    return {
        "intermediate_size": fields.integer("ssm.inner_size"),
        "time_step_rank": fields.integer("ssm.time_step_rank"),
        "state_size": fields.integer("ssm.state_size"),
        "conv_kernel": fields.integer("ssm.conv_kernel"),
        "use_conv_bias": facts.has("ssm_conv1d.bias"),
        "use_bias": facts.has("ssm_in.bias"),
    }


def _mamba_class(facts: GGUFFacts) -> str:
    return "FalconMambaForCausalLM" if facts.fields.flag("ssm.dt_b_c_rms") else "MambaForCausalLM"


def _jamba(facts: GGUFFacts) -> Values:
    fields = facts.fields
    return {
        "mamba_expand": fields.integer("ssm.inner_size") // fields.integer("embedding_length"),
        "mamba_dt_rank": fields.integer("ssm.time_step_rank"),
        "mamba_d_state": fields.integer("ssm.state_size"),
        "mamba_d_conv": fields.integer("ssm.conv_kernel"),
        "mamba_conv_bias": facts.has("ssm_conv1d.bias"),
        "mamba_proj_bias": facts.has("ssm_in.bias"),
        **_periodic("attn_layer", facts.having("attn_q.weight")),
        **_periodic("expert_layer", facts.having("ffn_gate_inp.weight")),
    }


def _periodic(what: str, having: list[bool]) -> Values:
    """The period and offset of these layers, by the first two; with fewer, a period past the last layer."""
    first, second, *_ = [*(layer for layer, has in enumerate(having) if has), *[len(having)] * 2]
    period = second - first if second < len(having) else len(having) + 1
    return {f"{what}_period": period, f"{what}_offset": first}


def _mamba2(facts: GGUFFacts) -> Values:
    fields = facts.fields
    inner, heads = fields.integer("ssm.inner_size"), fields.integer("ssm.time_step_rank")
    return {
        "num_heads": heads,
        "head_dim": max(1, inner // heads),
        "expand": inner / fields.integer("embedding_length"),
        "n_groups": fields.integer("ssm.group_count"),
        "state_size": fields.integer("ssm.state_size"),
        "conv_kernel": fields.integer("ssm.conv_kernel"),
        "use_conv_bias": facts.has("ssm_conv1d.bias"),
        "use_bias": facts.has("ssm_in.bias"),
    }


def _lfm2(facts: GGUFFacts) -> Values:
    return {
        "block_auto_adjust_ff_dim": False,
        "conv_bias": facts.has("shortconv.conv.bias"),
        "layer_types": ["conv" if each else "full_attention" for each in facts.having("shortconv.conv.weight")],
        "num_dense_layers": facts.dense_first(),
        "use_expert_bias": facts.has("exp_probs_b.bias"),
    }


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
    slides = facts.slides(4)
    kinds = ["sliding_attention" if each else "full_attention" for each in slides]
    return {**_dense_first(facts), "layer_types": kinds, "num_shared_experts": facts.count("expert_shared_count", 1)}


def _afmoe(facts: GGUFFacts) -> Values:
    scaled = {"mup_enabled": True}  # true of all published models; no key says so
    return {**_exaone_moe(facts), **scaled, "num_shared_experts": facts.count("expert_shared_count")}


def _mimo2(facts: GGUFFacts) -> Values:
    fields, slides = facts.fields, facts.slides(6)
    by_layer = facts.each("attention.head_count_kv")
    if len(slides) != facts.layers:
        raise ConfigError(f"attention.sliding_window_pattern is of {len(slides)} layers, expected {facts.layers}")
    sparse = facts.having("ffn_gate_inp.weight")
    rotating = fields.integer("rope.dimension_count") / fields.integer("attention.key_length")
    return {
        "num_key_value_heads": _heads_of(by_layer, [not each for each in slides]),
        "swa_num_key_value_heads": _heads_of(by_layer, slides),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "mlp_layer_types": ["sparse" if each else "dense" for each in sparse],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": rotating}
            for kind, theta in (
                ("full_attention", fields.number("rope.freq_base", 5_000_000.0)),
                ("sliding_attention", fields.number("rope.freq_base_swa", 10_000.0)),
            )
        },
    }


def _heads_of(heads: list[int], which: list[bool]) -> int:
    """Of the first of these layers, or of the first at all."""
    return next((each for each, has in zip(heads, which, strict=True) if has), heads[0])


def _undrafted(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Layers that predict further tokens are ignored."""
    return replace(spec, draft_layers=0)


def _gemma4(facts: GGUFFacts) -> Values:
    """Layers with a window and full ones have different heads. Dimensions of full layers that do not rotate have a
    divisor that stops them."""
    fields, slides = facts.fields, facts.slides(6)
    by_layer, sizes = facts.each("attention.head_count_kv"), facts.each("feed_forward_length")
    if len(slides) != facts.layers:
        raise ConfigError(f"attention.sliding_window_pattern is of {len(slides)} layers, expected {facts.layers}")
    divisors = facts.read_floats("rope_freqs.weight") if "rope_freqs.weight" in facts.shapes else (1.0,)
    own = facts.count("attention.shared_kv_layers")
    valued = facts.having("attn_v.weight")[: facts.layers - own]
    table = facts.shapes.get("per_layer_token_embd.weight", (0, 1))
    if len(table) != 2:
        raise ConfigError("the tensor per_layer_token_embd.weight is no matrix")
    sparse = facts.has("ffn_gate_inp.weight")
    return {
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "head_dim": fields.integer("attention.key_length_swa"),
        "global_head_dim": fields.integer("attention.key_length"),
        "num_key_value_heads": _heads_of(by_layer, slides),
        "num_global_key_value_heads": _heads_of(by_layer, [not each for each in slides]),
        "attention_k_eq_v": not all(valued),
        "num_kv_shared_layers": own,
        "hidden_size_per_layer_input": facts.count("embedding_length_per_layer_input") or None,
        "vocab_size_per_layer_input": table[1],
        "intermediate_size": sizes[0],
        "use_double_wide_mlp": sizes[-1] == 2 * sizes[0],
        "enable_moe_block": sparse,
        "top_k_experts": facts.count("expert_used_count", 1) or 1,
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": fields.number("rope.freq_base_swa", 10_000.0),
                "partial_rotary_factor": fields.integer(
                    "rope.dimension_count_swa", fields.integer("attention.key_length_swa")
                )
                / fields.integer("attention.key_length_swa"),
            },
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": fields.number("rope.freq_base", 1_000_000.0),
                "partial_rotary_factor": sum(each == 1.0 for each in divisors) / len(divisors),
            },
        },
    }


def _gemma3n(facts: GGUFFacts) -> Values:
    """Stored of how sparse gates are is how many deviations above the mean they are cut off; -inf is not."""
    fields, slides = facts.fields, facts.slides(5)
    cutoffs = fields.get("activation_sparsity_scale")
    if not isinstance(cutoffs, list) or not all(isinstance(each, float) for each in cutoffs):
        raise ConfigError("activation_sparsity_scale is missing, expected a list of numbers")
    table = facts.shapes.get("per_layer_token_embd.weight", ())
    if len(table) != 2:
        raise ConfigError("the tensor per_layer_token_embd.weight is missing")
    return {
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "num_kv_shared_layers": facts.count("attention.shared_kv_layers"),
        "vocab_size_per_layer_input": table[1],
        "intermediate_size": facts.each("feed_forward_length"),
        "activation_sparsity_pattern": [NormalDist().cdf(each) for each in cutoffs],
        "laurel_rank": facts.outputs("laurel_l.weight", 0),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": fields.number("rope.freq_base_swa", 10_000.0)},
            "full_attention": {"rope_type": "default", "rope_theta": fields.number("rope.freq_base", 1_000_000.0)},
        },
    }


def _falcon(facts: GGUFFacts) -> Values:
    """Models with one key-value head have one norm, others one or two; no key says more."""
    apart, kv_heads = facts.has("attn_norm_2.weight"), facts.count("attention.head_count_kv", 1)
    return {
        "new_decoder_architecture": apart or kv_heads > 1,
        "num_kv_heads": kv_heads,
        "num_ln_in_parallel_attn": 2 if apart else 1,
    }


def _in_rows(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Matrices are stored as [outputs, inputs], all queries before keys and values."""
    grouped = spec.layers[0].attention.by_group
    spec = with_mixers(spec, by_group=False, regrouped=grouped, transposed=False)
    return with_layers(spec, mlp=replace(dense_mlp(spec), transposed=False))


def _growing(spec: ModelSpec, facts: GGUFFacts) -> ModelSpec:
    """Query scaling by position, in steps of the original context length."""
    beta = facts.fields.number("attention.temperature_scale", 0.0)
    floor = facts.fields.integer("rope.scaling.original_context_length", spec.max_position)
    return with_mixers(spec, temperature_beta=beta, temperature_floor=floor) if beta else spec


TRANSLATIONS: Final[Mapping[str, GGUFTranslation]] = {
    "gpt-oss": GGUFTranslation(
        "GptOssForCausalLM", keys={"intermediate_size": "expert_feed_forward_length"}, made=_gpt_oss, finish=_unrounded
    ),
    "qwen3next": GGUFTranslation(
        "Qwen3NextForCausalLM",
        keys={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        unsaid={"norm_topk_prob": True},
        made=_gated_delta,
        finish=_by_part,
        plus_one=True,
    ),
    "qwen35": GGUFTranslation("Qwen3_5ForCausalLM", made=_gated_delta, finish=_tiled, plus_one=True),
    "qwen35moe": GGUFTranslation(
        "Qwen3_5MoeForCausalLM",
        keys={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        made=_gated_delta,
        finish=_tiled,
        plus_one=True,
    ),
    "deepseek2": GGUFTranslation(
        "DeepseekV3ForCausalLM",
        keys=_LATENTS,
        unsaid={"q_lora_rank": None},
        made=_deepseek,
        others=("DeepseekV2ForCausalLM", "YoutuForCausalLM", "Glm4MoeLiteForCausalLM"),
        named=_deepseek_class,
        finish=_split_latents,
    ),
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
        "GraniteMoeHybridForCausalLM", keys=_SCALES, unsaid=_UNSCALED, made=_granite_hybrid, permuted=True
    ),
    "falcon-h1": GGUFTranslation("FalconH1ForCausalLM", unsaid={"mamba_norm_before_gate": False}, made=_mamba),
    "mamba": GGUFTranslation(
        "MambaForCausalLM",
        keys={"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"},
        made=_mamba_alone,
        others=("FalconMambaForCausalLM",),
        named=_mamba_class,
    ),
    "jamba": GGUFTranslation("JambaForCausalLM", unsaid={"num_experts": 1}, made=_jamba),
    "mamba2": GGUFTranslation(
        "Mamba2ForCausalLM", keys={"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}, made=_mamba2
    ),
    "nemotron_h": GGUFTranslation("NemotronHForCausalLM", keys=_NEMOTRON, made=_nemotron),
    "nemotron_h_moe": GGUFTranslation("NemotronHForCausalLM", keys=_NEMOTRON, made=_nemotron),
    "lfm2": GGUFTranslation("Lfm2ForCausalLM", keys=_LFM2, made=_lfm2),
    "lfm2moe": GGUFTranslation("Lfm2MoeForCausalLM", keys=_LFM2, unsaid={"norm_topk_prob": True}, made=_lfm2),
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
        made=_mimo2,
        finish=_undrafted,
    ),
    "mistral3": GGUFTranslation("Ministral3ForCausalLM", finish=_growing, permuted=True),
    "olmo": GGUFTranslation("OlmoForCausalLM", keys={"clip_qkv": "attention.clamp_kqv"}, permuted=True),
    "jais2": GGUFTranslation(
        "Jais2ForCausalLM",
        keys={"layer_norm_eps": "attention.layer_norm_epsilon"},
        made=lambda facts: {"mlp_bias": facts.has("ffn_down.bias")},
    ),
    "phimoe": GGUFTranslation("PhimoeForCausalLM", made=lambda facts: {"lm_head_bias": "output.bias" in facts.shapes}),
    "gpt2": GGUFTranslation("GPT2LMHeadModel", keys=_LAYER_NORM, finish=_in_rows),
    "starcoder": GGUFTranslation("GPTBigCodeForCausalLM", keys=_LAYER_NORM, finish=_in_rows),
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
        made=_gemma3n,
        turned=False,
    ),
    "gemma4": GGUFTranslation(
        "Gemma4ForCausalLM", keys={"final_logit_softcapping": "final_logit_softcapping"}, made=_gemma4, turned=False
    ),
}
"""By llama.cpp's names."""
