"""Reads the config.json of Kimi Linear and of Kimi K3's text: the gated delta rule by channel in most layers, latent
attention without positions in the others."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.expert_norms import SumNorm
from ..spec.latent_attention import LatentAttentionSpec
from ..spec.mlp import MoESpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mtp
from ..spec.mtp_form import KIMI
from ..spec.recurrent import GatedDeltaSpec
from ..spec.streams import BlockResidualSpec
from .common import check_silu, common, expect, renamed
from .hybrid import kinds_of, mixed
from .latent import KIMI_FIELDS, latent
from .moe import MIXTRAL, deepseek_experts, shared_experts, sparse_kinds, with_experts

_EXPERTS: Final = replace(MIXTRAL, correction="block_sparse_moe.gate.e_score_correction_bias")
_LATENTS: Final = ("block_sparse_moe.routed_expert_down_proj", "block_sparse_moe.routed_expert_up_proj")
_KNOWN: Final[Mapping[str, object]] = {
    "mla_use_nope": True,
    "moe_layer_freq": 1,
    "moe_router_activation_func": "sigmoid",
    "topk_method": "noaux_tc",
}
"""Fields that must have these values."""
_BOUNDS: Final[Mapping[str, float]] = {"activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0}
"""Those of the activation ``situ`` that kernels have."""


def kimi_linear(fields: Fields, name: str) -> ModelSpec:
    """All layers but the first have experts. Layers in lists count from 1."""
    expect(fields, _KNOWN)
    linear = Fields(fields.table("linear_attn_config") or {})
    defaults = {"moe_intermediate_size": 1024, "routed_scaling_factor": 2.446, "n_routed_experts": 256}
    fields = renamed(fields, KIMI_FIELDS, max_position_embeddings=1 << 20, q_lora_rank=None, **defaults)
    heads = fields.integer("num_attention_heads")
    if (keys := fields.integer("num_key_value_heads", heads)) != heads:
        raise ConfigError(f"num_key_value_heads is {keys}, expected {heads}, as num_attention_heads")
    if (groups := fields.integer("n_group", 1)) > 1 and not fields.flag("use_grouped_topk", True):
        raise ConfigError(f"num_expert_group is {groups}, expected 1 where use_grouped_topk is false")
    smooth = _has_smooth_bounds(fields)
    # head_dim is the size of its rotating part
    plain = Fields({**fields.values, "head_dim": fields.integer("qk_rope_head_dim", 64), "hidden_act": "silu"})
    spec = latent(fields, common(plain, name, eps=1e-5))
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    if fields.flag("mla_use_output_gate"):
        mixer = replace(mixer, gate="g_proj", gate_by_value=True)
    mlp = replace(dense_mlp(spec), also=("mlp", "block_sparse_moe"), activation="situ" if smooth else "silu")
    spec = with_layers(spec, mixer=replace(mixer, rope=None), mlp=mlp)
    moe = _experts(fields, spec)
    head = replace(spec.layers[0], mlp=moe)
    sparse = sparse_kinds(fields, spec, fields.integer("first_k_dense_replace", 1, least=0))
    spec = with_experts(spec, moe, sparse)
    spec = mixed(spec, _attends(fields, linear, len(spec.layers)), _delta(fields, linear))
    if fields.has("attn_res_block_size"):
        streams = BlockResidualSpec(len(spec.layers), fields.integer("attn_res_block_size"))
        spec = replace(spec, streams=streams)
        unread = (name.removeprefix(".") for name, _ in streams.shapes("", spec.hidden_size, len(spec.layers)))
        head = replace(head, unused=tuple(unread))  # the head adds to its stream
    return with_mtp(spec, KIMI, fields.integer("num_nextn_predict_layers", 0, least=0), head)


def _has_smooth_bounds(fields: Fields) -> bool:
    """Whether gates and ups have smooth bounds. Raises :class:`ConfigError` for bounds that no kernel has."""
    if fields.text("hidden_act", "silu") != "situ":
        check_silu(fields)
        return False
    for field, bound in _BOUNDS.items():
        if (found := fields.number(field, 0.0)) != bound:
            raise ConfigError(f"{field} is {found:g}, expected {bound:g}, which the kernels of 'situ' are made for")
    return True


def _experts(fields: Fields, spec: ModelSpec) -> MoESpec:
    """Its experts, which may work on a projection of the token."""
    moe = replace(deepseek_experts(fields, spec, renormalize=True, top_k=8, shared=1), names=(_EXPERTS,))
    if moe.shared is not None:
        shared = shared_experts(spec, "block_sparse_moe.shared_experts", moe.shared.inner)
        moe = replace(moe, shared=replace(shared, also=None))
    normed = fields.flag("latent_moe_use_norm")
    if not fields.has("routed_expert_hidden_size"):
        if normed:
            raise ConfigError("latent_moe_use_norm is true, and routed_expert_hidden_size, the norm's, is missing")
        return moe
    moe = replace(moe, latent=fields.integer("routed_expert_hidden_size"), latent_names=_LATENTS)
    return replace(moe, sum_norm=SumNorm("block_sparse_moe.routed_expert_norm", spec.norm_eps)) if normed else moe


def _attends(fields: Fields, linear: Fields, layers: int) -> Sequence[bool]:
    """Which layers have latent attention: as listed, or every fourth behind the first. Raises :class:`ConfigError` if
    published lists do not name each layer once."""
    if kinds := kinds_of(fields, ("linear_attention", "full_attention")):
        return [kind == "full_attention" for kind in kinds]
    if not linear.has("full_attn_layers"):
        return [layer > 0 and layer % 4 == 0 for layer in range(layers)]
    attending, others = set(linear.numbers("full_attn_layers")), set(linear.numbers("kda_layers"))
    attends = [layer + 1 in attending for layer in range(layers)]
    if others and [layer + 1 not in others for layer in range(layers)] != attends:
        raise ConfigError(
            f"full_attn_layers and kda_layers of linear_attn_config do not name each of layers 1 to {layers} once"
        )
    return attends


def _delta(fields: Fields, linear: Fields) -> GatedDeltaSpec:
    """The rule, from the table of published files or fields of transformers."""
    heads, dim = (
        linear.integer(inner, fields.integer(outer, default))
        for inner, outer, default in (("num_heads", "linear_num_heads", 32), ("head_dim", "linear_head_dim", 128))
    )
    width = linear.integer("short_conv_kernel_size", fields.integer("linear_conv_kernel_dim", 4))
    delta = GatedDeltaSpec(heads, heads, dim, dim, width, stored="low_rank", name="self_attn")
    if linear.flag("use_full_rank_gate"):
        return replace(delta, stored="full_gates", least_decay=linear.number("gate_lower_bound", 0.0))
    if linear.has("gate_lower_bound"):
        raise ConfigError("gate_lower_bound of linear_attn_config is set, expected null without use_full_rank_gate")
    return delta
