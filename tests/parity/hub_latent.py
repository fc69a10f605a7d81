"""Tiny mixtures of experts with latent attention whose code comes with their checkpoints, for :mod:`.hub`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers as untyped_transformers

from stentor.tests.parity.hub_form import Published, Tensors, Values, same, theta

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    latents = {**shape, "num_key_value_heads": shape["num_attention_heads"], "num_experts_per_tok": 3, "n_group": 1}
    latents |= {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "topk_group": 1}
    latents |= {"moe_intermediate_size": 32, "n_routed_experts": 8, "first_k_dense_replace": 1}
    latents |= {"routed_scaling_factor": 1.5, "rms_norm_eps": 1e-5}
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    yarn |= {"mscale": 1.0, "mscale_all_dim": 0.7}
    ling: Values = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24, "head_dim": 16}
    ling |= {"num_local_experts": 8, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 2}
    ling |= {"moe_intermediate_size": 32, "first_k_dense_replace": 1}
    made: dict[str, Callable[[], Any]] = {
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
        "ling2.5": lambda: transformers.DeepseekV3Config(
            **{**latents, "num_hidden_layers": 5, "rms_norm_eps": 1e-6}, q_lora_rank=None, n_shared_experts=2
        ),
        "ling2.5-plain": lambda: transformers.DeepseekV3Config(
            **{**latents, "num_hidden_layers": 3, "rms_norm_eps": 1e-6}, q_lora_rank=24, n_shared_experts=1
        ),
        "mistral-own": lambda: transformers.MistralConfig(**shape, head_dim=24, sliding_window=None),
        "mistral-large3": lambda: transformers.Mistral4Config(
            **{**latents, "num_key_value_heads": 4},
            q_lora_rank=24,
            rope_parameters={
                **{field: value for field, value in yarn.items() if "mscale" not in field},
                "attention_factor": 1.0,
                "llama_4_scaling_beta": 0.3,
            },
        ),
    }
    newer = () if hasattr(transformers, "BailingHybridConfig") else ("ling3",)  # transformers 5.17 lacks it
    return {name: make for name, make in made.items() if name not in newer}


_LATENTS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size")


def _sarvam_mla(config: Any) -> Values:
    rope = {**config.rope_parameters, "type": "deepseek_yarn"}
    theta = rope.pop("rope_theta")
    del rope["rope_type"]
    own: Values = {"model_type": "sarvam_mla", "hidden_act": "silu", "num_experts": config.n_routed_experts}
    own |= {"num_shared_experts": config.n_shared_experts, "head_dim": 64, "tie_word_embeddings": False}
    own |= {"rope_theta": theta, "rope_scaling": rope, "num_key_value_heads": ...}
    kept = (*_LATENTS, "first_k_dense_replace", "num_experts_per_tok", "routed_scaling_factor")
    return {**own, **same(config, *kept)}


def _pangu(config: Any) -> Values:
    """The names of DeepSeek."""
    own: Values = {
        "model_type": "pangu_ultra_moe",
        "hidden_act": "silu",
        "sandwich_norm": True,
        "tie_word_embeddings": False,
    }
    own |= {"router_enable_expert_bias": True, "rope_theta": theta(config), "num_nextn_predict_layers": 1}
    kept = (*_LATENTS, "q_lora_rank", "first_k_dense_replace", "num_experts_per_tok", "routed_scaling_factor")
    return {**own, **same(config, *kept, "n_routed_experts", "n_shared_experts", "norm_topk_prob")}


def _pangu_renamed(config: Any) -> Values:
    """Names of its own, and no correction of the choice."""
    own: Values = {
        "model_type": "pangu_ultra_moe",
        "hidden_act": "silu",
        "sandwich_norm": True,
        "tie_word_embeddings": False,
    }
    own |= {"rope_theta": theta(config), "num_mtp_layers": 1, "num_dense_layers": config.first_k_dense_replace}
    own |= {"num_routed_experts": config.n_routed_experts, "num_shared_experts": config.n_shared_experts}
    own |= {"attention_kv_lora_dim": config.kv_lora_rank, "attention_q_lora_dim": config.q_lora_rank}
    own |= {"attention_qk_dim": config.qk_nope_head_dim, "attention_qk_rope_dim": config.qk_rope_head_dim}
    own |= {"attention_v_dim": config.v_head_dim}
    kept = ("num_experts_per_tok", "routed_scaling_factor", "moe_intermediate_size", "norm_topk_prob")
    return {**own, **same(config, *kept)}


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


def _with_draft(tensors: Tensors, config: Any) -> Tensors:
    """With a layer that predicts a further token."""
    return {**tensors, f"model.layers.{config.num_hidden_layers}.eh_proj.weight": torch.ones(1, 2)}


def _uncorrected(tensors: Tensors, config: Any) -> Tensors:
    found = {name: tensor for name, tensor in tensors.items() if "e_score_correction_bias" not in name}
    return _with_draft(found, config)


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
    own: Values = {
        "model_type": "mistral_large3",
        "hidden_act": "silu",
        "scoring_func": "softmax",
        "llama_4_scaling": grows,
    }
    own |= {"rope_parameters": {**rope, "mscale_all_dim": 1}, "tie_word_embeddings": False, "norm_topk_prob": True}
    kept = (*_LATENTS, "q_lora_rank", "first_k_dense_replace", "num_experts_per_tok", "routed_scaling_factor")
    return {**own, **same(config, *kept, "n_routed_experts", "n_shared_experts", "n_group", "topk_group")}


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
    own: Values = {
        "model_type": "bailing_hybrid",
        "hidden_act": "silu",
        "score_function": "sigmoid",
        "no_kda_lora": True,
    }
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
    kept = (*_LATENTS, "first_k_dense_replace", "num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group")
    return {**own, **same(config, *kept, "norm_topk_prob", "short_conv_kernel_size")}


class _Forgetting(torch.nn.Module):
    """Lightning attention of Ling 2.5, each token with all before it."""

    def __init__(self, config: Any, layer: int, *, normed: bool, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, inner = config.num_attention_heads, groups, config.num_attention_heads * _LING_HEAD
        self.query_key_value = torch.nn.Linear(config.hidden_size, 3 * inner, bias=False)
        self.g_proj = torch.nn.Linear(config.hidden_size, inner, bias=False)
        self.dense = torch.nn.Linear(inner, config.hidden_size, bias=False)
        self.g_norm = torch.nn.RMSNorm(inner, eps=config.rms_norm_eps)
        if normed:
            self.query_layernorm, self.key_layernorm = (torch.nn.RMSNorm(_LING_HEAD, eps=1e-6) for _ in "qk")
        self.normed, self.theta = normed, theta(config)
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / self.heads) for head in range(self.heads)])
        self.rates = slopes * (1 - layer / (config.num_hidden_layers - 1) + 1e-5)

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        """[rows, tokens, hidden] → the same"""
        q, k, v = self.query_key_value(hidden_states).unflatten(-1, (3, self.heads, _LING_HEAD)).unbind(2)
        if self.normed:
            q, k = self.query_layernorm(q), self.key_layernorm(k)
        at = torch.arange(q.shape[1])
        q, k = (self._turned(each, at).transpose(1, 2) for each in (q, k))
        far = (at[:, None] - at).float()
        kept = torch.exp(-self.rates[:, None, None] * far).masked_fill(far < 0, 0.0)
        read = ((q @ k.mT) * kept * _LING_HEAD**-0.5) @ v.transpose(1, 2)
        of_groups = read.transpose(1, 2).flatten(2).unflatten(-1, (self.groups, -1))
        normed = torch.nn.functional.rms_norm(of_groups, of_groups.shape[-1:], eps=self.g_norm.eps).flatten(2)
        return self.dense(normed * self.g_norm.weight * torch.sigmoid(self.g_proj(hidden_states))), None

    def _turned(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """The first half of each head, whose first half turns with its second."""
        pairs = _LING_HEAD // 4
        angles = at[:, None] * self.theta ** (-torch.arange(pairs) / pairs)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        a, b, rest = x.split_with_sizes((pairs, pairs, 2 * pairs), dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


_LING_HEAD = 16


@torch.no_grad()
def _with_lightning(model: Any, *, normed: bool = True, groups: int = 2) -> None:
    """With lightning attention in layers that are not the second of two, or left over."""
    layers = model.model.layers
    for at in range(0, len(layers) // 2 * 2, 2):
        made = _Forgetting(model.config, at, normed=normed, groups=groups)
        for name, parameter in made.named_parameters():
            parameter.uniform_(0.6, 1.4) if "norm" in name else parameter.normal_(0, 0.15)
        layers[at].self_attn = made


def _ling25(config: Any, *, normed: bool = True, groups: int = 2) -> Values:
    own: Values = {"model_type": "bailing_hybrid", "hidden_act": "silu", "score_function": "sigmoid"}
    own |= {"head_dim": _LING_HEAD, "partial_rotary_factor": 0.5, "rope_theta": theta(config), "rope_scaling": None}
    own |= {"layer_group_size": 2, "group_norm_size": groups, "use_qk_norm": normed, "linear_silu": False}
    own |= {"num_experts": config.n_routed_experts, "num_shared_experts": config.n_shared_experts}
    own |= {"use_bias": False, "use_qkv_bias": False, "tie_word_embeddings": False, "num_nextn_predict_layers": 0}
    kept = (*_LATENTS, "q_lora_rank", "first_k_dense_replace", "num_experts_per_tok", "routed_scaling_factor")
    return {**own, **same(config, *kept, "n_group", "topk_group", "norm_topk_prob")}


_LING_NAMES = {
    **{
        "self_attn.o_proj": "attention.dense",
        "self_attn.": "attention.",
        "model.embed_tokens": "model.word_embeddings",
    },
    "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
}


def _pair_by_pair(tensors: Tensors, config: Any) -> Tensors:
    """Queries and keys whose heads turn pair by pair, beside what sees pictures."""
    found: Tensors = {
        "vision_encoder.ln_pre.weight": torch.ones(2),
        "vision_language_adapter.w_in.weight": torch.ones(2),
    }
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            halves = tensor.unflatten(0, (-1, 2, config.head_dim // 2))
            tensor = halves.transpose(1, 2).flatten(0, 2)
        found[name] = tensor
    return found


def mistral_own(config: Any) -> Values:
    """As params.json becomes config.json."""
    own: Values = {"model_type": "mistral_pixtral", "rope_parameters": config.rope_parameters}
    return {**own, "tie_word_embeddings": False, **same(config, "head_dim")}


_DENSE = {**_MISTRAL, **{f"self_attn.{part}_proj": f"attention.w{part}" for part in "qkv"}}
PUBLISHED: Mapping[str, Published] = {
    "mistral-own": Published("PixtralForConditionalGeneration", _DENSE, mistral_own, _pair_by_pair),
    "sarvam-mla": Published("SarvamMLAForCausalLM", {}, _sarvam_mla),
    "pangu-ultra": Published("PanguUltraMoEForCausalLM", _PANGU, _pangu_renamed, _uncorrected, _sandwiched_plainly),
    "pangu-ultra-corrected": Published("PanguUltraMoEForCausalLM", _PANGU, _pangu, _with_draft, _sandwiched),
    "ling3": Published("BailingMoeV3ForCausalLM", {}, _ling3, _with_draft, _with_limit),
    "ling2.5": Published("BailingMoeV2_5ForCausalLM", _LING_NAMES, _ling25, prepared=_with_lightning),
    "ling2.5-plain": Published(
        "BailingMoeV2_5ForCausalLM",
        _LING_NAMES,
        partial(_ling25, normed=False, groups=1),
        prepared=partial(_with_lightning, normed=False, groups=1),
    ),
    "mistral-large3": Published("MistralLarge3ForCausalLM", _MISTRAL, mistral_large3, _experts_apart),
}
"""By the name of a configuration."""
