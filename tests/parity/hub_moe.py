"""Tiny mixtures of experts whose code comes with their checkpoints, for :mod:`.hub`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers as untyped_transformers

from stentor.tests.parity.hub_form import Published, Tensors, Values, joined_qkv, same, theta

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
    mamba = {"head_dim": 16, "ssm_state_size": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2}
    return {
        **{
            name: lambda: transformers.MixtralConfig(**shape, num_local_experts=6, num_experts_per_tok=2)
            for name in ("arctic", "arctic-sequential")
        },
        **{
            name: lambda: transformers.Gemma2Config(
                **shape,
                head_dim=16,
                query_pre_attn_scalar=12,
                layer_types=["full_attention"] * shape["num_hidden_layers"],
                attn_logit_softcapping=3.0,
                final_logit_softcapping=2.0,
                tie_word_embeddings=False,
                attn_implementation="eager",
            )
            for name in ("grok1", "grok2")
        },
        "deepseek": lambda: transformers.Qwen2MoeConfig(
            **qwen, shared_expert_intermediate_size=64, mlp_only_layers=[0], norm_topk_prob=False
        ),
        "ling1": lambda: transformers.Qwen2MoeConfig(
            **qwen, shared_expert_intermediate_size=64, norm_topk_prob=True, rms_norm_eps=1e-5
        ),
        "sarvam-moe": lambda: transformers.Glm4MoeConfig(**glm, n_group=4, topk_group=2, n_shared_experts=2),
        "param2": lambda: transformers.Glm4MoeConfig(**glm, n_group=1, topk_group=1, n_shared_experts=2),
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


@torch.no_grad()
def half_shared(model: Any) -> None:
    """With a gate of shared experts that is always a half."""
    for layer in model.model.layers:
        if (gate := getattr(layer.mlp, "shared_expert_gate", None)) is not None:
            gate.weight.zero_()


def ungated(tensors: Tensors, config: Any) -> Tensors:
    """Shared experts without their gate."""
    found = {}
    for name, tensor in tensors.items():
        if "shared_expert_gate" not in name:
            scaled = tensor / 2 if "shared_expert.down_proj" in name else tensor
            found[name.replace("shared_expert.", "shared_experts.")] = scaled
    return found


def _deepseek(config: Any) -> Values:
    own: Values = {
        "model_type": "deepseek",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "scoring_func": "softmax",
    }
    own |= {"n_routed_experts": config.num_experts, "n_shared_experts": 2, "moe_layer_freq": 1}
    own |= {"first_k_dense_replace": 1, "rope_theta": theta(config), "rope_scaling": None}
    return {**own, **same(config, "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")}


@torch.no_grad()
def _with_normed_head(model: Any) -> None:
    half_shared(model)
    head = model.lm_head.weight
    head.div_(head.norm(dim=0))


def _ling1(tensors: Tensors, config: Any) -> Tensors:
    """With a head whose columns have other lengths than 1."""
    lengths = torch.linspace(0.5, 3.0, config.hidden_size)
    tensors = {**tensors, "lm_head.weight": tensors["lm_head.weight"] * lengths}
    return joined_qkv()(ungated(tensors, config), config)


def _ling1_described(config: Any) -> Values:
    own: Values = {"model_type": "bailing_moe", "hidden_act": "silu", "use_bias": False, "use_qkv_bias": False}
    own |= {"norm_head": True, "norm_softmax": False, "num_shared_experts": 2, "first_k_dense_replace": 0}
    own |= {"tie_word_embeddings": False, "rope_theta": theta(config), "rope_scaling": None}
    return {**own, **same(config, "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")}


def _ling_like(config: Any) -> Values:
    own: Values = {
        "hidden_act": "silu",
        "use_bias": False,
        "use_qkv_bias": False,
        "use_qk_norm": True,
        "rope_scaling": None,
    }
    own |= {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, "tie_word_embeddings": False}
    own |= {"num_experts": config.n_routed_experts, "num_shared_experts": config.n_shared_experts}
    kept = ("head_dim", "first_k_dense_replace", "moe_intermediate_size", "num_experts_per_tok", "n_group")
    return {**own, "rope_theta": theta(config), **same(config, *kept, "topk_group", "routed_scaling_factor")}


def _sarvam_moe(config: Any) -> Values:
    return {**_ling_like(config), "model_type": "sarvam_moe", "norm_topk_prob": True}


def _param2(config: Any) -> Values:
    shared = config.moe_intermediate_size * config.n_shared_experts
    return {**_ling_like(config), "model_type": "param2moe", "moe_shared_expert_intermediate_size": shared}


def _fused(tensors: Tensors, config: Any) -> Tensors:
    """Queries, keys and values as one matrix, beside what draws sounds."""
    found = joined_qkv("qkv_proj")(tensors, config)
    return {**found, "visual.patch_embed.proj.weight": torch.ones(2, 2), "model.mtp.layers.0.x.weight": torch.ones(1)}


_CHUNKS = 2


def _in_float8(tensors: Tensors, config: Any) -> Tensors:
    """That matrix in float8, in chunks with scales of their own."""
    found: Tensors = {}
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
    own: Values = {"model_type": "mimo_v2", "hidden_act": "silu", "attention_projection_layout": "fused_qkv"}
    own |= {"hybrid_layer_pattern": slides, "moe_layer_freq": [0, 1, 1, 1], "rope_theta": full["rope_theta"]}
    own |= {"swa_rope_theta": window["rope_theta"], "partial_rotary_factor": full["partial_rotary_factor"]}
    own |= {"swa_num_attention_heads": config.num_attention_heads, "swa_num_key_value_heads": 4}
    own |= {"swa_head_dim": config.head_dim, "swa_v_head_dim": config.v_head_dim, "sliding_window_size": 23}
    own |= {"add_swa_attention_sink_bias": True, "tie_word_embeddings": False, "topk_method": "noaux_tc"}
    own |= {"layernorm_epsilon": config.rms_norm_eps, "rms_norm_eps": ..., "scoring_func": "sigmoid"}
    own |= {"vision_config": {"hidden_size": 2}, "routed_scaling_factor": None}
    kept = ("head_dim", "v_head_dim", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "n_group")
    return {**own, **same(config, *kept, "topk_group", "attention_value_scale", "norm_topk_prob")}


def _mimo_v2_fp8(config: Any) -> Values:
    plain = ["re:.*(mlp|o_proj).*", "lm_head"]
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return {**_mimo_v2(config), "quantization_config": {**fp8, "ignored_layers": plain}}


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
    kept = ("head_dim", "ssm_state_size", "mamba_num_heads", "mamba_head_dim", "n_groups", "moe_latent_size")
    others = ("moe_shared_expert_intermediate_size", "routed_scaling_factor", "norm_topk_prob", "layer_norm_epsilon")
    return {**own, **same(config, *kept, *others)}


def _arctic_layer(layer: Any, hidden: torch.Tensor, **given: Any) -> torch.Tensor:
    """A layer whose experts take its input, beside a dense network behind attention."""
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden), **given)
    behind: torch.Tensor = hidden + attended
    dense = layer.beside(layer.residual_layernorm(behind))
    found: torch.Tensor = behind + dense + layer.mlp(layer.post_attention_layernorm(hidden))
    return found


def _dense(hidden: int, inner: int) -> Any:
    config = transformers.LlamaConfig(hidden_size=hidden, intermediate_size=inner)
    found = transformers.models.llama.modeling_llama.LlamaMLP(config)
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, 0, 0.1)
    return found.eval()


def _alternating(model: Any) -> None:
    """Every second layer has experts."""
    for layer in model.model.layers[::2]:
        layer.mlp = _dense(model.config.hidden_size, model.config.intermediate_size)


def _beside_experts(model: Any) -> None:
    _alternating(model)
    hidden = model.config.hidden_size
    for layer in model.model.layers[1::2]:
        layer.beside = _dense(hidden, hidden)
        layer.residual_layernorm = type(layer.input_layernorm)(hidden)
        torch.nn.init.uniform_(layer.residual_layernorm.weight, 0.5, 1.5)
        layer.forward = partial(_arctic_layer, layer)


def _arctic(config: Any) -> Values:
    own: Values = {"model_type": "arctic", "hidden_act": "silu", "tie_word_embeddings": False, "moe_layer_frequency": 2}
    own |= {"use_residual": True, "parallel_attn_mlp_res": True, "sliding_window": None, "quantization": None}
    return {**own, "rope_theta": theta(config), **same(config, "num_local_experts", "num_experts_per_tok")}


def _arctic_sequential(config: Any) -> Values:
    return {**_arctic(config), "use_residual": False, "parallel_attn_mlp_res": False}


_ARCTIC = {
    "beside.gate_proj": "residual_mlp.w1",
    "beside.up_proj": "residual_mlp.w3",
    "beside.down_proj": "residual_mlp.w2",
    "block_sparse_moe.gate_proj": "block_sparse_moe.mlp.w1",
    "block_sparse_moe.up_proj": "block_sparse_moe.mlp.w3",
    "block_sparse_moe.down_proj": "block_sparse_moe.mlp.w2",
}
_GROK_EXPERTS, _GROK_CHOSEN, _GROK_INNER, _GROK_CAP = 6, 2, 48, 1.5


class _GrokRouter(torch.nn.Module):
    top_k = _GROK_CHOSEN

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(_GROK_EXPERTS, hidden) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T


class _GrokExpert(torch.nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.linear, self.linear_v = (torch.nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.linear_1 = torch.nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.nn.functional.gelu(self.linear(x), approximate="tanh")
        found: torch.Tensor = self.linear_1(gate * self.linear_v(x))
        return found


class _GrokMixture(torch.nn.Module):
    """The sum of the chosen experts with the shares that they have of all; ``dense``: a network beside them."""

    def __init__(self, hidden: int, dense: _GrokExpert | None) -> None:
        super().__init__()
        self.gate, self.dense = _GrokRouter(hidden), dense
        self.experts = torch.nn.ModuleList(_GrokExpert(hidden, _GROK_INNER) for _ in range(_GROK_EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = (_GROK_CAP * (self.gate(x) / _GROK_CAP).tanh()).softmax(-1)
        least = shares.topk(_GROK_CHOSEN, dim=-1).values[..., -1:]
        kept = torch.where(shares >= least, shares, 0)
        found = sum(expert(x) * kept[..., [number]] for number, expert in enumerate(self.experts))
        assert isinstance(found, torch.Tensor)
        return found if self.dense is None else (found + self.dense(x)) * 0.5**0.5


def _with_mixtures(model: Any, *, beside: bool) -> None:
    hidden, inner = model.config.hidden_size, model.config.intermediate_size
    for layer in model.model.layers:
        layer.mlp = _GrokMixture(hidden, _GrokExpert(hidden, inner) if beside else None)
    model.eval()


def _grok_stored(tensors: Tensors, config: Any) -> Tensors:
    """Norms that multiply by their weights, as they are, and a head whose logits are multiplied."""
    found = {name: tensor + 1 if "norm" in name else tensor for name, tensor in tensors.items()}
    return {**found, "lm_head.weight": tensors["lm_head.weight"] / _GROK_FACTOR}


_GROK_FACTOR = 0.6


def _grok1(config: Any) -> Values:
    own: Values = {"model_type": "grok-1", "num_experts": _GROK_EXPERTS, "num_experts_per_tok": _GROK_CHOSEN}
    own |= {"intermediate_size": _GROK_INNER, "tie_word_embeddings": False, "output_multiplier_scale": _GROK_FACTOR}
    own |= {"attn_output_multiplier": config.query_pre_attn_scalar**-0.5, "router_logit_softcapping": _GROK_CAP}
    own |= {"max_attn_value": config.attn_logit_softcapping, "embedding_multiplier_scale": config.hidden_size**0.5}
    return {**own, **same(config, "final_logit_softcapping")}


def _grok2(config: Any) -> Values:
    own = {**_grok1(config), "num_local_experts": _GROK_EXPERTS, "intermediate_size": config.intermediate_size}
    own |= {"moe_intermediate_size": _GROK_INNER, "residual_moe": True, "sliding_window_size": -1}
    own |= {"attn_temperature_len": config.max_position_embeddings, "rope_type": "original"}
    absent = ("num_experts", "max_attn_value")
    found = {field: value for field, value in own.items() if field not in absent}
    return {**found, **same(config, "attn_logit_softcapping"), "rope_theta": theta(config)}


_GROK = {
    "input_layernorm.weight": "pre_attn_norm.scale",
    "post_attention_layernorm.weight": "post_attn_norm.scale",
    "pre_feedforward_layernorm.weight": "pre_moe_norm.scale",
    "post_feedforward_layernorm.weight": "post_moe_norm.scale",
    "model.norm.weight": "model.norm.scale",
    "self_attn.": "attn.",
    "mlp.": "moe_block.",
}
_GROK2 = {
    **{name: new.replace("scale", "weight") for name, new in _GROK.items() if "norm" in name},
    **{f"dense.{old}.": f"dense.{new}_proj." for old, new in (("linear", "gate"), ("linear_v", "up"))},
    "dense.linear_1.": "dense.down_proj.",
    "mlp.dense.": "m_l_p.",
    "mlp.": "block_sparse_moe.",
    "m_l_p.": "mlp.",
    ".linear.": ".w1.",
    ".linear_v.": ".w3.",
    ".linear_1.": ".w2.",
}
PUBLISHED: Mapping[str, Published] = {
    "grok1": Published("Grok1ModelForCausalLM", _GROK, _grok1, _grok_stored, partial(_with_mixtures, beside=False)),
    "grok2": Published("Grok1ForCausalLM", _GROK2, _grok2, _grok_stored, partial(_with_mixtures, beside=True)),
    "arctic": Published("ArcticForCausalLM", _ARCTIC, _arctic, prepared=_beside_experts),
    "arctic-sequential": Published("ArcticForCausalLM", _ARCTIC, _arctic_sequential, prepared=_alternating),
    "deepseek": Published("DeepseekForCausalLM", {}, _deepseek, ungated, half_shared),
    "ling1": Published("BailingMoeForCausalLM", _LING, _ling1_described, _ling1, _with_normed_head),
    "sarvam-moe": Published("SarvamMoEForCausalLM", _LING, _sarvam_moe, joined_qkv()),
    "param2": Published("Param2MoEForCausalLM", _LING, _param2, joined_qkv()),
    "mimo-v2": Published("MiMoV2ForCausalLM", {"sinks": "attention_sink_bias"}, _mimo_v2, _fused),
    "mimo-v2-fp8": Published("MiMoV2ForCausalLM", {}, _mimo_v2_fp8, _in_float8, _rounded_to_float8),
    "nemotron-puzzle": Published("NemotronHPuzzleForCausalLM", {}, _puzzle, _without_lacking, _puzzled),
}
"""By the name of a configuration."""
