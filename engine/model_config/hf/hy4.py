"""Reads the config.json of Hy4, and of the text of Hy4 VL: latent attention with an index, sinks and gates, in several
residual streams."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.latent_attention import IndexSpec, LatentAttentionSpec
from ..spec.mlp import APART, STACKED
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mtp
from ..spec.mtp_form import HUNYUAN_V4
from ..spec.streams import HyperSpec
from .common import check_silu, common
from .latent import index_shares, latent
from .moe import deepseek_experts, sparse_kinds, with_experts
from .rope import media_axes

_DEFAULTS: Final[Mapping[str, object]] = {
    "moe_intermediate_size": 768,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.827,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 2,
}
_SECTIONS: Final = (12, 10, 10)
"""Pairs that turn by frame, row and column, by default."""
_LIMIT: Final = 10.0
"""Of gates and ups, for which kernels have an activation."""
_ALSO: Final = ("gate_proj", "linear_gate")
"""transformers saves an MLP's gate under the second name, since it renames the gate of attention."""


def hunyuan_v4(fields: Fields, name: str) -> ModelSpec:
    return _hunyuan(Fields({**fields.values, "rope_interleave": False}), name)


def hunyuan_v4_vl(fields: Fields, name: str) -> ModelSpec:
    """Hy4 VL, whose neighbouring numbers turn together, a pair by frame, row or column, and whose latents are normed
    with the model's epsilon."""
    return _hunyuan(Fields({**fields.values, "rope_interleave": True}), name, sees=True)


def _hunyuan(fields: Fields, name: str, *, sees: bool = False) -> ModelSpec:
    check_silu(fields)
    fields = Fields({**_DEFAULTS, **fields.values})
    for field in ("enable_ihc", "learnable_sink"):
        if not fields.flag(field, True):
            raise ConfigError(f"{field} is false, expected true")
    rotating = fields.integer("qk_rope_head_dim", 64)
    # head_dim is the size of its rotating part in files that transformers has saved
    spec = common(Fields({**fields.values, "head_dim": rotating}), name, eps=1e-5)
    index = IndexSpec(
        heads=fields.integer("index_n_heads", 16),
        head_dim=fields.integer("index_head_dim", 128),
        top_k=fields.integer("index_topk", 2048),
        norm_eps=spec.norm_eps,
        rotates_last=True,
        interleaved=sees,
    )
    spec = latent(fields, spec, index)
    layers = []
    for layer, shared in zip(spec.layers, index_shares(fields, len(spec.layers)), strict=True):
        assert isinstance(layer.mixer, LatentAttentionSpec)
        mixer = replace(layer.mixer, gate="linear_gate", gate_by_value=True, sinks="learnable_sink_param")
        if sees:
            assert mixer.rope is not None
            mixer = replace(mixer, norm_eps=spec.norm_eps, rope=replace(mixer.rope, axes=_axes(fields, rotating // 2)))
        layers.append(replace(layer, mixer=replace(mixer, index=replace(index, shared=shared))))
    head = "hc_head.hc_pre" if sees else "hc_pre.hc_head"
    spec = replace(spec, layers=tuple(layers), streams=_streams(fields, head), draft_prefix=HUNYUAN_V4.prefix)
    return _with_head(fields, _with_networks(fields, spec))


def _axes(fields: Fields, pairs: int) -> tuple[int, ...]:
    """Of each pair, of which frames, rows and columns alternate."""
    media_axes(fields.values, _SECTIONS, pairs, interleaved=False)  # all pairs have one
    return media_axes(fields.values, _SECTIONS, pairs, interleaved=True)


def _with_head(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec with the head's layer, the model's last with an index of its own, if it is quantised as the model is."""
    if fields.text("mtp_quant_algo", "NONE").upper() != "NONE":
        return spec
    last = spec.layers[-1]
    assert isinstance(last.mixer, LatentAttentionSpec)
    assert last.mixer.index is not None
    head = replace(last, mixer=replace(last.mixer, index=replace(last.mixer.index, shared=False)))
    return with_mtp(spec, HUNYUAN_V4, fields.integer("num_nextn_predict_layers", 1, least=0), head)


def _streams(fields: Fields, head: str) -> HyperSpec:
    """``head``: where transformers saves the weights of the output, which differs."""
    return HyperSpec(
        fields.integer("hc_mult", 4),
        eps=fields.number("hc_eps", 1e-6),
        parts=("hc_attn_layer.hc_pre.hc", "hc_mlp_layer.hc_pre.hc"),
        head="model.hc_head.hc_head",
        saved=("hc_pre.hc_attn_layer.hc", "hc_pre.hc_mlp_layer.hc", f"model.{head}.hc_head"),
        mixes=False,
        most=fields.positive("hc_magnitude", 2.0),
    )


def _with_networks(fields: Fields, spec: ModelSpec) -> ModelSpec:
    if (limit := fields.number("swiglu_limit", _LIMIT)) != _LIMIT:
        raise ConfigError(f"swiglu_limit is {limit:g}, expected {_LIMIT:g}")
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), also=_ALSO))
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8, shared=1)
    moe = replace(moe, activation="swiglu_10", names=(STACKED, APART))
    return with_experts(spec, moe, sparse_kinds(fields, spec, 1))
