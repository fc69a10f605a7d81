"""A tiny Step 5, for :mod:`.hub`: a Step 3.7 whose full attention sees the regions of tokens that an index chooses."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import layer_norm, relu

from stentor.tests.parity.families import step
from stentor.tests.parity.hub_form import Published, Tensors, Values
from stentor.tests.parity.reading import READING
from stentor.tests.support.vision_models import randomised

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
_GROUPS, _HEADS, _DIM, _SIZE, _BEST = 2, 2, 24, 8, 3
"""Key-value heads; heads of the index for each; dimensions of a head; tokens of a region; regions that are chosen."""
_OWN = "sparse_indexer_"


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    return {"step5": lambda: step(shape)}


class _Index(nn.Module):
    """Which tokens each query head of an attention sees."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.q = nn.Linear(hidden, _GROUPS * _HEADS * _DIM, bias=False)
        self.k, self.z = (nn.Linear(hidden, _DIM, bias=False) for _ in range(2))
        self.w = nn.Linear(hidden, _GROUPS * _HEADS, bias=False)
        self.q_norm, self.k_norm = nn.Module(), nn.LayerNorm(_DIM, eps)
        self.q_norm.weight = nn.Parameter(torch.empty(_DIM).uniform_(-0.4, 0.4))
        self.k_norm.weight.data.uniform_(0.6, 1.4)
        self.k_norm.bias.data.uniform_(-0.4, 0.4)
        for each in (self.q, self.k, self.z, self.w):
            each.weight.data.normal_(0, 0.3)
        self.eps = eps

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] → bool [groups, tokens, tokens]: whether the first sees the second."""
        tokens = len(x)
        q = self.q(x).view(tokens, _GROUPS * _HEADS, _DIM)
        q = q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + torch.as_tensor(self.q_norm.weight))
        k = layer_norm(self.k(x), (_DIM,), self.k_norm.weight, self.k_norm.bias, self.eps)
        q, k = _turned(q, cos[:, None], sin[:, None]), _turned(k, cos, sin)
        z, weights = self.z(x), self.w(x).view(tokens, _GROUPS, _HEADS) * _HEADS**-0.5
        seen = torch.zeros(_GROUPS, tokens, tokens, dtype=torch.bool)
        for token in range(tokens):
            own = token // _SIZE
            seen[:, token, own * _SIZE : token + 1] = True
            if not own:
                continue
            spans = [slice(_SIZE * region, _SIZE * (region + 1)) for region in range(own)]
            keys = torch.stack([(z[span].softmax(0) * k[span]).sum(0) for span in spans])
            products = relu(q[token].view(_GROUPS, _HEADS, _DIM) @ keys.T)
            scores = (weights[token][:, :, None] * products).sum(1)  # [groups, regions]
            for group, regions in enumerate(scores.sort(dim=1, descending=True, stable=True).indices.tolist()):
                for region in regions[:_BEST]:
                    seen[group, token, spans[region]] = True
        return seen


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first dimensions rotated, as many as ``cos`` has."""
    turning, still = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turning.chunk(2, dim=-1)
    return torch.cat([turning * cos + torch.cat([-second, first], dim=-1) * sin, still], dim=-1)


@torch.no_grad()
def _with_index(model: Any) -> None:
    """Layers of full attention have an index; gates and ups of experts pass their limit."""
    text = model.model.language_model
    torch.manual_seed(5)
    for layer in text.layers[2:]:
        layer.mlp.experts.gate_up_proj.mul_(6)
        layer.mlp.experts.down_proj.div_(20)
    for layer in text.layers:
        attention = layer.self_attn
        if attention.is_local_attention:
            continue
        attention.index = _Index(attention.q_proj.in_features, text.config.rms_norm_eps)
        attention.forward = _chosen(attention, attention.forward)


