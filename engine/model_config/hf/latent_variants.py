"""Reads the config.json of further families with multi-head latent attention (arXiv:2405.04434)."""

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.latent_attention import IndexSpec, LatentAttentionSpec
from ..spec.layer import PRE, LayerSpec, Norms
from ..spec.lightning import LightningSpec, lightning_rates
from ..spec.mlp import APART, STACKED, MoESpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mtp
from ..spec.mtp_form import DOTS, HUNYUAN, LONGCAT
from ..spec.positions import alibi_slopes
from ..spec.token_input import NGramInputSpec
from .common import check_silu, common, expect, renamed, softcap_of
from .latent import index_shares, latent
from .moe import deepseek_experts, experts_of, shared_experts, sparse_from, sparse_kinds, with_experts
from .rope import rope_from_hf

_LARGE4_SIZES = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 6144,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
}
_LARGE4_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 2048.0,
    "original_max_position_embeddings": 512,
    "attention_factor": 1.0,
}
"""Defaults."""
_GROWTH = "softmax_scaling"
_LONGCAT = {
    "rope_theta": 10_000_000.0,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 12,
    "routed_scaling_factor": 6.0,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
}
"""Defaults."""
_DOTS3_SLIDING = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
"""Defaults, in files under names that begin with ``swa_``."""
_NO_ROPE = {"rope_parameters": None, "rope_scaling": None, "partial_rotary_factor": None}
_LONGCAT_NAMES = {
    "expert_ffn_hidden_size": "moe_intermediate_size",
    "ffn_hidden_size": "intermediate_size",
    "moe_topk": "num_experts_per_tok",
}
"""Its names of usual fields."""


def mistral_large4(fields: Fields, name: str) -> ModelSpec:
    """Mistral Large 4: an index in most layers, queries that grow with the position, learned frequencies, and layers
    without positions or with the latents of an earlier layer."""
    fields = Fields({**_LARGE4_SIZES, **fields.values})
    rope = dict(fields.table("rope_scaling") or fields.table("rope_parameters") or _LARGE4_ROPE)
    turning, plain = fields.integer("qk_rope_head_dim"), fields.integer("qk_nope_head_dim")
    fields = Fields({**fields.values, "rope_scaling": None, "rope_parameters": rope, "head_dim": turning})
    fields = Fields({**fields.values, "q_lora_rank": None, "rope_interleave": True})
    spec = common(fields, name, eps=1e-5)
    count = len(spec.layers)
    index = IndexSpec(
        heads=fields.integer("index_n_heads", 32),
        head_dim=fields.integer("index_head_dim", 128),
        top_k=fields.integer("index_topk", 2048),
        interleaved=True,
        input_norm="q_input_norm",
        growth=_GROWTH,
    )
    spec = latent(fields, spec, index)
    rotates = _rotating(fields, count)
    shares, sources = index_shares(fields, count), _sources(fields, rotates)
    layers = []
    for number, layer in enumerate(spec.layers):
        mixer = layer.mixer
        assert isinstance(mixer, LatentAttentionSpec)
        assert mixer.rope is not None
        learned = replace(mixer.rope, learned="model.rotary_emb.alpha")
        mixer = replace(mixer, growth=_GROWTH, index=replace(index, shared=shares[number]), rope=learned)
        if not rotates[number]:
            mixer = replace(mixer, rope=None, nope_dim=plain + turning, rope_dim=0)
        if sources[number] != number:
            mixer = replace(mixer, shares=sources[number])
        layers.append(replace(layer, mixer=mixer))
    cap = softcap_of(fields, "final_logit_softcapping", 30.0)
    spec = replace(spec, layers=tuple(layers), logits_softcap=cap, draft_prefix="mtp_dspark.")
    moe = deepseek_experts(fields, spec, renormalize=True, shared=1)
    moe = replace(moe, correction=False, router=replace(moe.router, score="softmax"), names=(APART, STACKED))
    first = fields.integer("first_k_dense_replace", 1, least=0)
    return with_experts(spec, moe, sparse_kinds(fields, spec, first))


