"""Configurations of tiny mixtures of experts, for :mod:`.tiny`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
import transformers as untyped_transformers

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


def mixtures(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, with these sizes."""
    sizes = {**shape, **_EXPERTS}
    granite = {"residual_multiplier": 0.3, "attention_multiplier": 0.1, "logits_scaling": 4.0}
    return {
        "mixtral": lambda: transformers.MixtralConfig(
            **shape, num_local_experts=4, num_experts_per_tok=2, sliding_window=24
        ),
        "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
            **sizes, head_dim=32, num_experts=6, norm_topk_prob=True, mlp_only_layers=[1]
        ),
        "qwen3-moe-steps": lambda: transformers.Qwen3MoeConfig(
            **sizes, num_experts=4, decoder_sparse_step=2, use_sliding_window=True, sliding_window=24
        ),
        "qwen2-moe": lambda: transformers.Qwen2MoeConfig(
            **sizes,
            num_experts=6,
            shared_expert_intermediate_size=48,
            use_sliding_window=True,
            sliding_window=24,
            max_window_layers=2,
        ),
        "olmoe": lambda: transformers.OlmoeConfig(**shape, num_experts=6, num_experts_per_tok=3),
        "aria": lambda: transformers.AriaTextConfig(
            **{**shape, "intermediate_size": 32}, moe_num_experts=6, moe_topk=3, attention_bias=False
        ),
        "gpt-oss": lambda: transformers.GptOssConfig(
            **{**shape, "num_hidden_layers": 4},
            head_dim=16,
            sliding_window=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 150_000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 32,
            },
        ),
        "glm4-moe": lambda: transformers.Glm4MoeConfig(
            **sizes, attention_bias=True, use_qk_norm=True, n_routed_experts=6, routed_scaling_factor=1.5
        ),
        "glm4-moe-groups": lambda: transformers.Glm4MoeConfig(
            **sizes, n_routed_experts=8, n_group=4, topk_group=2, n_shared_experts=2, first_k_dense_replace=2
        ),
        "granite-moe": lambda: transformers.GraniteMoeConfig(
            **shape, **granite, num_local_experts=4, num_experts_per_tok=2
        ),
        "granite-moe-shared": lambda: transformers.GraniteMoeSharedConfig(
            **shape, **granite, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48
        ),
        "phimoe": lambda: transformers.PhimoeConfig(**shape, num_local_experts=5, sliding_window=24),
        "phimoe-biased": lambda: transformers.PhimoeConfig(
            **shape,
            num_local_experts=4,
            attention_bias=True,
            lm_head_bias=True,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0 + 0.05 * i for i in range(8)],
                "long_factor": [1.5 + 0.3 * i for i in range(8)],
                "short_mscale": 1.2,
                "long_mscale": 1.2,
                "original_max_position_embeddings": 128,
            },
        ),
        "minimax-m2": lambda: transformers.MiniMaxM2Config(
            **shape, head_dim=16, rotary_dim=8, num_local_experts=6, num_experts_per_tok=2
        ),
        "minimax-m3": lambda: transformers.AutoConfig.for_model(
            "minimax_m3_vl_text",
            **shape,
            head_dim=16,
            rotary_dim=8,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            num_local_experts=6,
            num_experts_per_tok=2,
            dense_intermediate_size=96,
            shared_intermediate_size=48,
            mlp_layer_types=["dense", "sparse", "sparse"],
            layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
            index_n_heads=shape["num_key_value_heads"],
            index_head_dim=12,
            index_block_size=16,
            index_topk_blocks=2,
        ),
        "mimo-v2-flash": lambda: transformers.MiMoV2FlashConfig(
            **{**sizes, "num_hidden_layers": 4},
            head_dim=24,
            v_head_dim=16,
            n_routed_experts=6,
            sliding_window=24,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
            attn_implementation="eager",
        ),
        "dots1": lambda: transformers.Dots1Config(
            **sizes,
            n_routed_experts=6,
            n_shared_experts=1,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            sliding_window=24,
            max_window_layers=2,
        ),
    }


