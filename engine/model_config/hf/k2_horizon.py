"""Reads K2 Horizon: norms of groups and of each head's own weights, gates of the heads' output, a rotation of parts of
both halves of a head, values that experts make, and experts. Torch-free."""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.attention import QKNorm
from ..spec.attention_parts import ValueExpertsSpec
from ..spec.mlp import ExpertNames, RouterSpec
from ..spec.model import ModelSpec, with_layers, with_mixers
from .common import attention_bias, check_silu, common, expect
from .moe import experts_of, shared_experts, sparse_steps, with_experts

_TOLD: Final = (
    *("rope_head_dim", "query_key_norm", "layernorm_num_groups", "attention_gate_func", "num_experts"),
    *("mova_num_experts", "head_dim"),
)
"""Fields without which nothing says what the model is."""
_GATES: Final[Mapping[str, Literal["softplus2", "silu"]]] = {"softplus": "softplus2", "silu": "silu"}
_SCORES: Final[Mapping[str, Literal["softmax", "sigmoid"]]] = {"softmax": "softmax", "sigmoid": "sigmoid"}
_NAMES: Final = ExpertNames(correction="mlp.gate.bias")


def k2_horizon(fields: Fields, name: str) -> ModelSpec:
    """Raises :class:`ConfigError`."""
    check_silu(fields)
    if missing := next((field for field in _TOLD if field not in fields.values), ""):
        raise ConfigError(f"{missing} is missing: nothing else says what it is")
    expect(fields, {"dual_chunk_attention_config": None})
    spec = attention_bias(fields, common(fields, name))
    mixer = spec.layers[0].attention
    assert mixer.rope is not None
    turning = fields.integer("rope_head_dim") if fields.get("rope_head_dim") else mixer.head_dim
    rope = replace(mixer.rope, rotating=0 if turning == mixer.head_dim else turning)
    heads: QKNorm = "head_own" if fields.flag("query_key_norm") else "none"
    spec = with_mixers(spec, rope=rope, qk_norm=heads)
    if fields.has("attention_gate_func"):
        gate = fields.one_of("attention_gate_func", _GATES)
        spec = with_mixers(spec, gated=True, gate="gate_proj", gate_activation=gate)
    groups = fields.integer("layernorm_num_groups")
    if spec.hidden_size % groups:
        raise ConfigError(f"layernorm_num_groups is {groups}, expected a divisor of hidden_size, {spec.hidden_size}")
    spec = with_layers(spec, norms=replace(spec.layers[0].norms, groups=groups))
    if not fields.integer("num_experts", least=0):
        return spec
    sparse = sparse_steps(fields, spec)
    score = fields.one_of("router_score_func", _SCORES)
    scale = fields.number("router_scaling_factor") if fields.has("router_scaling_factor") else 1.0
    corrected = fields.flag("moe_gate_bias")
    if matrices := fields.integer("mova_num_experts", least=0):
        each = ValueExpertsSpec(matrices, fields.integer("mova_num_experts_per_tok"), score, scale, corrected)
        spec = with_mixers(spec, sparse, value_experts=each)
    top_k, renormalize = fields.integer("num_experts_per_tok"), fields.flag("norm_topk_prob")
    router = RouterSpec(top_k, score=score, renormalize=renormalize, scale=scale)
    moe = experts_of(fields, spec, router, experts=1)
    moe = replace(moe, correction=corrected, names=(_NAMES,))
    if shared := fields.integer("num_shared_experts", 0, least=0):
        moe = replace(moe, shared=shared_experts(spec, "mlp.shared_experts", shared * moe.inner))
    return with_experts(spec, moe, sparse)