def _chosen(attention: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(hidden_states: torch.Tensor, position_embeddings: Any, **others: Any) -> Any:
        cos, sin = (each[0] for each in position_embeddings)
        seen = torch.stack([attention.index(x, cos, sin) for x in hidden_states])
        seen = seen.repeat_interleave(attention.num_heads // _GROUPS, 1)
        others["attention_mask"] = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        return plain(hidden_states=hidden_states, position_embeddings=position_embeddings, **others)

    return forward


def _stored(tensors: Tensors, config: Any) -> Tensors:
    """Text alone, with a layer that predicts a further token, and a tensor that nothing is computed with."""
    behind = f"model.layers.{config.text_config.num_hidden_layers}.eh_proj.weight"
    text = {name: each for name, each in tensors.items() if not name.startswith(("vision_model", "vit_large"))}
    return {**_renamed(text), behind: torch.ones(1, 2)}


def _renamed(tensors: Tensors) -> Tensors:
    found: Tensors = {}
    for name, tensor in tensors.items():
        found[name.replace(".index.", f".{_OWN}")] = tensor
        if name.endswith("index.k.weight"):
            found[name.replace("index.k.weight", "ssmax_s")] = torch.ones(4)
    return found


def _described(config: Any) -> Values:
    text, behind = config.text_config, 1
    full, window = (text.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    by_kind = {"full_attention": full, "sliding_attention": window}
    kinds = [*text.layer_types, *["sliding_attention"] * behind]
    sparse = [number for number, kind in enumerate(text.mlp_layer_types) if kind == "sparse"]
    none = [0.0] * text.num_hidden_layers
    routed, shared = (
        [each or 0.0 for each in limits or none] for limits in (text.swiglu_limits, text.swiglu_limits_shared)
    )
    scaling = {field: value for field, value in full.items() if field not in ("rope_theta", "partial_rotary_factor")}
    own: Values = {"model_type": "step5", "num_attention_groups": text.num_key_value_heads, "layer_types": kinds}
    own |= {"rope_theta": [by_kind[kind]["rope_theta"] for kind in kinds], "rope_scaling": scaling}
    own |= {"partial_rotary_factors": [by_kind[kind].get("partial_rotary_factor", 1.0) for kind in kinds]}
    own |= {"yarn_only_types": ["full_attention"], "use_rope_layers": [], "use_head_wise_attn_gate": True}
    own |= {"moe_num_experts": text.n_routed_experts, "moe_top_k": text.num_experts_per_tok, "need_fp32_gate": True}
    own |= {"moe_router_activation": "sigmoid", "use_moe_router_bias": True, "norm_expert_weight": True}
    own |= {"num_nextn_predict_layers": behind, "zero_centered": True, "att_impl_type": "GQA"}
    own |= {"swiglu_limits": [*routed, 0.0], "swiglu_limits_shared": [*shared, 0.0], "moe_layer_list": sparse}
    own |= {"swa_num_attention_heads": text.num_sliding_attention_heads, "fp32_residual_connection": True}
    turning = int(text.head_dim * full.get("partial_rotary_factor", 1.0))
    index: dict[str, Any] = {
        "enabled": True,
        "proxy_dim": _DIM,
        "sparse_indexer_rope_dim": turning,
        "sparse_indexer_num_k_heads": 1,
    }
    index |= {"sparse_indexer_num_heads": _GROUPS * _HEADS, "num_provider_groups": _GROUPS, "topk": _BEST}
    index |= {"region_block_size": _SIZE, "compression_method": "csa_block_compress"}
    own |= {"sparse_config": {**index, "apply_to_layer_types": ["full_attention"]}}
    same = ("head_dim", "moe_intermediate_size", "share_expert_dim", "moe_router_scaling_factor", "sliding_window")
    return {"num_key_value_heads": ..., **own, **{field: getattr(text, field) for field in same}}


def step5_vl(folder: Path) -> Any:
    """One that sees, under the names that its tower has in files of Step3-VL."""
    config = READING["step"][0]()
    model = randomised("step5_vl", lambda: transformers.AutoModelForImageTextToText.from_config(config))
    _with_index(model)
    model.save_pretrained(folder)
    tensors = _renamed(load_file(folder / "model.safetensors"))
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    text, vision = config.text_config.to_dict(), config.vision_config
    sizes = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
    )
    own = {**{each: text[each] for each in sizes}, **_described(config)}
    own = {field: value for field, value in own.items() if value is not ...}
    own["max_position_embeddings"] = text["max_position_embeddings"]
    seen = {"width": vision.hidden_size, "layers": vision.num_hidden_layers, "heads": vision.num_attention_heads}
    seen |= {field: getattr(vision, field) for field in ("mlp_ratio", "image_size", "patch_size")}
    whole: dict[str, Any] = {"architectures": ["Step5ForConditionalGeneration"], "model_type": "step5_vl"}
    whole |= {"text_config": own, "vision_config": seen, "image_token_id": config.image_token_id}
    (folder / "config.json").write_text(
        json.dumps({**whole, "projector_bias": False, "understand_projector_stride": 2})
    )
    return model


PUBLISHED: Mapping[str, Published] = {"step5": Published("Step5ForCausalLM", {}, _described, _stored, _with_index)}
"""By the name of a configuration."""