_LOGITS: Final = {"Llama4Router": 1, "JetMoeTopKGating": 4}
"""Which of their outputs the scores of routers are; the first of others."""


def is_mixture(model: Any) -> bool:
    return bool(_routers(model))


def _routers(model: Any) -> list[Any]:
    named = ((type(module).__name__, module) for module in model.modules())
    others = "ForgetGate", "MessageGate", "ResidualGate"
    return [
        module
        for name, module in named
        if name.endswith(("Router", "Gate", "TopKGating")) and not name.endswith(others)
    ]


def _top_k(router: Any, config: Any) -> int:
    """Of routers that do not know it."""
    of_networks = getattr(config, "ffn_config", None)  # DBRX's
    return int(router.config.top_k_experts if of_networks is None else of_networks.moe_top_k)


def _gap(scores: torch.Tensor, count: int) -> torch.Tensor:
    """How far the last of the ``count`` best is from the next one; infinity if there is none."""
    if count == scores.shape[-1]:
        return torch.full(scores.shape[:-1], torch.inf)
    best = scores.topk(count + 1, dim=-1).values
    return best[:, -2] - best[:, -1]


def _mixer_gap(scores: torch.Tensor, count: int, nearness: float) -> torch.Tensor:
    """How far any expert is from coming near a choice of the ``count`` best when it does not, or the other way; and how
    far choices are from taking turns, which weigh otherwise then."""
    left, gaps = scores, []
    for _ in range(count):
        best = left.max(dim=-1, keepdim=True)
        left = left.scatter(-1, best.indices, -torch.inf)
        over = best.values - scores - nearness * torch.maximum(scores.abs(), best.values)
        gaps.append(over.abs().masked_fill(left.isinf(), torch.inf).min(dim=-1).values)
        gaps.append(best.values[..., 0] - left.max(dim=-1).values)
    return torch.stack(gaps).min(dim=0).values


@torch.inference_mode()
def clearest(model: Any, prompts: list[list[int]]) -> list[int]:
    """The prompt whose tokens are furthest from taking other experts than they do, in units of the spread of the
    scores by which experts are chosen.

    What is rounded takes other experts where two are nearly as good, and no bound on its logits is kept then.
    """
    gaps: list[torch.Tensor] = []

    def measure(router: Any, arguments: Any, output: Any) -> None:
        if hasattr(router, "tid2eid"):
            return  # its choice does not depend on scores
        alone = isinstance(output, torch.Tensor)
        logits = (output if alone else output[_LOGITS.get(type(router).__name__, 0)]).float()
        statics = getattr(router, "moe_statics", None)  # ERNIE's
        bias = arguments[1] if len(arguments) > 1 else getattr(statics or router, "e_score_correction_bias", None)
        score = getattr(router, "score_fn", None) or (partial(torch.softmax, dim=-1) if statics else torch.sigmoid)
        scores = logits if bias is None else score(logits) + bias
        spread = scores.std()
        if (groups := getattr(router, "num_group", None) or 1) > 1:
            members = scores.unflatten(-1, (groups, -1))
            of_groups = members.topk(1 if bias is None else 2, dim=-1).values.sum(-1)
            gaps.append(_gap(of_groups, router.topk_group).view(len(prompts), -1) / spread)
            chosen = of_groups.topk(router.topk_group, dim=-1).indices
            closed = torch.ones_like(of_groups, dtype=torch.bool).scatter(-1, chosen, False)
            scores = members.masked_fill(closed.unsqueeze(-1), -100.0).flatten(-2)
        top_k = getattr(router, "top_k", None) or _top_k(router, model.config)
        gaps.append(_gap(scores, top_k).view(len(prompts), -1) / spread)
        if (jitter := getattr(router, "router_jitter_noise", None)) is not None:  # Phi's
            gaps.append(_mixer_gap(scores, top_k, 2 * jitter).view(len(prompts), -1) / spread)

    handles = [router.register_forward_hook(measure) for router in _routers(model)]
    model(torch.tensor(prompts))
    for handle in handles:
        handle.remove()
    least = torch.cat(gaps, dim=1).min(dim=1).values
    return prompts[int(least.argmax())]