def _rotating(fields: Fields, layers: int) -> Sequence[bool]:
    """Which layers rotate: those with a 1 in a list, or all but the last of every few."""
    listed = fields.numbers("no_rope_layers")
    if not listed:
        every = fields.integer("no_rope_layer_interval", 4)
        return [(layer + 1) % every != 0 for layer in range(layers)]
    if len(listed) < layers or not {*listed} <= {0, 1}:
        raise ConfigError(f"no_rope_layers is not 0 or 1 for each of {layers} layers")
    return [flag == 1 for flag in listed[:layers]]


def _sources(fields: Fields, rotates: Sequence[bool]) -> Sequence[int]:
    """The layer whose latents each layer uses, itself by default."""
    given, layers = fields.numbers("kv_source_layers"), len(rotates)
    if not given:
        return range(layers)
    sources = [int(source) for source in given]
    fits = len(sources) == layers and list(given) == sources
    if not fits or any(not 0 <= source <= at or sources[source] != source for at, source in enumerate(sources)):
        raise ConfigError(
            f"kv_source_layers is not, for each of {layers} layers, itself or an earlier layer with latents of its own"
        )
    for at, source in enumerate(sources):
        if rotates[source] != rotates[at]:
            raise ConfigError(f"layer {at} uses the latents of layer {source}, expected both to rotate, or neither")
    return sources


