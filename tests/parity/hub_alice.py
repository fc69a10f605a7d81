"""A tiny AliceAI, for :mod:`.hub`: transformers has no class of it, so this is its definition, of parts that
transformers and the tiny Kimi K3 have."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers as untyped_transformers
from torch import nn
from transformers.models.qwen3_next import modeling_qwen3_next as untyped_qwen

from stentor.tests.parity.hub_form import Published, Tensors, Values, same
from stentor.tests.parity.kimi3 import Delta, Dense, K3Output, mixed

transformers: Any = untyped_transformers
qwen: Any = untyped_qwen
"""Their classes are untyped."""
_HEADS, _DIM, _WIDTH = 4, 24, 3
"""As the tiny Kimi K3's delta rule has."""
_KINDS = ("linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention")


class AliceConfig(transformers.Qwen3NextConfig):  # type: ignore[misc]
    model_type = "alice_ai_plain"


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class _LowDelta(Delta):
    """With gates of low rank."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        gates = nn.Sequential(_linear(config.hidden_size, _DIM), _linear(_DIM, _HEADS * _DIM))
        self.add_module("g_proj", gates)


class _Gate(nn.Linear):
    e_score_correction_bias: torch.Tensor

    def __init__(self, config: Any) -> None:
        super().__init__(config.hidden_size, config.num_experts, bias=False)
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        self.top_k = config.num_experts_per_tok


class _Sparse(nn.Module):
    """Experts beside one that every token uses, times a gate."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.gate = _Gate(config)
        self.experts = nn.ModuleList(
            Dense(hidden, config.moe_intermediate_size, "silu") for _ in range(config.num_experts)
        )
        self.shared_expert = Dense(hidden, config.shared_expert_intermediate_size, "silu")
        self.shared_expert_gate = _linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, tokens, hidden] → the same"""
        scores = torch.sigmoid(self.gate(x))
        chosen = (scores + self.gate.e_score_correction_bias).topk(self.gate.top_k).indices
        weights = torch.zeros_like(scores).scatter(2, chosen, scores.gather(2, chosen))
        weights = weights / weights.sum(2, keepdim=True)
        summed = (torch.stack([expert(x) for expert in self.experts], dim=3) * weights.unsqueeze(2)).sum(3)
        shared: torch.Tensor = self.shared_expert(x) * torch.sigmoid(self.shared_expert_gate(x))
        return summed + shared


class _Layer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.number, self.block = number, config.block_attn_res_block_size
        self.attends = config.layer_types[number] == "full_attention"
        if self.attends:
            self.self_attn = qwen.Qwen3NextAttention(config, number)
        else:
            self.linear_attn = _LowDelta(config)
        self.mlp = _Sparse(config)
        self.input_layernorm, self.post_attention_layernorm = (qwen.Qwen3NextRMSNorm(hidden, eps) for _ in range(2))
        if number:
            self.attn_res_norm, self.attn_res_proj = nn.RMSNorm(hidden, eps), _linear(hidden, 1)
        self.mlp_res_norm, self.mlp_res_proj = nn.RMSNorm(hidden, eps), _linear(hidden, 1)

    def forward(
        self, sources: list[torch.Tensor], sums: torch.Tensor | None, rope: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """``sources``: the embeddings, and the sums of whole blocks so far, to which this adds one where a block ends;
        ``sums``: that of the present block, None where it is empty. Returns the latter."""
        if self.number and self.number % self.block == 0:
            assert sums is not None
            sources.append(sums)
            sums = None
        seen = [*sources, *([] if sums is None else [sums])]
        taken = mixed(seen, self.attn_res_norm, self.attn_res_proj) if self.number else seen[0]
        made = self._attention(self.input_layernorm(taken), rope)
        sums = made if sums is None else sums + made
        taken = self.post_attention_layernorm(mixed([*sources, sums], self.mlp_res_norm, self.mlp_res_proj))
        added: torch.Tensor = self.mlp(taken)
        return sums + added

    def _attention(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if self.attends:
            later = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
            attended: torch.Tensor = self.self_attn(x, rope, later[None, None])[0]
            return attended
        found: torch.Tensor = self.linear_attn(x)
        return found


class _Final(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.res_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.res_proj = _linear(config.hidden_size, 1)


class _Body(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = qwen.Qwen3NextRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attnres_final = _Final(config)
        self.rotary_emb = qwen.Qwen3NextRotaryEmbedding(config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [rows, tokens] → [rows, tokens, hidden]"""
        sources: list[torch.Tensor] = [self.embed_tokens(tokens)]
        sums: torch.Tensor | None = None
        rope = self.rotary_emb(sources[0], torch.arange(tokens.shape[1])[None])
        for layer in self.layers:
            sums = layer(sources, sums, rope)
        assert sums is not None
        final = self.attnres_final
        found: torch.Tensor = self.norm(mixed([*sources, sums], final.res_norm, final.res_proj))
        return found


