"""Reads the config.json of MiniMax-01, M1 and M3, in their authors' form and in transformers'."""

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.attention_parts import BlockIndexSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.lightning import LightningSpec, lightning_rates
from ..spec.mlp import FUSED_MLP, STACKED, ExpertNames, MLPSpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import MINIMAX_M3
from .common import check_silu, common, expect, slide
from .hybrid import kinds_of
from .moe import MIXTRAL, experts_of, with_experts

_KINDS = ("linear_attention", "full_attention")
_SPARSE_KINDS = ("full_attention", "minimax_m3_sparse")
_IN_TRANSFORMERS = "MiniMaxM3VLForCausalLM"
"""The architecture of M3's text part if transformers has written it, with tensor names of its own."""
_INDEX = {
    "index_n_heads": ("sparse_num_index_heads", 4),
    "index_head_dim": ("sparse_index_dim", 128),
    "index_block_size": ("sparse_block_size", 128),
    "index_topk_blocks": ("sparse_topk_blocks", 16),
    "index_local_blocks": ("sparse_local_block", 1),
}
"""Of each field its name in the authors' table, and its default."""


def minimax(fields: Fields, name: str) -> ModelSpec:
    """Lightning attention in most layers, and a Mixtral's attention and experts. The residual stream is normed, and
    scaled, before each part."""
    check_silu(fields)
    if fields.integer("shared_intermediate_size", 0, least=0):
        raise ConfigError("shared_intermediate_size is not 0: shared experts of MiniMax-01 are not supported")
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    if fields.has("rotary_dim"):
        fields = Fields({"partial_rotary_factor": fields.integer("rotary_dim") / head_dim, **fields.values})
    spec = common(fields, name, eps=1e-5, theta=1_000_000.0)
    experts = experts_of(
        fields, spec, RouterSpec(fields.integer("num_experts_per_tok", 2)), experts=8, inner="intermediate_size"
    )
    spec = with_layers(
        slide(spec, fields.integer("sliding_window", 0, least=0)),
        mlp=replace(experts, names=(MIXTRAL, STACKED)),
        norms=Norms(
            mixer_in="input_layernorm", mlp_in="post_attention_layernorm", renews=fields.flag("postnorm", True)
        ),
    )
    listed = fields.numbers("attn_type_list")
    if (odd := next((each for each in listed if each not in (0, 1)), None)) is not None:
        raise ConfigError(f"attn_type_list holds {odd:g}, expected 0 or 1")
    kinds = kinds_of(fields, _KINDS) or tuple(_KINDS[int(each)] for each in listed)
    kinds = kinds or tuple(_KINDS[layer % 2 == 0] for layer in range(len(spec.layers)))
    if len(kinds) != len(spec.layers):
        raise ConfigError(f"layer_types says what {len(kinds)} layers are, expected {len(spec.layers)}")
    of_mlp = _factors(fields, "mlp", "mlp")
    layers = [
        _layer(
            fields,
            layer,
            kind,
            of_mlp,
            lightning_rates(_slopes(layer.attention.heads), number / (len(kinds) - 1 + 1e-5)),
        )
        for number, (layer, kind) in enumerate(zip(spec.layers, kinds, strict=True))
    ]
    return replace(spec, layers=tuple(layers))


def _layer(
    fields: Fields, layer: LayerSpec, kind: str, of_mlp: tuple[float, float], rates: tuple[float, ...]
) -> LayerSpec:
    linear = kind == "linear_attention"
    of_mixer = (
        _factors(fields, "linear_attn", "linear_attention")
        if linear
        else _factors(fields, "full_attn", "full_attention")
    )
    return replace(
        layer,
        mixer=LightningSpec(rates, layer.attention.head_dim) if linear else layer.mixer,
        stream_scales=(of_mixer[0], of_mlp[0]),
        mixer_scale=of_mixer[1],
        mlp_scale=of_mlp[1],
    )


