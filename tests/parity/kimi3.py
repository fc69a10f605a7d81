"""A tiny Kimi K3, for :mod:`.hub`: transformers has no class of it, so this is its definition, a token at a time."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import transformers as untyped_transformers
from torch import nn
from torch.nn import functional

from stentor.tests.parity.hub_form import Published, Tensors, Values

transformers: Any = untyped_transformers
"""Its classes are untyped."""
_HEADS, _DIM, _WIDTH = 4, 24, 3
"""Heads of the delta rule, the dimensions of each, and tokens that its convolutions see."""
_NOPE, _SHARED, _VALUES, _LATENT = 16, 8, 20, 32
"""Of a head of latent attention: dimensions of keys, of those that heads share, of values; and of the latent."""
_EPS = 1e-5
_OTHER = 1e-6
"""Epsilon of the norms of latents."""


class K3Config(transformers.PretrainedConfig):  # type: ignore[misc]
    model_type = "kimi_k3_plain"


class K3Output(NamedTuple):
    logits: torch.Tensor


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _norm(size: int, eps: float = _EPS) -> nn.RMSNorm:
    return nn.RMSNorm(size, eps=eps)


def _situ(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)


class Delta(nn.Module):
    """The delta rule: S ← S ⊙ decay, S ← S + β k (v - kᵀS)ᵀ, o = qᵀS."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, _HEADS * _DIM
        self.q_proj, self.k_proj, self.v_proj, self.g_proj = (_linear(hidden, inner) for _ in range(4))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            nn.Conv1d(inner, inner, _WIDTH, groups=inner, bias=False) for _ in range(3)
        )
        self.b_proj, self.f_a_proj, self.f_b_proj = _linear(hidden, _HEADS), _linear(hidden, _DIM), _linear(_DIM, inner)
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(_DIM)), nn.Parameter(torch.empty(inner))
        self.o_norm, self.o_proj = _norm(_DIM), _linear(inner, hidden)
        self.bound: float | None = config.linear_attn_config["gate_lower_bound"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, tokens, hidden] → the same"""
        q, k, v = (self._convolved(part, x) for part in "qkv")
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        steps = _by_head(self.f_b_proj(self.f_a_proj(x)) + self.dt_bias)
        rates = self.A_log[:_HEADS, None].exp()
        logs = -rates * functional.softplus(steps) if self.bound is None else self.bound * torch.sigmoid(rates * steps)
        beta, state, found = torch.sigmoid(self.b_proj(x)), x.new_zeros(len(x), _HEADS, _DIM, _DIM), []
        for token in range(x.shape[1]):
            state = state * logs[:, token].exp().unsqueeze(3)
            miss = v[:, token] - torch.einsum("rhk,rhkv->rhv", k[:, token], state)
            state = state + torch.einsum("rhk,rhv->rhkv", k[:, token], miss * beta[:, token].unsqueeze(2))
            found.append(torch.einsum("rhk,rhkv->rhv", q[:, token] * _DIM**-0.5, state))
        gates = torch.sigmoid(_by_head(self.g_proj(x)))
        made: torch.Tensor = self.o_proj((self.o_norm(torch.stack(found, dim=1)) * gates).flatten(2))
        return made

    def _convolved(self, part: str, x: torch.Tensor) -> torch.Tensor:
        made = functional.pad(getattr(self, f"{part}_proj")(x).transpose(1, 2), (_WIDTH - 1, 0))
        return _by_head(functional.silu(getattr(self, f"{part}_conv1d")(made)).transpose(1, 2))


def _by_head(x: torch.Tensor) -> torch.Tensor:
    return torch.unflatten(x, 2, (_HEADS, _DIM))


class Latent(nn.Module):
    """Latent attention without positions, whose outputs have gates."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, self.heads, rank = config.hidden_size, config.num_attention_heads, config.q_lora_rank
        asked = self.heads * (_NOPE + _SHARED)
        if rank:
            self.q_a_proj, self.q_a_layernorm = _linear(hidden, rank), _norm(rank, _OTHER)
            self.q_b_proj = _linear(rank, asked)
        else:
            self.q_proj = _linear(hidden, asked)
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = _linear(hidden, _LATENT + _SHARED), _norm(_LATENT, _OTHER)
        self.kv_b_proj = _linear(_LATENT, self.heads * (_NOPE + _VALUES))
        self.g_proj, self.o_proj = (_linear(hidden, self.heads * _VALUES), _linear(self.heads * _VALUES, hidden))
        self.rank = rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, tokens, hidden] → the same"""
        asked = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if self.rank else self.q_proj(x)
        latent, shared = self.kv_a_proj_with_mqa(x).split((_LATENT, _SHARED), dim=2)
        made = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(2, (self.heads, -1))
        keys, values = made.split((_NOPE, _VALUES), dim=3)
        keys = torch.cat((keys, shared.unsqueeze(2).expand(-1, -1, self.heads, -1)), dim=3)
        asked = asked.unflatten(2, (self.heads, -1)) * (_NOPE + _SHARED) ** -0.5
        scores = torch.einsum("rqhd,rkhd->rhqk", asked, keys)
        later = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
        shares = scores.masked_fill(later, -torch.inf).softmax(3)
        found = torch.einsum("rhqk,rkhd->rqhd", shares, values).flatten(2)
        out: torch.Tensor = self.o_proj(found * torch.sigmoid(self.g_proj(x)))
        return out


class Dense(nn.Module):
    def __init__(self, hidden: int, inner: int, activation: str) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            _linear(hidden, inner),
            _linear(hidden, inner),
            _linear(inner, hidden),
        )
        self.smooth = activation == "situ"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        out: torch.Tensor = self.down_proj(_situ(gate, up) if self.smooth else functional.silu(gate) * up)
        return out


class Expert(Dense):
    """A dense network under other names."""

    def __init__(self, hidden: int, inner: int, activation: str) -> None:
        super().__init__(hidden, inner, activation)
        self.w1, self.w3, self.w2 = self.gate_proj, self.up_proj, self.down_proj
        for name in ("gate_proj", "up_proj", "down_proj"):
            del self._modules[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.w1(x), self.w3(x)
        out: torch.Tensor = self.w2(_situ(gate, up) if self.smooth else functional.silu(gate) * up)
        return out


class Router(nn.Linear):
    e_score_correction_bias: torch.Tensor

    def __init__(self, config: Any) -> None:
        super().__init__(config.hidden_size, config.num_experts, bias=False)
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        self.top_k, self.scale = config.num_experts_per_token, config.routed_scaling_factor


class Sparse(nn.Module):
    """Experts, on a projection of each token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner, latent = config.hidden_size, config.moe_intermediate_size, config.routed_expert_hidden_size
        self.gate = Router(config)
        self.experts = nn.ModuleList(Expert(latent, inner, config.hidden_act) for _ in range(config.num_experts))
        self.shared_experts = Dense(hidden, inner * config.num_shared_experts, config.hidden_act)
        self.routed_expert_down_proj, self.routed_expert_up_proj = _linear(hidden, latent), _linear(latent, hidden)
        self.routed_expert_norm = _norm(latent) if config.latent_moe_use_norm else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, tokens, hidden] → the same"""
        scores = torch.sigmoid(self.gate(x))
        chosen = (scores + self.gate.e_score_correction_bias).topk(self.gate.top_k).indices
        weights = torch.zeros_like(scores).scatter(2, chosen, scores.gather(2, chosen))
        weights = weights / weights.sum(2, keepdim=True) * self.gate.scale
        low = self.routed_expert_down_proj(x)
        summed = (torch.stack([expert(low) for expert in self.experts], dim=3) * weights.unsqueeze(2)).sum(3)
        if self.routed_expert_norm is not None:
            summed = self.routed_expert_norm(summed)
        out: torch.Tensor = self.routed_expert_up_proj(summed) + self.shared_experts(x)
        return out


class Layer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        linear, hidden = config.linear_attn_config, config.hidden_size
        self.self_attn = Delta(config) if number + 1 in linear["kda_layers"] else Latent(config)
        self.sparse = number >= config.first_k_dense_replace
        if self.sparse:
            self.block_sparse_moe = Sparse(config)
        else:
            self.mlp = Dense(hidden, config.intermediate_size, config.hidden_act)
        self.input_layernorm, self.post_attention_layernorm = _norm(hidden), _norm(hidden)
        if config.attn_res_block_size:
            self.self_attention_res_norm, self.mlp_res_norm = _norm(hidden), _norm(hidden)
            self.self_attention_res_proj, self.mlp_res_proj = _linear(hidden, 1), _linear(hidden, 1)
            self.begins = number % config.attn_res_block_size == 0

    def network(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (self.block_sparse_moe if self.sparse else self.mlp)(self.post_attention_layernorm(x))
        return found

    def forward(self, x: torch.Tensor, kept: list[torch.Tensor] | None) -> torch.Tensor:
        """``kept``: the stream before each block so far, to which this adds; None: parts take the stream."""
        if kept is None:
            x = x + self.self_attn(self.input_layernorm(x))
            return x + self.network(x)
        taken = mixed([*kept, x], self.self_attention_res_norm, self.self_attention_res_proj)
        made: torch.Tensor = self.self_attn(self.input_layernorm(taken))
        if self.begins:
            kept.append(x)
        x = made if self.begins else x + made
        return x + self.network(mixed([*kept, x], self.mlp_res_norm, self.mlp_res_proj))


def mixed(streams: list[torch.Tensor], norm: nn.RMSNorm, score: nn.Linear) -> torch.Tensor:
    every = torch.stack(streams, dim=2)  # [rows, tokens, streams, hidden]
    return torch.sum(every * score(norm(every)).softmax(2), 2)


class Body(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = _norm(hidden)
        self.mixes = bool(config.attn_res_block_size)
        if self.mixes:
            self.output_attn_res_norm, self.output_attn_res_proj = _norm(hidden), _linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [rows, tokens], or their embeddings [rows, tokens, hidden] → hidden states before the last norm"""
        x = x if x.is_floating_point() else self.embed_tokens(x)
        kept: list[torch.Tensor] | None = [] if self.mixes else None
        for layer in self.layers:
            x = layer(x, kept)
        return x if kept is None else mixed([*kept, x], self.output_attn_res_norm, self.output_attn_res_proj)