class Alice(transformers.PreTrainedModel):  # type: ignore[misc]
    config_class = AliceConfig
    _supports_sdpa = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model, self.lm_head = _Body(config), _linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> K3Output:
        """input_ids [rows, tokens] → logits [rows, tokens, vocabulary]"""
        return K3Output(self.lm_head(self.model(input_ids)))


transformers.AutoModelForCausalLM.register(AliceConfig, Alice)


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    own: Values = {**shape, "num_hidden_layers": len(_KINDS), "layer_types": [*_KINDS], "head_dim": 32}
    own |= {"linear_num_key_heads": _HEADS, "linear_num_value_heads": _HEADS, "linear_conv_kernel_dim": _WIDTH}
    own |= {"linear_key_head_dim": _DIM, "linear_value_head_dim": _DIM, "rms_norm_eps": 1e-5}
    own |= {"linear_attn_config": {"gate_lower_bound": None}, "block_attn_res_block_size": 2}
    own |= {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
    own |= {"shared_expert_intermediate_size": 48, "tie_word_embeddings": False, "norm_topk_prob": True}
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}
    return {"alice": lambda: AliceConfig(**own, rope_parameters=rope)}


def _described(config: Any) -> Values:
    kept: tuple[str, ...] = (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
    )
    kept += ("linear_value_head_dim", "rms_norm_eps", "block_attn_res_block_size", "num_experts", "layer_types")
    kept += ("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "head_dim")
    kept += ("norm_topk_prob", "rope_parameters", "num_key_value_heads")
    own: Values = {"model_type": "alice_ai", "kda_allow_negative_eigenvalues": False, "mtp_num_hidden_layers": 1}
    return {**own, "router_score_function": "sigmoid", "router_bias_correction": True, **same(config, *kept)}


def _stored(tensors: Tensors, config: Any) -> Tensors:
    """With a part of a head that drafts, and rates of heads alone."""
    rates = {name: tensor[:_HEADS] for name, tensor in tensors.items() if name.endswith("A_log")}
    return {**tensors, **rates, "mtp.norm.weight": torch.ones(2)}


@torch.no_grad()
def _prepare(model: Any) -> None:
    """Streams are such that few tokens magnify what bfloat16 rounds: norms bring small sums back to size."""
    model.model.embed_tokens.weight.mul_(6)
    for name, parameter in model.named_parameters():
        if name.endswith("_res_proj.weight"):
            parameter.mul_(0.3)
        elif name.endswith("o_proj.weight"):
            parameter.mul_(0.4)


_NAMES = {"res_norm.weight": "res_norm_weight", "A_log": "a_log_bias"}
_NAMES |= {"g_proj.0": "g_a_proj", "g_proj.1": "g_b_proj"}
PUBLISHED: Mapping[str, Published] = {"alice": Published("AliceAIForCausalLM", _NAMES, _described, _stored, _prepare)}
"""By the name of a configuration."""
