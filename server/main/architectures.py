"""The decoders that are served, for ``docs/reference/models.md``: what each reader makes of a small config.json."""

from collections.abc import Mapping
from typing import Final

from stentor.engine.model_config.attention_spec import LatentAttentionSpec
from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.hf_config import DECODERS
from stentor.engine.model_config.mlp_spec import MoESpec
from stentor.engine.model_config.model_spec import ModelSpec, checked

_SMALL: Final[Mapping[str, object]] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
}
"""What every reader is given."""
_EXPERTS: Final = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2}
_MORE: Final[Mapping[str, Mapping[str, object]]] = {
    "Lfm2ForCausalLM": {"full_attn_idxs": [2]},
    "Lfm2MoeForCausalLM": {"full_attn_idxs": [2]},
    "GraniteMoeHybridForCausalLM": {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4},
    "BambaForCausalLM": {"attn_layer_indices": [1], "mamba_n_heads": 4},
    "NemotronHForCausalLM": {"hybrid_override_pattern": "M*-E"},
    "HunYuanMoEV1ForCausalLM": {"num_experts": 4},
    "Qwen3_5MoeForConditionalGeneration": {"model_type": "qwen3_5_moe_text"},
    "Gemma4ForCausalLM": _EXPERTS,
    "Gemma4ForConditionalGeneration": _EXPERTS,
}
"""What a file of an architecture says besides: of what it may have, all."""
_REMARKS: Final[Mapping[str, str]] = {
    "GptOssForCausalLM": "one tool call a turn",
    "GraniteMoeHybridForCausalLM": "also without recurrent layers, and without experts",
    "NemotronHForCausalLM": "also without experts",
    "Gemma4ForCausalLM": "also without experts",
    "Gemma4ForConditionalGeneration": "also without experts",
}
"""What a reader does not tell."""


def described(architecture: str) -> ModelSpec:
    """What its reader makes of a small config.json."""
    values = {**_SMALL, **_MORE.get(architecture, {})}
    fields = Fields({**values, "text_config": values})
    return checked(DECODERS[architecture].read(fields, architecture))


def kinds(spec: ModelSpec) -> list[str]:
    """What its layers are made of, where that is more than attention and a dense network."""
    found = []
    if any(isinstance(layer.mixer, LatentAttentionSpec) for layer in spec.layers):
        found.append("latent attention")
    if spec.states:
        found.append("recurrent")
    if any(isinstance(layer.mlp, MoESpec) for layer in spec.layers):
        found.append("experts")
    return found or ["dense"]


def remarks(architecture: str, spec: ModelSpec) -> list[str]:
    """What is not done for it, and what else is to be known."""
    found = []
    if spec.text_part:
        found.append("vision part not loaded")
    if spec.draft_layers or spec.draft_prefix:
        found.append("layers that predict further tokens are passed over")
    if architecture in _REMARKS:
        found.append(_REMARKS[architecture])
    return found
