"""Reads the config.json of DeepSeek-V4: published names of fields, and transformers' later ones."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.compressed_attention import CompressedAttentionSpec, EntryIndexSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import ExpertNames, MLPSpec, MoESpec, RouterSpec
from ..spec.model import ModelSpec, with_mtp
from ..spec.mtp_form import DEEPSEEK_V4
from ..spec.positions import RopeConfig
from ..spec.streams import HyperSpec
from .common import check_silu, common
from .rope import rope_from_hf

_SLIDING, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_NAMES: Final = ExpertNames(
    router="ffn.gate",
    into=("ffn.experts.{}.w1.weight", "ffn.experts.{}.w3.weight"),
    out="ffn.experts.{}.w2.weight",
    correction="ffn.gate.bias",
)
_SHARED: Final = "ffn.shared_experts"
_NORMS: Final = Norms(mixer_in="attn_norm", mlp_in="ffn_norm")
_DEFAULTS: Final[Mapping[str, object]] = {
    "num_key_value_heads": 1,
    "head_dim": 512,
    "moe_intermediate_size": 2048,
    "max_position_embeddings": 1 << 20,
}
_LIMIT: Final = 10.0
"""Of gates and ups, for which kernels have an activation."""


def deepseek_v4(fields: Fields, name: str) -> ModelSpec:
    """All layers see a window; most see compressed entries of everything before it too. The residual is several
    streams, and the first layers choose experts by the token alone."""
    fields, spec = started(fields, name)
    mixer = plain_mixer(fields, spec)
    mixers = _mixers(fields, mixer, len(spec.layers))
    scored, networks = _networks(fields, spec)
    spec = finished(fields, spec, mixers, networks)
    if fields.has("dspark_target_layer_ids"):  # stages that draft blocks are stored under the same prefix
        return spec
    unused = ("ffn.gate.bias_vl",) if fields.has("vision_n_layers") else ()
    head = LayerSpec(replace(mixer, caches_tokens=True), scored, _NORMS, unused=unused)
    return with_mtp(spec, DEEPSEEK_V4, fields.integer("num_nextn_predict_layers", 1, least=0), head)


def started(fields: Fields, name: str) -> tuple[Fields, ModelSpec]:
    """The fields with defaults, and a spec whose layers are still to be made."""
    check_silu(fields)
    fields = Fields({**_DEFAULTS, **fields.values})
    spec = common(Fields({**fields.values, "intermediate_size": fields.integer("moe_intermediate_size")}), name)
    if (heads := fields.integer("num_key_value_heads")) != 1:
        raise ConfigError(f"num_key_value_heads is {heads}, expected 1")
    for field in ("attention_bias", "mlp_bias"):
        if fields.flag(field):
            raise ConfigError(f"{field} is set, expected false")
    return fields, spec


def finished(
    fields: Fields, spec: ModelSpec, mixers: Sequence[CompressedAttentionSpec], networks: Sequence[MoESpec]
) -> ModelSpec:
    """The spec of a model with these parts of each layer."""
    layers = tuple(LayerSpec(mixer, mlp, _NORMS) for mixer, mlp in zip(mixers, networks, strict=True))
    return replace(
        spec,
        layers=layers,
        streams=HyperSpec(
            fields.integer("hc_mult", 4), fields.integer("hc_sinkhorn_iters", 20), fields.number("hc_eps", 1e-6)
        ),
        prefix="layers",
        embedding="embed",
        final_norm="norm",
        draft_prefix=DEEPSEEK_V4.prefix,
        unused=tuple(_of_pictures(fields, len(layers))),
    )


def _of_pictures(fields: Fields, layers: int) -> Iterator[str]:
    """Stored names of what sees pictures, and corrects the choice of experts for them, in files of a model that sees
    (DeepSeek V4 Flash Vision), whose text alone is served."""
    depth = fields.integer("vision_n_layers", 0, least=0, most=MOST_LAYERS)
    if not depth:
        return
    for part in ("vision.patch_embed.proj", "aligner.w1", "aligner.w2"):
        yield from (f"{part}.{ending}" for ending in ("weight", "bias"))
    for block in (f"vision.blocks.{number}" for number in range(depth)):
        yield from (f"{block}.attn.{part}.{ending}" for part in ("wqkv", "wo") for ending in ("weight", "bias"))
        yield from (f"{block}.{part}.weight" for part in ("norm1", "norm2", "mlp.w1", "mlp.w2"))
    yield from ("vision.norm.weight", *(f"image_{which}" for which in ("start", "pad", "newline", "end")))
    yield from (f"layers.{number}.ffn.gate.bias_vl" for number in range(layers))


def plain_mixer(fields: Fields, spec: ModelSpec) -> CompressedAttentionSpec:
    """Attention without entries."""
    rotating = _rotating(fields)
    return CompressedAttentionSpec(
        heads=fields.integer("num_attention_heads"),
        head_dim=fields.integer("head_dim"),
        rope_dim=rotating,
        window=fields.integer("sliding_window", 128),
        q_lora_rank=fields.integer("q_lora_rank", 1024),
        out_groups=fields.integer("o_groups", 8),
        out_rank=fields.integer("o_lora_rank", 1024),
        rope=rotations(fields, rotating)[0],
        norm_eps=spec.norm_eps,
    )


def _rotating(fields: Fields) -> int:
    """Dimensions of a head that rotate."""
    return fields.integer(
        "qk_rope_head_dim", int(fields.integer("head_dim") * fields.number("partial_rotary_factor", 0.125))
    )


def _mixers(fields: Fields, mixer: CompressedAttentionSpec, layers: int) -> list[CompressedAttentionSpec]:
    """The attention of each layer; ``mixer``: without entries."""
    _, compressed = rotations(fields, mixer.rope_dim)
    rates = Fields(fields.table("compress_rates") or {})
    sparse = fields.integer("compress_rate_csa", rates.integer(_SPARSE, 4))
    heavy = fields.integer("compress_rate_hca", rates.integer(_HEAVY, 128))
    index = EntryIndexSpec(
        fields.integer("index_n_heads", 64), fields.integer("index_head_dim", 128), fields.integer("index_topk", 512)
    )
    kinds = {
        _SLIDING: mixer,
        _SPARSE: replace(mixer, ratio=sparse, index=index, rope=compressed),
        _HEAVY: replace(mixer, ratio=heavy, rope=compressed),
    }
    listed = _kinds(fields, layers, {0: _SLIDING, sparse: _SPARSE, heavy: _HEAVY})
    return [kinds[kind] for kind in listed]


def _kinds(fields: Fields, layers: int, by_ratio: Mapping[int, str]) -> Sequence[str]:
    """The kind of each layer's attention: as listed, by ratio, or every other one from the third on with an index."""
    kinds = fields.texts("layer_types")
    if kinds is None and fields.has("compress_ratios"):
        ratios = fields.numbers("compress_ratios")
        if (unknown := next((ratio for ratio in ratios if ratio not in by_ratio), None)) is not None:
            raise ConfigError(f"compress_ratios holds {unknown:g}, expected one of {sorted(by_ratio)}")
        kinds = tuple(by_ratio[int(ratio)] for ratio in ratios)
    if kinds is None:
        kinds = tuple(_SPARSE if layer > 1 and layer % 2 else _HEAVY for layer in range(layers))
    if len(kinds) < layers or not {*kinds} <= {*by_ratio.values()}:
        expected = ", ".join(by_ratio.values())
        raise ConfigError(f"layer_types or compress_ratios is not one of {expected} for each of {layers} layers")
    return kinds[:layers]


