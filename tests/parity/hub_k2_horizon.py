"""Tiny K2 Horizons, for :mod:`.hub`: GLM-4.5 with norms, gates and a rotation of its own."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers as untyped_transformers
from torch import nn
from torch.nn.functional import pad, silu, softplus

from stentor.tests.parity.hub_form import Published, Tensors, Values, same, theta

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
_TURNING, _GROUPS, _MATRICES, _CHOSEN = 6, 4, 5, 2
"""Dimensions of a head that rotate; groups of a norm; matrices of values, and those that a token chooses."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    experts: Values = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_routed_experts": 8, "n_group": 1}
    experts |= {"topk_group": 1, "n_shared_experts": 2, "routed_scaling_factor": 1.5, "use_qk_norm": True}
    sizes = {**shape, **experts, "head_dim": 16, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-6}
    return {
        "k2-horizon": lambda: transformers.Glm4MoeConfig(**sizes, first_k_dense_replace=1),
        "k2-horizon-values": lambda: transformers.Glm4MoeConfig(**sizes, first_k_dense_replace=1),
        "k2-horizon-dense": lambda: transformers.Glm4MoeConfig(**sizes, first_k_dense_replace=3),
    }


class _Normed(nn.Module):
    """x / rms · weight over each of some parts, all of which have weights of their own."""

    def __init__(self, parts: int, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.parts, self.eps = nn.Parameter(torch.empty(parts * size).uniform_(0.6, 1.4)), parts, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., parts · size], or [..., parts, size] → the same."""
        wide = x.reshape(*x.shape[:2], self.parts, -1)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight.view(self.parts, -1)).view(x.shape)


class _Values(nn.Module):
    """The sum of weight · silu(matrix · x) over the matrices with the best scores."""

    def __init__(self, hidden: int, size: int, scale: float) -> None:
        super().__init__()
        self.v_experts = nn.ModuleList(nn.Linear(hidden, size, bias=False) for _ in range(_MATRICES))
        self.v_router = nn.Linear(hidden, _MATRICES)
        self.v_router.bias.data.uniform_(-0.2, 0.2)
        for each in (*self.v_experts, self.v_router):
            each.weight.data.normal_(0, 0.3)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ self.v_router.weight.T).sigmoid()
        chosen = (scores + self.v_router.bias).topk(_CHOSEN, dim=-1).indices
        weights = scores.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * self.scale
        made = silu(torch.stack([expert(x) for expert in self.v_experts], dim=-2))
        made = made.gather(-2, chosen[..., None].expand(*chosen.shape, made.shape[-1]))
        return (weights[..., None] * made).sum(-2)


class _Turning(nn.Module):
    """Cosines and sines of the first dimensions of both halves of a head; the others stay."""

    def __init__(self, base: float, head: int) -> None:
        super().__init__()
        self.base, self.still = base, (head - _TURNING) // 2

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inverse = self.base ** (-torch.arange(0, _TURNING, 2).float() / _TURNING)
        angles = pad(position_ids[..., None].float() * inverse, (0, self.still))
        both = torch.cat([angles, angles], dim=-1)
        return both.cos(), both.sin()


def _with_values(model: Any) -> None:
    """Layers with experts have several matrices of values, of which each token chooses some."""
    _prepared(model, silu)
    config = model.config
    for layer in model.model.layers[config.first_k_dense_replace :]:
        size = config.num_key_value_heads * config.head_dim
        layer.self_attn.v_proj = _Values(config.hidden_size, size, config.routed_scaling_factor)


def _prepared(model: Any, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(7)
    config = model.config
    heads, eps = config.head_dim, config.rms_norm_eps

    def normed() -> _Normed:
        return _Normed(_GROUPS, config.hidden_size // _GROUPS, eps)

    model.model.rotary_emb = _Turning(theta(config), heads)
    model.model.norm = normed()
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = normed(), normed()
        attention = layer.self_attn
        attention.q_norm = _Normed(config.num_attention_heads, heads, eps)
        attention.k_norm = _Normed(config.num_key_value_heads, heads, eps)
        attention.gate_proj = nn.Linear(config.hidden_size, config.num_attention_heads * heads, bias=False)
        attention.gate_proj.weight.data.normal_(0, 0.3)
        attention.forward = _gated(attention, attention.forward, act)


def _gated(
    attention: Any, plain: Callable[..., Any], act: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[..., Any]:
    def forward(hidden_states: torch.Tensor, **others: Any) -> Any:
        gate = act(attention.gate_proj(hidden_states))
        hook = attention.o_proj.register_forward_pre_hook(lambda _, given: (given[0] * gate,))
        try:
            return plain(hidden_states=hidden_states, **others)
        finally:
            hook.remove()

    return forward


def _stored(tensors: Tensors, config: Any) -> Tensors:
    found = {name.replace("gate.e_score_correction_bias", "gate.bias"): each for name, each in tensors.items()}
    return {name.replace("v_proj.v_", "v_"): each for name, each in found.items()}


def _described(config: Any, gate: str) -> Values:
    dense = list(range(config.first_k_dense_replace))
    own: Values = {"model_type": "k2_horizon", "rope_head_dim": _TURNING, "query_key_norm": True, "hidden_act": "silu"}
    own |= {"layernorm_num_groups": _GROUPS, "attention_gate_func": gate, "attention_bias": False}
    own |= {"num_experts": 0 if len(dense) == config.num_hidden_layers else config.n_routed_experts}
    own |= {"num_shared_experts": config.n_shared_experts, "mlp_only_layers": dense, "decoder_sparse_step": 1}
    own |= {"router_score_func": "sigmoid", "router_scaling_factor": config.routed_scaling_factor}
    own |= {"moe_gate_bias": True, "mova_num_experts": 0, "rope_parameters": config.rope_parameters}
    return {**own, **same(config, "head_dim", "moe_intermediate_size", "num_experts_per_tok", "norm_topk_prob")}


PUBLISHED: Mapping[str, Published] = {
    "k2-horizon": Published(
        "K2HorizonForCausalLM",
        {},
        lambda config: _described(config, "softplus"),
        _stored,
        lambda model: _prepared(model, lambda x: softplus(x, beta=math.log(2))),
    ),
    "k2-horizon-values": Published(
        "K2HorizonForCausalLM",
        {},
        lambda config: {
            **_described(config, "silu"),
            "mova_num_experts": _MATRICES,
            "mova_num_experts_per_tok": _CHOSEN,
        },
        _stored,
        _with_values,
    ),
    "k2-horizon-dense": Published(
        "K2HorizonForCausalLM",
        {},
        lambda config: _described(config, "silu"),
        _stored,
        lambda model: _prepared(model, silu),
    ),
}
"""By the name of a configuration."""
