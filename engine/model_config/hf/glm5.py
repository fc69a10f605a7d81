"""Reads the config.json of GLM 5.3 Flash: the gated delta rule by channel in most layers, latent attention with an
index of pools in the others, in several residual streams."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.latent_attention import IndexSpec, LatentAttentionSpec
from ..spec.layer import LayerSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mtp
from ..spec.mtp_form import GLM5
from ..spec.recurrent import GatedDeltaSpec
from ..spec.streams import HyperSpec
from .common import check_silu, common, expect
from .hybrid import kinds_of, mixed
from .latent import index_shares
from .moe import deepseek_experts, sparse_kinds, with_experts

_DEFAULTS: Final[Mapping[str, object]] = {
    "moe_intermediate_size": 2048,
    "n_routed_experts": 288,
    "routed_scaling_factor": 2.5,
}
_LIMIT: Final = 10.0
"""Of gates and ups, for which kernels have an activation."""
_KNOWN: Final[Mapping[str, object]] = {
    **dict.fromkeys(("index_kpool_always_select_tail", "mhc", "mla_use_nope"), True),
    **{"scoring_func": "sigmoid", "topk_method": "noaux_tc", "swiglu_limit": _LIMIT},
}
"""Fields that must have these values, as they do by default."""
_KINDS: Final = ("linear_attention", "indexed_attention", "full_attention")
"""The last two are one."""


def glm5_next(fields: Fields, name: str) -> ModelSpec:
    check_silu(fields)
    _check(fields)
    # its heads do not rotate, and a head_dim is the size of what would
    given = {key: value for key, value in fields.values.items() if not key.startswith("rope_")}
    fields = Fields({**_DEFAULTS, **given, "head_dim": fields.integer("qk_nope_head_dim", 256)})
    spec = common(fields, name, eps=1e-5)
    spec = with_layers(spec, mixer=_attention(fields, spec), mlp=replace(dense_mlp(spec), limit=_LIMIT))
    attends = _attends(fields, len(spec.layers))
    layers = []
    shares = index_shares(fields, len(spec.layers))
    if len(attends) != len(spec.layers):
        raise ConfigError(f"layer_types says what {len(attends)} layers are, expected {len(spec.layers)}")
    for number, (layer, shared) in enumerate(zip(spec.layers, shares, strict=True)):
        assert isinstance(layer.mixer, LatentAttentionSpec)
        assert layer.mixer.index is not None
        if shared and attends[number] and (not attends[number - 1] or shares[number - 1]):
            raise ConfigError(f"layer {number} uses the index of the layer before, which has none of its own")
        index = replace(layer.mixer.index, shared=shared)
        layers.append(replace(layer, mixer=replace(layer.mixer, index=index)))
    spec = mixed(replace(spec, layers=tuple(layers)), attends, _delta(fields))
    streams = HyperSpec(
        fields.integer("hc_mult", 4), fields.integer("hc_sinkhorn_iters", 20), fields.number("hc_eps", 1e-6), head=""
    )
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8, shared=1)
    moe = replace(moe, activation="swiglu_10")
    sparse = sparse_kinds(fields, spec, fields.integer("first_k_dense_replace", 3, least=0))
    spec = replace(with_experts(spec, moe, sparse), streams=streams)
    head = _head(fields, replace(spec.layers[-1], mixer=_attention(fields, spec)))
    return with_mtp(spec, GLM5, fields.integer("num_nextn_predict_layers", 1, least=0), head)


def _head(fields: Fields, layer: LayerSpec) -> LayerSpec:
    """The layer that predicts further tokens, of one stream. It sees all tokens: up to the index's budget that is what
    its index chooses, and the model verifies what it drafts."""
    mixer = layer.mixer
    assert isinstance(mixer, LatentAttentionSpec)
    assert mixer.index is not None
    of_index = mixer.index.shapes(mixer.index_name, "", fields.integer("hidden_size"), mixer.q_lora_rank)
    stored = [name.removeprefix(".") for name, _ in of_index]
    scales = [f"{name}_scale_inv" for name in stored if name.endswith(("wq_b.weight", "wk.weight"))]
    return replace(layer, mixer=replace(mixer, index=None), unused=(*stored, *scales))


def _check(fields: Fields) -> None:
    """Raise :class:`ConfigError` for what only other models have."""
    expect(fields, _KNOWN)
    if rotating := fields.integer("qk_rope_head_dim", 0, least=0):
        raise ConfigError(f"qk_rope_head_dim is {rotating}, expected 0: its heads have no positions")
    heads = fields.integer("num_attention_heads")
    if (keys := fields.integer("num_key_value_heads", heads)) != heads:
        raise ConfigError(f"num_key_value_heads is {keys}, expected {heads}, as num_attention_heads")


def _attention(fields: Fields, spec: ModelSpec) -> LatentAttentionSpec:
    nope = fields.integer("qk_nope_head_dim", 256)
    index = IndexSpec(
        heads=fields.integer("index_n_heads", 32),
        head_dim=fields.integer("index_head_dim", 128),
        top_k=fields.integer("index_topk", 2048),
        pool=fields.integer("index_kpool", 16),
    )
    return LatentAttentionSpec(
        heads=fields.integer("num_attention_heads"),
        kv_lora_rank=fields.integer("kv_lora_rank", 512),
        nope_dim=nope,
        rope_dim=0,
        v_dim=fields.integer("v_head_dim", 256),
        scale=nope**-0.5,
        q_lora_rank=fields.integer("q_lora_rank", 1536),
        rope=None,
        norm_eps=spec.norm_eps,
        bias=fields.flag("attention_bias"),
        index=index,
    )


def _attends(fields: Fields, layers: int) -> Sequence[bool]:
    """Which layers have attention: as listed, or every fourth."""
    kinds = kinds_of(fields, _KINDS)
    return [kind != "linear_attention" for kind in kinds] if kinds else [layer % 4 == 3 for layer in range(layers)]


def _delta(fields: Fields) -> GatedDeltaSpec:
    """The rule, from fields of transformers or the table of published files."""
    published = Fields(fields.table("linear_attn_config") or {})
    heads, dim, width = (
        published.integer(inner, fields.integer(outer, default))
        for inner, outer, default in (
            ("num_heads", "linear_num_heads", 64),
            ("head_dim", "linear_head_dim", 128),
            ("short_conv_kernel_size", "linear_conv_kernel_dim", 4),
        )
    )
    least = fields.number("linear_lower_bound", 0.0 if "linear_lower_bound" in fields.values else -5.0)
    if "gate_lower_bound" in published.values:
        least = published.number("gate_lower_bound", 0.0)
    if published.values and published.flag("safe_gate", True) and not least:
        least = -5.0
    return GatedDeltaSpec(
        heads, heads, dim, dim, width, stored="low_rank", flat_rates=True, least_decay=least, name="self_attn"
    )