def rotations(fields: Fields, rotating: int) -> tuple[RopeConfig, RopeConfig]:
    """The rotations of layers without compressed entries and of layers with them; only the latter extend the
    context."""
    table = fields.table("rope_parameters") or fields.table("rope_scaling") or {}
    longest = fields.integer("max_position_embeddings")

    def read(parameters: Mapping[str, object], theta: float) -> RopeConfig:
        # files give the factor of a whole head; `rotating` is already the number of dimensions that rotate
        parameters = {"rope_theta": theta, **parameters, "partial_rotary_factor": 1.0}
        values = {"rope_parameters": parameters, "max_position_embeddings": longest}
        rope = rope_from_hf(values, rotating)
        factor = 1.0 if rope.kind == "yarn" and rope.attention_factor is None else rope.attention_factor
        return replace(rope, attention_factor=factor, interleaved=True)

    main, compressed = (Fields(table).table(kind) for kind in ("main", "compress"))
    base, other = fields.number("rope_theta", 10_000.0), fields.number("compress_rope_theta", 160_000.0)
    if main is not None and compressed is not None:
        return read(main, base), read(compressed, other)
    flat = {key: value for key, value in table.items() if key not in ("rope_theta", "main", "compress")}
    return read({}, base), read(flat, other)


def scored_experts(fields: Fields) -> MoESpec:
    """Experts that are scored."""
    inner = fields.integer("moe_intermediate_size")
    if (limit := fields.number("swiglu_limit", _LIMIT)) != _LIMIT:
        raise ConfigError(f"swiglu_limit is {limit:g}, expected {_LIMIT:g}")
    if (score := fields.text("scoring_func", "sqrtsoftplus")) not in ("sqrtsoftplus", "sigmoid"):
        raise ConfigError(f"scoring_func is {score[:40]!r}, expected 'sqrtsoftplus' or 'sigmoid'")
    if not fields.flag("norm_topk_prob", True):
        raise ConfigError("norm_topk_prob is false, expected true: weights of experts are divided by their sum")
    if (method := fields.text("topk_method", "noaux_tc")) != "noaux_tc":
        raise ConfigError(f"topk_method is {method[:40]!r}, expected 'noaux_tc'")
    router = RouterSpec(
        fields.integer("num_experts_per_tok", 6),
        score="sigmoid" if score == "sigmoid" else "sqrtsoftplus",
        scale=fields.number("routed_scaling_factor", 1.5),
    )
    shared = MLPSpec(
        inner * fields.integer("n_shared_experts", 1),
        into=(f"{_SHARED}.w1", f"{_SHARED}.w3"),
        out=f"{_SHARED}.w2",
        limit=limit,
    )
    experts = fields.integer("n_routed_experts", fields.integer("num_local_experts", 256))
    return MoESpec(experts, inner, router, "swiglu_10", correction=True, names=(_NAMES,), shared=shared)


def _networks(fields: Fields, spec: ModelSpec) -> tuple[MoESpec, list[MoESpec]]:
    """Experts that are scored, and the network of each layer."""
    scored = scored_experts(fields)
    hashed = replace(scored, correction=False, table=spec.vocab_size, table_name="ffn.gate.tid2eid")
    layers = len(spec.layers)
    kinds = fields.texts("mlp_layer_types")
    if kinds is None:
        first = fields.integer("num_hash_layers", 3, least=0)
        kinds = tuple("hash_moe" if layer < first else "moe" for layer in range(layers))
    if len(kinds) < layers or not {*kinds} <= {"hash_moe", "moe"}:
        raise ConfigError(f"mlp_layer_types is not 'hash_moe' or 'moe' for each of {layers} layers")
    return scored, [hashed if kind == "hash_moe" else scored for kind in kinds[:layers]]
