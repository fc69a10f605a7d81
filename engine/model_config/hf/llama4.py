"""Reads Llama 4's config.json."""

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.mlp import STACKED, MLPSpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers
from .common import attention_bias, common
from .moe import experts_of, with_experts

_DENSE = ("feed_forward.gate_proj", "feed_forward.up_proj")
_SHARED = ("feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj")
_EXPERTS = replace(
    STACKED,
    router="feed_forward.router",
    into=("feed_forward.experts.gate_up_proj",),
    out="feed_forward.experts.down_proj",
    transposed=True,
)
_KINDS = ("chunked_attention", "full_attention")


def llama4(fields: Fields, name: str) -> ModelSpec:
    """Layers that rotate have chunked attention; every fourth does not rotate and sees all."""
    fields = Fields({"head_dim": 128, **fields.values})
    spec = attention_bias(fields, common(fields, name, eps=1e-5, theta=500_000.0))
    return _with_networks(fields, _with_chunks(fields, spec))


def _with_chunks(fields: Fields, spec: ModelSpec) -> ModelSpec:
    layers = range(len(spec.layers))
    interval = fields.integer("no_rope_layer_interval", 4)
    rotates = [bool(each) for each in fields.numbers("no_rope_layers")]  # 1 for a layer that rotates
    rotates = rotates[: len(layers)] or [(layer + 1) % interval != 0 for layer in layers]
    kinds = fields.texts("layer_types") or [_KINDS[not each] for each in rotates]
    if unknown := [kind for kind in kinds if kind not in _KINDS]:
        raise ConfigError(f"layer_types holds {unknown[0]!r}, expected {' or '.join(_KINDS)}")
    rope = spec.layers[0].attention.rope
    assert rope is not None
    rotating: dict[str, object] = {"rope": replace(rope, interleaved=True)}
    if fields.flag("use_qk_norm", True):
        rotating |= {"qk_norm": "head", "qk_norm_names": None, "rotated_first": True}
    still: dict[str, object] = {"rope": None}
    if fields.values.get("attn_temperature_tuning", True):  # early files have 4
        still |= {
            "temperature_beta": fields.number("attn_scale", 0.1),
            "temperature_floor": fields.integer("floor_scale", 8192),
            "temperature_first": 1,
        }
    spec = with_mixers(with_mixers(spec, rotates, **rotating), [not each for each in rotates], **still)
    chunk = fields.integer("attention_chunk_size", 0 if "attention_chunk_size" in fields.values else 8192, least=0)
    if not 0 < chunk < spec.max_position:
        return spec
    return with_mixers(spec, [kind == "chunked_attention" for kind in kinds], window=chunk, chunked=True)


def _with_networks(fields: Fields, spec: ModelSpec) -> ModelSpec:
    top_k = fields.integer("num_experts_per_tok", 1)
    router = RouterSpec(top_k, score="sigmoid", renormalize=False)
    moe = replace(experts_of(fields, spec, router, experts=16, inner="intermediate_size"), names=(_EXPERTS,))
    shared = MLPSpec(moe.inner, dense_mlp(spec).activation, into=_SHARED, out="feed_forward.shared_expert.down_proj")
    inner = fields.integer("intermediate_size_mlp", 16384)
    dense = replace(dense_mlp(spec), inner=inner, into=_DENSE, out="feed_forward.down_proj")
    step = fields.integer("interleave_moe_layer_step", 1)
    listed = {int(each) for each in fields.numbers("moe_layers")}
    sparse = [
        layer in listed if fields.has("moe_layers") else (layer + 1) % step == 0 for layer in range(len(spec.layers))
    ]
    moe = replace(moe, weight_input=True, shared=shared)
    return with_experts(with_layers(spec, mlp=dense), moe, sparse)
