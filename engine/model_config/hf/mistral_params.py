"""Translates ``params.json``, which Mistral's own files have in place of config.json."""

from collections.abc import Mapping
from typing import Final

from ..config_fields import ConfigError, Fields

BY_PARAMS: Final = "mistral_pixtral"
"""Model type of dense models here, which may take pictures."""
_NAMES: Final[Mapping[str, str]] = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
    "activation": "hidden_act",
}
_OF_EXPERTS: Final[Mapping[str, str]] = {
    "route_every_n": "moe_layer_freq",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_experts": "n_routed_experts",
    "expert_hidden_dim": "moe_intermediate_size",
    "routed_scale": "routed_scaling_factor",
    "num_shared_experts": "n_shared_experts",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
}
_OF_YARN: Final[Mapping[str, str]] = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
_OF_TOWER: Final = (
    *("hidden_size", "num_channels", "image_size", "patch_size", "rope_theta", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads"),
)
_SAME: Final = (
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "vocab_size"),
    *("max_position_embeddings", "llama_4_scaling", "quantization_config"),
)
_KNOWN: Final = frozenset(
    {
        *(*_NAMES, *_SAME, "head_dim", "moe", "yarn", "rope_theta", "vision_encoder", "sliding_window", "quantization"),
        *("causal", "max_batch_size", "max_seq_len", "model_type"),
    }
)
"""Fields of dense models, some of which say nothing of what is computed."""


def config_from_params(params: Mapping[str, object]) -> dict[str, object]:
    """The equivalent config.json of Mistral Large 3, or of a dense model such as Pixtral. Raises :class:`ConfigError`
    for other models, which are published in transformers' form too."""
    fields = Fields(params)
    experts, yarn = (Fields(fields.table(name) or {}) for name in ("moe", "yarn"))
    latent = fields.has("kv_lora_rank")
    if latent != bool(experts.integer("num_shared_experts", 0, least=0)) or latent != bool(experts.values):
        raise ConfigError(
            "params.json is of a model with one of latent attention and shared experts, or other experts, expected "
            "Mistral Large 3 or a dense model; take the files of this model that have a config.json"
        )
    for field in ("sliding_window", "quantization", *(() if latent else ("yarn", "llama_4_scaling"))):
        if fields.has(field):
            raise ConfigError(f"{field} in params.json is {str(fields.get(field))[:40]!r}, expected null")
    unknown = [name for name, value in params.items() if value not in (None, False) and name not in _KNOWN]
    if not fields.flag("causal", True):
        unknown.append("causal")
    if unknown and not latent:
        raise ConfigError(
            f"{unknown[0][:40]} in params.json is of another kind of model than is known; take the files of this model "
            "that have a config.json"
        )
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": fields.number("rope_theta", 10_000.0)}
    if yarn.values:
        rope |= {"rope_type": "yarn", **{ours: yarn.get(theirs) for theirs, ours in _OF_YARN.items()}}
        rope |= {"mscale": 1.0, "mscale_all_dim": 1.0} if yarn.flag("apply_scale", True) else {"attention_factor": 1.0}
    vision: Mapping[str, object] = {}
    if not latent and (encoder := fields.table("vision_encoder")) is not None:
        vision = _with_pictures(Fields(encoder))
    architecture = "MistralLarge3ForCausalLM" if latent else "PixtralForConditionalGeneration"
    return {
        "architectures": [architecture],
        "model_type": "mistral_large3" if latent else BY_PARAMS,
        "max_position_embeddings": 128_000,
        **{ours: params[theirs] for theirs, ours in _NAMES.items() if theirs in params},
        **{ours: experts.get(theirs) for theirs, ours in _OF_EXPERTS.items() if experts.has(theirs)},
        **{field: params[field] for field in (*_SAME, *(() if latent else ("head_dim",))) if field in params},
        "rope_parameters": rope,
        **vision,
    }


def _with_pictures(encoder: Fields) -> dict[str, object]:
    """Fields of the tower and of what projects its patches."""
    merge = encoder.integer("spatial_merge_size", 1)
    told = encoder.text("mm_projector_id", ""), encoder.flag("add_pre_mm_projector_layer_norm")
    if told != (("patch_merge", True) if merge > 1 else ("", False)):
        raise ConfigError(
            f"vision_encoder in params.json has a spatial_merge_size of {merge} with mm_projector_id {told[0][:40]!r} "
            f"and add_pre_mm_projector_layer_norm {str(told[1]).lower()}, expected 'patch_merge' and true above 1"
        )
    return {
        "vision_config": {**{name: encoder.get(name) for name in _OF_TOWER if encoder.has(name)}, "hidden_act": "silu"},
        "spatial_merge_size": merge,
        "multimodal_projector_bias": encoder.flag("adapter_bias", True),
        "image_token_id": encoder.integer("image_token_id", least=0),
        "image_break_token_id": encoder.integer("image_break_token_id", 12, least=0),
        "image_end_token_id": encoder.integer("image_end_token_id", 13, least=0),
    }