class K3(transformers.PreTrainedModel):  # type: ignore[misc]
    config_class = K3Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model, self.lm_head = Body(config), _linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)

    def forward(
        self, input_ids: torch.Tensor | None = None, inputs_embeds: torch.Tensor | None = None, **_: Any
    ) -> K3Output:
        """input_ids [rows, tokens], or embeddings of tokens → logits [rows, tokens, vocabulary]"""
        taken = input_ids if inputs_embeds is None else inputs_embeds
        return K3Output(self.lm_head(self.model.norm(self.model(taken))))

    def get_input_embeddings(self) -> nn.Module:
        found: nn.Module = self.model.embed_tokens
        return found


transformers.AutoModelForCausalLM.register(K3Config, K3)


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    linear: Values = {"num_heads": _HEADS, "head_dim": _DIM, "short_conv_kernel_size": _WIDTH}
    linear |= {"use_full_rank_gate": True, "gate_lower_bound": -5.0}
    linear |= {"kda_layers": [1, 3, 5], "full_attn_layers": [2, 4]}
    own: Values = {**shape, "num_hidden_layers": 5, "num_key_value_heads": 4, "hidden_act": "situ"}
    own |= {"qk_nope_head_dim": _NOPE, "qk_rope_head_dim": _SHARED, "v_head_dim": _VALUES, "kv_lora_rank": _LATENT}
    own |= {"q_lora_rank": 24, "num_experts": 6, "num_experts_per_token": 4, "num_shared_experts": 2}
    own |= {"moe_intermediate_size": 64, "routed_expert_hidden_size": 32, "latent_moe_use_norm": True}
    own |= {"routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "attn_res_block_size": 2, "rms_norm_eps": _EPS}
    plain = {"q_lora_rank": None, "latent_moe_use_norm": False, "attn_res_block_size": None, "hidden_act": "silu"}
    return {
        "kimi-k3": lambda: K3Config(**own, linear_attn_config=linear, tie_word_embeddings=False),
        "kimi-k3-plain": lambda: K3Config(
            **{**own, **plain}, linear_attn_config={**linear, "gate_lower_bound": None}, tie_word_embeddings=False
        ),
    }


def _text(config: Any) -> Values:
    kept: tuple[str, ...] = (
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "kv_lora_rank",
        "q_lora_rank",
        "num_experts",
    )
    kept += ("num_experts_per_token", "num_shared_experts", "moe_intermediate_size", "routed_expert_hidden_size")
    kept += ("latent_moe_use_norm", "routed_scaling_factor", "first_k_dense_replace", "attn_res_block_size")
    kept += ("linear_attn_config", "hidden_act", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings")
    own: Values = {"model_type": "kimi_linear", "mla_use_nope": True, "mla_use_output_gate": True}
    own |= {"moe_layer_freq": 1, "moe_router_activation_func": "sigmoid", "topk_method": "noaux_tc"}
    own |= {"use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1, "moe_renormalize": True}
    own |= {"activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "num_nextn_predict_layers": 0}
    return {**own, **{field: getattr(config, field) for field in kept}}


def described(config: Any) -> Values:
    """The config.json of a whole model that sees nothing."""
    architecture, found = {"architectures": ["KimiK3ForConditionalGeneration"]}, _whole(config)
    return {**architecture, **{field: value for field, value in found.items() if value is not ...}}


def _whole(config: Any) -> Values:
    """With the fields of texts in a table."""
    sizes: tuple[str, ...] = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    sizes += ("num_attention_heads",)
    sizes += ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
    text = {**{size: getattr(config, size) for size in sizes}, **_text(config)}
    text |= {"architectures": ["KimiLinearForCausalLM"]}
    absent = dict.fromkeys((*sizes, "num_key_value_heads", "rms_norm_eps"), ...)
    return {**absent, "model_type": "kimi_k3", "vision_config": {"vt_hidden_size": 2}, "text_config": text}


@torch.no_grad()
def prepare(model: Any) -> None:
    """Pads rates with zeros, as published files do. Streams and what experts add are such that few tokens magnify what
    bfloat16 rounds: norms bring small sums back to size."""
    model.model.embed_tokens.weight.mul_(6)
    for layer in model.model.layers:
        if isinstance(layer.self_attn, Delta):
            layer.self_attn.A_log[_HEADS:] = 0
        if layer.sparse:
            layer.block_sparse_moe.routed_expert_up_proj.weight.mul_(0.3)
        for name in ("self_attention_res_proj", "mlp_res_proj"):
            if hasattr(layer, name):
                getattr(layer, name).weight.mul_(0.3)


def _seeing(tensors: Tensors, config: Any) -> Tensors:
    """Under the names of the whole model, beside what sees."""
    text = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    return {
        **text,
        "vision_tower.patch_embed.proj.weight": torch.ones(2, 2),
        "mm_projector.proj.0.weight": torch.ones(2),
    }


def _rates_alone(tensors: Tensors, config: Any) -> Tensors:
    return {name: tensor[:_HEADS] if name.endswith("A_log") else tensor for name, tensor in tensors.items()}


PUBLISHED: Mapping[str, Published] = {
    "kimi-k3": Published("KimiK3ForConditionalGeneration", {}, _whole, _seeing, prepare),
    "kimi-k3-plain": Published("KimiLinearForCausalLM", {}, _text, _rates_alone, prepare),
}
"""By the name of a configuration."""
