"""Tiny mixtures of experts whose code comes with their checkpoints, for :mod:`.hub`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers as untyped_transformers

from stentor.tests.parity.hub_form import Published, Tensors, Values, joined, same, with_draft

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
_LING = {
    "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "self_attn.": "attention.",
    "e_score_correction_bias": "expert_bias",
    "embed_tokens": "word_embeddings",
}
_ling_joined = joined("query_key_value")
_PUZZLE = ((3, 8, 32), (1, 6, 16))
"""Experts that a token uses, all of them, and inner units of one, in each layer with experts of a Nemotron Puzzle."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    qwen = {**shape, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "qkv_bias": False}
    glm: Values = {
        **shape,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "head_dim": 32,
    }
    glm |= {"use_qk_norm": True, "routed_scaling_factor": 1.5, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-6}
    latents = {**shape, "num_key_value_heads": shape["num_attention_heads"], "num_experts_per_tok": 3, "n_group": 1}
    latents |= {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "topk_group": 1}
    latents |= {"moe_intermediate_size": 32, "n_routed_experts": 8, "first_k_dense_replace": 1}
    latents |= {"routed_scaling_factor": 1.5, "rms_norm_eps": 1e-5}
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    yarn |= {"mscale": 1.0, "mscale_all_dim": 0.7}
    ling: Values = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24, "head_dim": 16}
    ling |= {"num_local_experts": 8, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 2}
    ling |= {"moe_intermediate_size": 32, "first_k_dense_replace": 1}
    mamba = {"head_dim": 16, "ssm_state_size": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2}
    return {
        "deepseek": lambda: transformers.Qwen2MoeConfig(
            **qwen, shared_expert_intermediate_size=64, mlp_only_layers=[0], norm_topk_prob=False
        ),
        "ling1": lambda: transformers.Qwen2MoeConfig(
            **qwen, shared_expert_intermediate_size=64, norm_topk_prob=True, rms_norm_eps=1e-5
        ),
        "ling2": lambda: transformers.Glm4MoeConfig(
            **{**glm, "partial_rotary_factor": 0.5}, n_group=4, topk_group=2, n_shared_experts=2
        ),
        "sarvam-moe": lambda: transformers.Glm4MoeConfig(**glm, n_group=4, topk_group=2, n_shared_experts=2),
        "param2": lambda: transformers.Glm4MoeConfig(**glm, n_group=1, topk_group=1, n_shared_experts=2),
        "sarvam-mla": lambda: transformers.DeepseekV3Config(
            **latents, q_lora_rank=None, n_shared_experts=1, rope_parameters=yarn
        ),
        "pangu-ultra": lambda: transformers.DeepseekV3Config(**latents, q_lora_rank=24, n_shared_experts=2),
        "pangu-ultra-corrected": lambda: transformers.DeepseekV3Config(**latents, q_lora_rank=24, n_shared_experts=1),
        "ling3": lambda: transformers.BailingHybridConfig(
            **{**shape, "num_hidden_layers": 5, "num_key_value_heads": 4},
            **ling,
            layer_types=[f"{kind}_attention" for kind in ("linear", "full", "linear", "full", "full")],
        ),
        **{
            name: lambda: transformers.MiMoV2FlashConfig(
                **{**shape, "num_hidden_layers": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
                head_dim=24,
                v_head_dim=16,
                n_routed_experts=6,
                sliding_window=24,
                layer_types=[f"{kind}_attention" for kind in ("full", "sliding", "sliding", "full")],
                mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
                attn_implementation="eager",
            )
            for name in ("mimo-v2", "mimo-v2-fp8")
        },
        "mistral-large3": lambda: transformers.Mistral4Config(
            **{**latents, "num_key_value_heads": 4},
            q_lora_rank=24,
            rope_parameters={
                **{field: value for field, value in yarn.items() if "mscale" not in field},
                "attention_factor": 1.0,
                "llama_4_scaling_beta": 0.3,
            },
        ),
        "nemotron-puzzle": lambda: transformers.NemotronHConfig(
            **{field: value for field, value in shape.items() if field != "num_hidden_layers"},
            **mamba,
            chunk_size=16,
            layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=48,
            moe_latent_size=32,
            routed_scaling_factor=1.5,
        ),
    }


def _theta(config: Any) -> float:
    return float(config.rope_parameters["rope_theta"])


@torch.no_grad()
def _half_shared(model: Any) -> None:
    """With a gate of shared experts that is always a half."""
    for layer in model.model.layers:
        if (gate := getattr(layer.mlp, "shared_expert_gate", None)) is not None:
            gate.weight.zero_()


def _ungated(tensors: Tensors, config: Any) -> Tensors:
    """Shared experts without their gate."""
    found = {}
    for name, tensor in tensors.items():
        if "shared_expert_gate" not in name:
            scaled = tensor / 2 if "shared_expert.down_proj" in name else tensor
            found[name.replace("shared_expert.", "shared_experts.")] = scaled
    return found


def _deepseek(config: Any) -> Values:
    own = {"model_type": "deepseek", "hidden_act": "silu", "tie_word_embeddings": False, "scoring_func": "softmax"}
    own |= {"n_routed_experts": config.num_experts, "n_shared_experts": 2, "moe_layer_freq": 1}
    own |= {"first_k_dense_replace": 1, "rope_theta": _theta(config), "rope_scaling": None}
    return {**own, **same(config, "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")}


@torch.no_grad()
def _with_normed_head(model: Any) -> None:
    _half_shared(model)
    head = model.lm_head.weight
    head.div_(head.norm(dim=0))


def _ling1(tensors: Tensors, config: Any) -> Tensors:
    """With a head whose columns have other lengths than 1."""
    lengths = torch.linspace(0.5, 3.0, config.hidden_size)
    tensors = {**tensors, "lm_head.weight": tensors["lm_head.weight"] * lengths}
    return _ling_joined(_ungated(tensors, config), config)


def _ling1_described(config: Any) -> Values:
    own = {"model_type": "bailing_moe", "hidden_act": "silu", "use_bias": False, "use_qkv_bias": False}
    own |= {"norm_head": True, "norm_softmax": False, "num_shared_experts": 2, "first_k_dense_replace": 0}
    own |= {"tie_word_embeddings": False, "rope_theta": _theta(config), "rope_scaling": None}
    return {**own, **same(config, "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")}


def _ling_like(config: Any) -> Values:
    own = {"hidden_act": "silu", "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True, "rope_scaling": None}
    own |= {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, "tie_word_embeddings": False}
    own |= {"num_experts": config.n_routed_experts, "num_shared_experts": config.n_shared_experts}
    fields = ("head_dim", "first_k_dense_replace", "moe_intermediate_size", "num_experts_per_tok", "n_group")
    return {**own, "rope_theta": _theta(config), **same(config, *fields, "topk_group", "routed_scaling_factor")}


def _ling2(config: Any) -> Values:
    own = {"model_type": "bailing_moe", "norm_head": False, "partial_rotary_factor": 0.5, "norm_topk_prob": True}
    return {**_ling_like(config), **own}


def _ling2_stored(tensors: Tensors, config: Any) -> Tensors:
    return with_draft(_ling_joined(tensors, config), config)


def _sarvam_moe(config: Any) -> Values:
    return {**_ling_like(config), "model_type": "sarvam_moe", "norm_topk_prob": True}


def _param2(config: Any) -> Values:
    shared = config.moe_intermediate_size * config.n_shared_experts
    return {**_ling_like(config), "model_type": "param2moe", "moe_shared_expert_intermediate_size": shared}


_LATENTS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size")


def _sarvam_mla(config: Any) -> Values:
    rope = {**config.rope_parameters, "type": "deepseek_yarn"}
    theta = rope.pop("rope_theta")
    del rope["rope_type"]
    own = {"model_type": "sarvam_mla", "hidden_act": "silu", "num_experts": config.n_routed_experts}
    own |= {"num_shared_experts": config.n_shared_experts, "head_dim": 64, "tie_word_embeddings": False}
    own |= {"rope_theta": theta, "rope_scaling": rope, "num_key_value_heads": ...}
    fields = (*_LATENTS, "first_k_dense_replace", "num_experts_per_tok", "routed_scaling_factor")
    return {**own, **same(config, *fields)}


def _pangu(config: Any) -> Values:
    """The names of DeepSeek."""
    own = {"model_type": "pangu_ultra_moe", "hidden_act": "silu", "sandwich_norm": True, "tie_word_embeddings": False}
    own |= {"router_enable_expert_bias": True, "rope_theta": _theta(config), "num_nextn_predict_layers": 1}
    fields = (*_LATENTS, "q_lora_rank", "first_k_dense_replace", "num_experts_per_tok", "routed_scaling_factor")
    return {**own, **same(config, *fields, "n_routed_experts", "n_shared_experts", "norm_topk_prob")}


def _pangu_renamed(config: Any) -> Values:
    """Names of its own, and no correction of the choice."""
    own = {"model_type": "pangu_ultra_moe", "hidden_act": "silu", "sandwich_norm": True, "tie_word_embeddings": False}
    own |= {"rope_theta": _theta(config), "num_mtp_layers": 1, "num_dense_layers": config.first_k_dense_replace}
    own |= {"num_routed_experts": config.n_routed_experts, "num_shared_experts": config.n_shared_experts}
    own |= {"attention_kv_lora_dim": config.kv_lora_rank, "attention_q_lora_dim": config.q_lora_rank}
    own |= {"attention_qk_dim": config.qk_nope_head_dim, "attention_qk_rope_dim": config.qk_rope_head_dim}
    own |= {"attention_v_dim": config.v_head_dim}
    fields = ("num_experts_per_tok", "routed_scaling_factor", "moe_intermediate_size", "norm_topk_prob")
    return {**own, **same(config, *fields)}


@torch.no_grad()
def _sandwiched(model: Any) -> None:
    """With a norm behind each part of a layer."""
    for layer in model.model.layers:
        for part, name in ((layer.self_attn, "after_attention"), (layer.mlp, "after_mlp")):
            norm = type(layer.input_layernorm)(model.config.hidden_size, eps=model.config.rms_norm_eps)
            norm.weight.uniform_(0.6, 1.4)
            layer.add_module(name, norm)
            part.register_forward_hook(_Behind(norm))


class _Behind:
    """Norms what a module returns, or the first of it."""

    def __init__(self, norm: Any) -> None:
        self._norm = norm

    def __call__(self, module: Any, arguments: Any, output: Any) -> Any:
        return (self._norm(output[0]), *output[1:]) if isinstance(output, tuple) else self._norm(output)


@torch.no_grad()
def _sandwiched_plainly(model: Any) -> None:
    _sandwiched(model)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.zero_()


_PANGU = {
    "post_attention_layernorm": "pre_mlp_layernorm",
    "after_attention": "post_attention_layernorm",
    "after_mlp": "post_mlp_layernorm",
}


def _uncorrected(tensors: Tensors, config: Any) -> Tensors:
    found = {name: tensor for name, tensor in tensors.items() if "e_score_correction_bias" not in name}
    return with_draft(found, config)


def _fused(tensors: Tensors, config: Any) -> Tensors:
    """Queries, keys and values as one matrix, beside what draws sounds."""
    found = joined("qkv_proj")(tensors, config)
    return {**found, "visual.patch_embed.proj.weight": torch.ones(2, 2), "model.mtp.layers.0.x.weight": torch.ones(1)}


_CHUNKS = 2


def _in_float8(tensors: Tensors, config: Any) -> Tensors:
    """That matrix in float8, in chunks with scales of their own."""
    found = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            found |= _chunked(name, [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        elif "k_proj" not in name and "v_proj" not in name:
            found[name] = tensor
    return found


def _chunked(name: str, parts: list[torch.Tensor]) -> Tensors:
    codes, scales = [], []
    for chunk in zip(*(part.chunk(_CHUNKS) for part in parts), strict=True):
        for block in torch.cat(chunk).split(128):
            scales.append(block.abs().max() / 448)
            codes.append((block / scales[-1]).to(torch.float8_e4m3fn))
    fused = name.replace("q_proj", "qkv_proj")
    scale = torch.stack(scales).unsqueeze(1)
    return {fused: torch.cat(codes), fused.replace(".weight", ".weight_scale_inv"): scale}


@torch.no_grad()
def _rounded_to_float8(model: Any) -> None:
    for layer in model.model.layers:
        parts = [getattr(layer.self_attn, f"{part}_proj").weight for part in "qkv"]
        for chunk in zip(*(part.chunk(_CHUNKS) for part in parts), strict=True):
            rows = torch.cat(chunk)
            scales = [block.abs().max() / 448 for block in rows.split(128)]
            rounded = [
                (block / scale).to(torch.float8_e4m3fn).float() * scale
                for block, scale in zip(rows.split(128), scales, strict=True)
            ]
            for part, values in zip(chunk, torch.cat(rounded).split([len(part) for part in chunk]), strict=True):
                part.copy_(values)


def _mimo_v2(config: Any) -> Values:
    full, window = (config.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    slides = [int(kind == "sliding_attention") for kind in config.layer_types]
    own = {"model_type": "mimo_v2", "hidden_act": "silu", "attention_projection_layout": "fused_qkv"}
    own |= {"hybrid_layer_pattern": slides, "moe_layer_freq": [0, 1, 1, 1], "rope_theta": full["rope_theta"]}
    own |= {"swa_rope_theta": window["rope_theta"], "partial_rotary_factor": full["partial_rotary_factor"]}
    own |= {"swa_num_attention_heads": config.num_attention_heads, "swa_num_key_value_heads": 4}
    own |= {"swa_head_dim": config.head_dim, "swa_v_head_dim": config.v_head_dim, "sliding_window_size": 23}
    own |= {"add_swa_attention_sink_bias": True, "tie_word_embeddings": False, "topk_method": "noaux_tc"}
    own |= {"layernorm_epsilon": config.rms_norm_eps, "rms_norm_eps": ..., "scoring_func": "sigmoid"}
    own |= {"vision_config": {"hidden_size": 2}, "routed_scaling_factor": None}
    fields = ("head_dim", "v_head_dim", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "n_group")
    return {**own, **same(config, *fields, "topk_group", "attention_value_scale", "norm_topk_prob")}


def _mimo_v2_fp8(config: Any) -> Values:
    plain = ["re:.*(mlp|o_proj).*", "lm_head"]
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return {**_mimo_v2(config), "quantization_config": {**fp8, "ignored_layers": plain}}


_MISTRAL = {
    "model.layers.": "layers.",
    "self_attn.q_a_proj": "attention.wq_a",
    "self_attn.q_a_layernorm": "attention.q_a_norm",
    "self_attn.q_b_proj": "attention.wq_b",
    "self_attn.kv_a_proj_with_mqa": "attention.wkv_a_with_mqa",
    "self_attn.kv_a_layernorm": "attention.kv_a_norm",
    "self_attn.kv_b_proj": "attention.wkv_b",
    "self_attn.o_proj": "attention.wo",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attention_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.": "",
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
}


def _experts_apart(tensors: Tensors, config: Any) -> Tensors:
    """A matrix for each expert, beside what sees pictures."""
    found: Tensors = {"vision_encoder.ln_pre.weight": torch.ones(2)}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found[name] = tensor
            continue
        stem, _, which = name.rpartition(".")
        for expert, matrix in enumerate(tensor):
            parts = ("gate_proj", "up_proj") if which == "gate_up_proj" else (which,)
            for part, rows in zip(parts, matrix.chunk(len(parts)), strict=True):
                found[f"{stem}.{expert}.{part}.weight"] = rows
    return found


def mistral_large3(config: Any) -> Values:
    """As config.json has it."""
    rope = {field: value for field, value in config.rope_parameters.items() if field != "llama_4_scaling_beta"}
    grows = {"beta": 0.3, "original_max_position_embeddings": rope["original_max_position_embeddings"]}
    own = {"model_type": "mistral_large3", "hidden_act": "silu", "scoring_func": "softmax", "llama_4_scaling": grows}
    own |= {"rope_parameters": {**rope, "mscale_all_dim": 1}, "tie_word_embeddings": False, "norm_topk_prob": True}
    fields = (*_LATENTS, "q_lora_rank", "first_k_dense_replace", "num_experts_per_tok", "routed_scaling_factor")
    return {**own, **same(config, *fields, "n_routed_experts", "n_shared_experts", "n_group", "topk_group")}


_LIMIT = 1.5
"""Of shared experts of the last layer of a Ling 3.0."""


class _Limited:
    """A network whose gates have a limit behind their activation."""

    def __init__(self, mlp: Any) -> None:
        self._mlp = mlp

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.nn.functional.silu(self._mlp.gate_proj(x)).clamp(max=_LIMIT)
        return self._mlp.down_proj(gate * self._mlp.up_proj(x).clamp(-_LIMIT, _LIMIT))  # type: ignore[no-any-return]


@torch.no_grad()
def _with_limit(model: Any) -> None:
    shared = model.model.layers[-1].mlp.shared_experts
    shared.gate_proj.weight.mul_(6)
    shared.down_proj.weight.div_(4)
    shared.forward = _Limited(shared)


def _ling3(config: Any) -> Values:
    own = {"model_type": "bailing_hybrid", "hidden_act": "silu", "score_function": "sigmoid", "no_kda_lora": True}
    own |= {
        "kda_safe_gate": True,
        "kda_lower_bound": config.kda_lower_bound,
        "layer_group_size": 2,
        "q_lora_rank": None,
    }
    own |= {"gated_attention_proj_granularity_type": "head_wise", "rope_theta": config.rope_theta, "head_dim": 16}
    own |= {"num_experts": config.num_local_experts, "num_shared_experts": config.n_shared_experts}
    own |= {"moe_shared_expert_intermediate_size": config.moe_intermediate_size, "partial_rotary_factor": 0.5}
    own |= {"share_expert_swiglu_limit_list": [None, 0.0, 0.0, 0.0, _LIMIT, 0.0], "num_nextn_predict_layers": 1}
    own |= {"expert_swiglu_limit_list": [None] * 6, "tie_word_embeddings": False}
    fields = (
        *_LATENTS,
        "first_k_dense_replace",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
    )
    return {**own, **same(config, *fields, "norm_topk_prob", "short_conv_kernel_size")}


def _sparse(model: Any) -> list[Any]:
    """The mixtures of experts of a Nemotron."""
    return [layer.mixer for layer in model.model.layers if hasattr(layer.mixer, "experts")]


@torch.no_grad()
def _puzzled(model: Any) -> None:
    """Units without inputs are none, and experts that are never chosen are none."""
    for (top_k, count, inner), mixture in zip(_PUZZLE, _sparse(model), strict=True):
        mixture.gate.top_k = mixture.top_k = top_k
        mixture.gate.e_score_correction_bias[count:] = -100.0
        mixture.experts.up_proj[:, inner:] = 0


def _without_lacking(tensors: Tensors, config: Any) -> Tensors:
    """Without what :func:`_puzzled` made none, under names that begin otherwise; beside a head that drafts."""
    sizes = dict(zip((1, 3), _PUZZLE, strict=True))
    found: Tensors = {"mtp.layers.0.eh_proj.weight": torch.ones(1, 2)}
    for name, tensor in tensors.items():
        layer = int(name.split(".")[2]) if ".layers." in name else 0
        _, count, inner = sizes.get(layer, (0, 0, 0))
        if ".experts." in name and "shared" not in name:
            if int(name.split(".experts.")[1].split(".")[0]) >= count:
                continue
            tensor = tensor[:inner] if "up_proj" in name else tensor[:, :inner]
        elif ".gate." in name and count:
            tensor = tensor[:count]
        found[name.replace("backbone.", "model.", 1)] = tensor
    return found


def _puzzle(config: Any) -> Values:
    experts = iter(_PUZZLE)
    blocks: list[Values] = []
    for kind in config.layers_block_type:
        block: Values = {"block_type": {"linear_attention": "mamba", "full_attention": "attention"}.get(kind, kind)}
        if kind == "moe":
            top_k, count, inner = next(experts)
            block |= {"num_experts_per_tok": top_k, "n_routed_experts": count, "moe_intermediate_size": inner}
        blocks.append(block)
    own: Values = {"model_type": "nemotron_h_puzzle", "block_configs": blocks, "num_nextn_predict_layers": 1}
    own |= {"num_hidden_layers": None, "rms_norm_eps": ..., "tie_word_embeddings": False}
    fields = ("head_dim", "ssm_state_size", "mamba_num_heads", "mamba_head_dim", "n_groups", "moe_latent_size")
    others = ("moe_shared_expert_intermediate_size", "routed_scaling_factor", "norm_topk_prob", "layer_norm_epsilon")
    return {**own, **same(config, *fields, *others)}


PUBLISHED: Mapping[str, Published] = {
    "deepseek": Published("DeepseekForCausalLM", {}, _deepseek, _ungated, _half_shared),
    "ling1": Published("BailingMoeForCausalLM", _LING, _ling1_described, _ling1, _with_normed_head),
    "ling2": Published("BailingMoeV2ForCausalLM", _LING, _ling2, _ling2_stored),
    "sarvam-moe": Published("SarvamMoEForCausalLM", _LING, _sarvam_moe, _ling_joined),
    "param2": Published("Param2MoEForCausalLM", _LING, _param2, _ling_joined),
    "sarvam-mla": Published("SarvamMLAForCausalLM", {}, _sarvam_mla),
    "pangu-ultra": Published("PanguUltraMoEForCausalLM", _PANGU, _pangu_renamed, _uncorrected, _sandwiched_plainly),
    "pangu-ultra-corrected": Published("PanguUltraMoEForCausalLM", _PANGU, _pangu, with_draft, _sandwiched),
    "ling3": Published("BailingMoeV3ForCausalLM", {}, _ling3, with_draft, _with_limit),
    "mimo-v2": Published("MiMoV2ForCausalLM", {"sinks": "attention_sink_bias"}, _mimo_v2, _fused),
    "mimo-v2-fp8": Published("MiMoV2ForCausalLM", {}, _mimo_v2_fp8, _in_float8, _rounded_to_float8),
    "mistral-large3": Published("MistralLarge3ForCausalLM", _MISTRAL, mistral_large3, _experts_apart),
    "nemotron-puzzle": Published("NemotronHPuzzleForCausalLM", {}, _puzzle, _without_lacking, _puzzled),
}
"""By the name of a configuration."""