def minimax_m3(fields: Fields, name: str) -> ModelSpec:
    """Gemma's norms, attention that an index limits to some blocks of tokens in most layers, and experts with gpt-oss's
    activation beside a shared one."""
    expect(fields, {"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "n_shared_experts": 1})
    if (activation := fields.text("hidden_act", "swigluoai")) not in ("swigluoai", "silu"):
        raise ConfigError(f"hidden_act is {activation!r}, expected 'swigluoai'")
    head_dim = fields.integer("head_dim", 128)
    rotary = fields.integer("rotary_dim", min(64, head_dim)) / head_dim
    fields = Fields({"partial_rotary_factor": rotary, **fields.values, "hidden_act": "silu"})
    spec = replace(common(fields, name, head_dim=128, theta=5_000_000.0), norm_plus_one=True)
    layers = len(spec.layers)
    table = Fields(fields.table("sparse_attention_config") or {})
    sparse = _which(fields, layers, "layer_types", _SPARSE_KINDS, table, "sparse_attention_freq", default=False)
    spec = with_mixers(spec, qk_norm="head")
    if any(sparse):
        kv_heads = spec.layers[0].attention.kv_heads
        spec = with_mixers(spec, sparse, index=_index(fields, table, kv_heads, named_apart=name == _IN_TRANSFORMERS))

    experts = _which(fields, layers, "mlp_layer_types", ("dense", "sparse"), fields, "moe_layer_freq", default=True)
    router = RouterSpec(
        fields.integer("num_experts_per_tok", 4), score="sigmoid", scale=fields.number("routed_scaling_factor", 2.0)
    )
    moe = experts_of(fields, spec, router, experts=128, inner="intermediate_size")
    shared = replace(dense_mlp(spec), inner=fields.integer("shared_intermediate_size", 3072), activation="swiglu_oai")
    dense = replace(shared, inner=fields.integer("dense_intermediate_size", 12288))
    names: tuple[ExpertNames, ...] = (MIXTRAL, STACKED)
    if name == _IN_TRANSFORMERS:
        names, dense, shared = (STACKED,), _fused(dense, "mlp"), _fused(shared, "mlp.shared_experts")
    else:
        where = "block_sparse_moe.shared_experts"
        shared = replace(shared, into=(f"{where}.gate_proj", f"{where}.up_proj"), out=f"{where}.down_proj")
    moe = replace(moe, activation="swiglu_oai", correction=True, names=names, shared=shared)
    spec = replace(with_experts(with_layers(spec, mlp=dense), moe, experts), draft_prefix=MINIMAX_M3.prefix)
    both = [layer for layer, *of in zip(spec.layers, sparse, experts, strict=True) if all(of)]
    # its head has an index and experts
    return with_mtp(spec, MINIMAX_M3, fields.integer("num_mtp_modules", 1, least=0), both[-1]) if both else spec


def _fused(mlp: MLPSpec, name: str) -> MLPSpec:
    """The network with gate and up stored as one under this name."""
    return replace(mlp, into=tuple(part.replace("mlp", name, 1) for part in FUSED_MLP), out=f"{name}.down_proj")


def _index(fields: Fields, table: Fields, kv_heads: int, *, named_apart: bool) -> BlockIndexSpec:
    """The index, whose values in the authors' ``table`` win. Raises :class:`ConfigError`."""
    found = {
        field: table.integer(other) if table.has(other) else fields.integer(field, default)
        for field, (other, default) in _INDEX.items()
    }
    if found["index_n_heads"] != kv_heads:
        raise ConfigError(f"index_n_heads is {found['index_n_heads']}, expected the {kv_heads} key-value heads")
    return BlockIndexSpec(
        found["index_head_dim"],
        found["index_block_size"],
        found["index_topk_blocks"],
        found["index_local_blocks"],
        "indexer." if named_apart else "index_",
    )


def _which(
    fields: Fields, layers: int, field: str, kinds: tuple[str, str], table: Fields, other: str, *, default: bool
) -> list[bool]:
    """Which layers are of the second kind: by ``field``, else by the numbers in ``table``'s ``other``, else all or
    none."""
    named = fields.texts(field)
    if named is not None:
        if (odd := next((each for each in named if each not in kinds), None)) is not None:
            raise ConfigError(f"{field} holds {odd!r}, expected {' or '.join(kinds)}")
        found = [each == kinds[1] for each in named]
    else:
        found = [bool(each) for each in table.numbers(other)] or [default] * layers
        field = other if table.has(other) else field
    if len(found) != layers:
        raise ConfigError(f"{field} says what {len(found)} layers are, expected {layers}")
    return found


def _factors(fields: Fields, here: str, there: str) -> tuple[float, float]:
    """Factors on the stream and on a part's output, by their names in transformers' files and in the authors'."""
    stream, part = (
        fields.number(f"{here}_{which}_factor", fields.number(f"layernorm_{there}_{which}", 1.0))
        for which in ("alpha", "beta")
    )
    return stream, part


def _slopes(heads: int) -> list[float]:
    """Powers of two down to 2 ** -8, whatever the number of heads."""
    return [2 ** (-8 * (head + 1) / heads) for head in range(heads)]