def axk2(fields: Fields, name: str) -> ModelSpec:
    """A.X K2: a DeepSeek-V3.2 with norms that have a gate, and gates of heads made with the queries."""
    sizes = {"kv_lora_rank": 128, "q_lora_rank": 384, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    experts = {"n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
    fields = Fields({"routed_scaling_factor": 2.5, **sizes, **experts, **fields.values})
    if fields.get("q_lora_rank") is None:
        raise ConfigError("q_lora_rank is null, expected a size: index and gates are made of the latent of queries")
    index = IndexSpec(
        heads=fields.integer("index_n_heads", 16),
        head_dim=fields.integer("index_head_dim", 128),
        top_k=fields.integer("index_topk", 2048),
        interleaved=fields.flag("indexer_rope_interleave"),
    )
    # head_dim is the size of the rotating part
    spec = common(Fields({**fields.values, "head_dim": fields.integer("qk_rope_head_dim")}), name)
    spec = latent(fields, spec, index)
    if fields.has("mlp_layer_types"):
        sparse: Sequence[bool] = sparse_kinds(fields, spec, 0)
    else:
        first, every = fields.integer("first_k_dense_replace", 1, least=0), fields.integer("moe_layer_freq", 1)
        sparse = [at >= first and at % every == 0 for at in range(len(spec.layers))]
    spec = with_experts(spec, deepseek_experts(fields, spec, renormalize=True, shared=1), sparse)
    rank, layers = fields.integer("gated_norm_rank", 16), []
    for layer in spec.layers:
        assert isinstance(layer.mixer, LatentAttentionSpec)
        norms = layer.norms
        gated = (norms.mixer_in, *((norms.mlp_in,) if isinstance(layer.mlp, MoESpec) else ()))
        mixer = replace(layer.mixer, gated_queries=True)
        layers.append(replace(layer, mixer=mixer, norms=_gated(norms, gated, rank)))
    return replace(spec, layers=tuple(layers))


def longcat_flash(fields: Fields, name: str) -> ModelSpec:
    """LongCat Flash: layers are stored in pairs, with one mixture of experts that takes what the first's dense network
    takes and is added behind the second. Some experts return their input."""
    for flag in ("mla_scale_q_lora", "mla_scale_kv_lora"):
        if not fields.flag(flag, True):
            raise ConfigError(f"{flag} is false, expected true: latents are multiplied by a factor")
    if fields.flag("router_bias"):
        raise ConfigError("router_bias is set, expected false: nothing says how experts are weighted with it")
    if (kind := fields.text("zero_expert_type", "identity")) != "identity":
        raise ConfigError(f"zero_expert_type is {kind[:40]!r}, expected 'identity'")
    pairs = fields.integer("num_layers", fields.integer("num_hidden_layers", 56) // 2, most=MOST_LAYERS // 2)
    own = {new: fields.get(old) for old, new in _LONGCAT_NAMES.items() if fields.has(old)}
    values = {**_LONGCAT, **{key: value for key, value in fields.values.items() if value is not None}, **own}
    fields = Fields({**values, "num_hidden_layers": 2 * pairs, "rope_interleave": True})
    # head_dim is the size of the rotating part
    spec = common(Fields({**fields.values, "head_dim": fields.integer("qk_rope_head_dim")}), name, eps=1e-5)
    spec = latent(fields, spec)
    mixer, dense = spec.layers[0].mixer, dense_mlp(spec)
    assert isinstance(mixer, LatentAttentionSpec)
    mixer = replace(
        mixer,
        scale=mixer.scale * math.sqrt(spec.hidden_size / fields.integer("q_lora_rank")),
        latent_scale=math.sqrt(spec.hidden_size / mixer.kv_lora_rank),
    )
    router = RouterSpec(fields.integer("num_experts_per_tok"), renormalize=False)
    router = replace(router, scale=fields.number("routed_scaling_factor"))
    moe = experts_of(fields, spec, router, experts=512)
    names = replace(APART, router="mlp.router.classifier", correction="mlp.router.e_score_correction_bias")
    moe = replace(moe, correction=True, names=(names,), identities=fields.integer("zero_expert_num", 256, least=0))
    halves = [
        LayerSpec(
            replace(mixer, name=f"self_attn.{half}"),
            replace(
                dense,
                into=(f"mlps.{half}.gate_proj", f"mlps.{half}.up_proj"),
                out=f"mlps.{half}.down_proj",
            ),
            Norms(mixer_in=f"input_layernorm.{half}", mlp_in=f"post_attention_layernorm.{half}"),
            shortcut=None if half else moe,
        )
        for half in range(2)
    ]
    into = tuple(f"transformer_layer.{part}" for part in dense.into)
    head = LayerSpec(mixer, replace(dense, into=into, out=f"transformer_layer.{dense.out}"), PRE)
    spec = replace(spec, layers=tuple(halves) * pairs, sublayers=2)
    return with_mtp(spec, LONGCAT, fields.integer("num_nextn_predict_layers", 1, least=0), head)


def longcat_ngram(fields: Fields, name: str) -> ModelSpec:
    """LongCat Flash Lite: a LongCat Flash whose embeddings are averaged with those of n-grams."""
    spec = replace(longcat_flash(fields, name), mtp=None, mtp_layer=None)
    if not fields.has("ngram_vocab_size_ratio"):
        return spec
    if len(spec.eos_token_ids) != 1:
        raise ConfigError(f"eos_token_id is {list(spec.eos_token_ids)}, expected the one token that ends n-grams")
    ngrams = NGramInputSpec(
        vocab_size=spec.vocab_size,
        rows=fields.integer("ngram_vocab_size_ratio") * spec.vocab_size,
        before=fields.integer("emb_neighbor_num", least=2, most=16) - 1,
        each=fields.integer("emb_split_num", most=64),
        eos=spec.eos_token_ids[0],
    )
    ngrams.check(spec.hidden_size)
    return replace(spec, input=replace(spec.input, ngrams=ngrams))


def dots3_note(fields: Fields, name: str) -> ModelSpec:
    """dots.3 note: an index in some layers, and heads of other sizes that see the nearest tokens in the others; each
    head has a gate."""
    fields = Fields({"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, **fields.values})
    turning = fields.integer("qk_rope_head_dim", 64)
    spec = common(Fields({**fields.values, **_NO_ROPE, "head_dim": turning}), name, eps=1e-5)
    count = len(spec.layers)
    kinds = _dots3_kinds(fields, count)
    own = {int(at): values for at, values in (fields.table("per_layer_config") or {}).items() if at.isdecimal()}
    layers = []
    for number, (layer, kind) in enumerate(zip(spec.layers, kinds, strict=True)):
        sizes: Mapping[str, object] = {}
        if number in own:
            sizes = Fields({f"per_layer_config.{number}": own[number]}).table(f"per_layer_config.{number}") or {}
        elif kind == "sliding_attention":
            sizes = _sliding_sizes(fields)
        layers.append(replace(layer, mixer=_dots3_mixer(Fields({**fields.values, **sizes}), spec, kind)))
    every = fields.get("moe_layer_freq")
    first = fields.integer("first_k_dense_replace", 1, least=0)
    if fields.has("mlp_layer_types"):
        sparse: Sequence[bool] = sparse_kinds(fields, spec, first)
    elif isinstance(every, list | tuple):
        listed = fields.numbers("moe_layer_freq")
        if len(listed) < count:
            raise ConfigError(f"moe_layer_freq is of {len(listed)} layers, expected {count}")
        sparse = [at >= first and bool(listed[at]) for at in range(count)]
    else:
        period = fields.integer("moe_layer_freq", 1)
        sparse = [at >= first and at % period == 0 for at in range(count)]
    moe = deepseek_experts(fields, spec, renormalize=True, shared=1)
    inner = fields.integer(
        "shared_experts_intermediate_size", fields.integer("moe_shared_expert_intermediate_size", 1536)
    )
    number = fields.integer("n_shared_experts", 1)
    moe = replace(moe, shared=shared_experts(spec, "mlp.shared_experts", inner * number))
    heads = fields.integer("num_nextn_predict_layers", 1, least=0)
    spec = replace(spec, layers=tuple(layers), draft_layers=heads, draft_prefix="model.mtp.")
    spec = with_experts(spec, moe, sparse)
    slides = [layer for layer, kind in zip(layers, kinds, strict=True) if kind == "sliding_attention"]
    kind = (fields.texts("mtp_layer_types") or ("sliding_attention",))[0]
    if not slides or kind != "sliding_attention":  # one that sees all tokens is not read
        return spec
    return with_mtp(spec, DOTS, heads, replace(slides[-1], mlp=dense_mlp(spec)))


def _dots3_kinds(fields: Fields, layers: int) -> Sequence[str]:
    """The kind of each layer's attention: as listed, or the nearest tokens in three of four layers."""
    listed = kinds = fields.texts("layer_types")
    if kinds is None:
        slides = fields.flag("use_sliding_window", True)
        kinds = tuple(
            "sliding_attention" if slides and layer > 1 and layer % 4 != 1 else "full_attention"
            for layer in range(layers)
        )
    if len(kinds) != layers or not {*kinds} <= {"full_attention", "indexed_attention", "sliding_attention"}:
        raise ConfigError(
            f"layer_types is not 'full_attention', 'indexed_attention' or 'sliding_attention' for each of {layers} "
            "layers"
        )
    if listed is not None and "per_layer_config" in fields.values and not fields.has("use_dsa"):
        return kinds
    whole = "indexed_attention" if fields.flag("use_dsa", True) else "full_attention"
    return tuple(kind if kind == "sliding_attention" else whole for kind in kinds)


def _sliding_sizes(fields: Fields) -> Mapping[str, object]:
    """The sizes of layers with sliding attention, by field name; defaults are those of published files."""
    sizes = {name: fields.integer(f"swa_{name}", default) for name, default in _DOTS3_SLIDING.items()}
    head_dim = fields.integer("swa_head_dim", 256)
    rotating = fields.integer("swa_qk_rope_head_dim", head_dim - sizes["qk_nope_head_dim"])
    return {**sizes, "qk_rope_head_dim": rotating}


def _dots3_mixer(fields: Fields, spec: ModelSpec, kind: str) -> LatentAttentionSpec:
    """``fields``: with the sizes of the layer."""
    table = fields.table("rope_parameters") or fields.table("rope_scaling") or {}
    sliding = kind == "sliding_attention"
    theta = fields.number("swa_rope_theta", 50_000.0) if sliding else fields.number("rope_theta", 80_000_000.0)
    nested = any(isinstance(value, Mapping) for value in table.values())
    given = (Fields(table).table(kind) or {}) if nested else table
    rope = {"rope_theta": theta, **given, "partial_rotary_factor": 1.0}  # files tell the rotating part of a whole head
    values = {**fields.values, **_NO_ROPE, "rope_parameters": rope, "rope_interleave": True}
    index = None
    if kind == "indexed_attention":
        index = IndexSpec(
            heads=fields.integer("index_n_heads", 64),
            head_dim=fields.integer("index_head_dim", 128),
            top_k=fields.integer("index_topk", 2048),
            interleaved=True,
        )
    if fields.values.get("q_lora_rank", 1024) is None:
        raise ConfigError("q_lora_rank is null, expected a size: queries are made of their latent")
    mixer = latent(Fields({"q_lora_rank": 1024, **values}), spec, index).layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    reach = fields.integer("sliding_window", fields.integer("sliding_window_size", 512)) if sliding else 0
    return replace(
        mixer,
        scale=math.sqrt(spec.hidden_size / mixer.q_lora_rank / (mixer.nope_dim + mixer.rope_dim)),
        latent_scale=math.sqrt(spec.hidden_size / mixer.kv_lora_rank),
        norm_eps=spec.norm_eps,
        rope_norm="k_rope_only_layernorm",
        gate="g_proj",
        reach=reach if reach < spec.max_position else 0,
    )


def _gated(norms: Norms, gated: tuple[str, ...], rank: int) -> Norms:
    return replace(norms, gated=gated, gate_rank=rank)


_LING: Mapping[str, object] = {
    **{"score_function": "sigmoid", "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rope_interleave": True},
    **{"linear_silu": False, "use_linear_silu": False, "linear_rope": True, "use_bias": False, "use_qkv_bias": False},
}
"""Fields of Ling 2.5, with the only known values."""


def ling25(fields: Fields, name: str) -> ModelSpec:
    """Ling 2.5 and Ring 2.5: lightning attention with normed and partly rotated heads, the last layer of every few with
    latent attention; all but the first layers have experts.

    Rates fall from the first layer on as in vLLM and SGLang. The code of published files counts layers from -1 there,
    so that all of its rates are larger by the share of one layer.
    """
    check_silu(fields)
    expect(fields, _LING)
    defaults = {"moe_intermediate_size": 512, "num_experts": 256, "n_group": 8, "topk_group": 4, "q_lora_rank": None}
    others = {"rope_theta": 600_000.0, "max_position_embeddings": 32_768, "partial_rotary_factor": 0.5}
    fields = renamed(fields, {"num_shared_experts": "n_shared_experts"}, **defaults, **others)
    heads = fields.integer("num_attention_heads")
    dim = fields.integer("head_dim", fields.integer("hidden_size") // heads)
    rope = rope_from_hf(fields.values, dim)
    whole = Fields({**fields.values, "partial_rotary_factor": None})  # files tell the rotating part of a linear head
    # head_dim is the size of its rotating part
    spec = common(Fields({**whole.values, "head_dim": fields.integer("qk_rope_head_dim", 64)}), name)
    spec = latent(whole, spec)
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    spec = with_layers(spec, mixer=replace(mixer, name="attention", out="dense", norm_eps=spec.norm_eps))
    lightning = LightningSpec(
        rates=(),
        head_dim=dim,
        by_head=False,
        activated=False,
        head_norms=("query_layernorm", "key_layernorm") if fields.flag("use_qk_norm", True) else None,
        head_eps=spec.norm_eps,
        rope=rope,
        scale=dim**-0.5,
        norm_groups=fields.integer("group_norm_size", 4),
        norm_eps=spec.norm_eps,
        name="attention",
        into=("query_key_value", "g_proj"),
        norm="g_norm",
        out="dense",
    )
    period, count = fields.integer("layer_group_size", 5), len(spec.layers)
    attends = [(layer + 1) % period == 0 or layer >= count // period * period for layer in range(count)]
    layers = tuple(
        layer
        if attending
        else replace(
            layer, mixer=replace(lightning, rates=lightning_rates(alibi_slopes(heads), at / max(count - 1, 1)))
        )
        for at, (layer, attending) in enumerate(zip(spec.layers, attends, strict=True))
    )
    spec = replace(spec, layers=layers, embedding="model.word_embeddings", draft_prefix=f"{spec.prefix}.{count}.")
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8, shared=1)
    if moe.shared is not None:
        shared = fields.integer("moe_shared_expert_intermediate_size", moe.inner)
        moe = replace(moe, shared=replace(moe.shared, inner=shared * fields.integer("n_shared_experts", 1)))
    moe = replace(
        moe,
        names=(replace(APART, correction="mlp.gate.expert_bias"),),
        correction=fields.flag("moe_router_enable_expert_bias", True),
    )
    spec = with_mtp(spec, HUNYUAN, fields.integer("num_nextn_predict_layers", 0, least=0))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 1, least=0)))
