"""Reads the config.json of families with recurrent states in some layers."""

import struct
from collections.abc import Sequence

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.layer import LayerSpec, MixerSpec, Norms
from ..spec.mlp import ExpertNames, MoESpec, RouterSpec
from ..spec.model import POST, ModelSpec, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import QWEN, QWEN4
from ..spec.recurrent import DeltaStorage, GatedDeltaSpec, Mamba2Spec, RGLRUSpec, ShortConvSpec
from ..spec.streams import BlockResidualSpec, NGramSpec, StreamMixSpec, hash_multipliers, primes_from
from ..spec.token_input import TokenInputSpec
from .common import attention_bias, check_silu, common, expect, gelu_tanh, slide, window_of, with_defaults
from .dense import granite
from .moe import experts_of, granite_moe, shared_experts, sparse_from, sparse_steps, with_experts
from .rope import rope_from_hf

_LFM2 = (
    ExpertNames(
        router="feed_forward.gate",
        into=("feed_forward.experts.{}.w1.weight", "feed_forward.experts.{}.w3.weight"),
        out="feed_forward.experts.{}.w2.weight",
        correction="feed_forward.expert_bias",
    ),
    ExpertNames(
        router="feed_forward.gate",
        into=("feed_forward.experts.gate_up_proj",),
        out="feed_forward.experts.down_proj",
        correction="feed_forward.expert_bias",
    ),
)
_LFM3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
}
"""Of a file that says nothing of it."""
_LARA_LAYERS = (*("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention"),)
"""Of a file that lists none, over and over."""
_INDEX = tuple(f"indexer.{part}.weight" for part in ("index_qk_proj", "q_layernorm", "k_layernorm"))
"""Of Qwen4."""
_ALICE = {
    "kda_allow_negative_eigenvalues": False,
    "router_score_function": "sigmoid",
    "router_bias_correction": True,
}
"""Fields that files of AliceAI have, with the values that they must have."""
_MOST_ROWS = 1 << 31
"""More than a table of n-grams has."""


def lfm2(fields: Fields, name: str) -> ModelSpec:
    """LFM2: short convolutions, and attention in some layers."""
    inner = fields.integer("block_ff_dim", fields.integer("intermediate_size", 12288))
    if fields.flag("block_auto_adjust_ff_dim", True):
        inner = int(2 * inner / 3)
        inner = int(fields.number("block_ffn_dim_multiplier", 1.0) * inner)
        of = fields.integer("block_multiple_of", 256)
        inner = -(-inner // of) * of
    tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
    values = {**fields.values, "intermediate_size": inner, "tie_word_embeddings": tied}
    spec = common(Fields(values), name, eps=1e-5, theta=1_000_000.0, eps_field="norm_eps")
    spec = with_mixers(spec, qk_norm="head", qk_norm_names=("q_layernorm", "k_layernorm"), out="out_proj")
    spec = with_layers(
        spec,
        mlp=replace(dense_mlp(spec), into=("feed_forward.w1", "feed_forward.w3"), out="feed_forward.w2"),
        norms=Norms(mixer_in="operator_norm", mlp_in="ffn_norm"),
    )
    conv = ShortConvSpec(spec.hidden_size, fields.integer("conv_L_cache", 3), fields.flag("conv_bias"))
    attends = [kind != "conv" for kind in kinds_of(fields, ("conv", "full_attention"))]
    if not attends:
        indices = fields.numbers("full_attn_idxs")
        attends = [not fields.has("full_attn_idxs") or layer in indices for layer in range(len(spec.layers))]
    return replace(mixed(spec, attends, conv), final_norm="model.embedding_norm")


def lfm2_moe(fields: Fields, name: str) -> ModelSpec:
    """LFM2 with experts in all but the first few layers."""
    told = with_defaults(fields, intermediate_size=7168)
    spec = lfm2(Fields({**told.values, "block_auto_adjust_ff_dim": False}), name)
    router = RouterSpec(
        fields.integer("num_experts_per_tok", 4),
        score="sigmoid",
        renormalize=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    moe = replace(
        experts_of(fields, spec, router, experts=32), correction=fields.flag("use_expert_bias", True), names=_LFM2
    )
    return with_experts(spec, moe, sparse_from(spec, fields.integer("num_dense_layers", 2, least=0)))


def lfm3(fields: Fields, name: str) -> ModelSpec:
    """An LFM2 of which some layers have a window, with norms behind each part and a gate for each head."""
    told = {"rope_parameters": _LFM3_ROPE, "tie_word_embeddings": True, **fields.values}
    spec = common(Fields(told), name, head_dim=128, eps=1e-5, eps_field="norm_eps")
    norms = Norms(mixer_in="operator_norm", mlp_in="ffn_norm")
    if fields.flag("use_sandwich_norm", True):
        norms = replace(norms, mixer_out="post_operator_norm", mlp_out="post_ffn_norm")
    mlp = replace(dense_mlp(spec), into=("feed_forward.w1", "feed_forward.w3"), out="feed_forward.w2")
    spec = with_layers(attention_bias(fields, spec), norms=norms, mlp=mlp)
    gates = fields.flag("use_attention_gate", True)
    spec = with_mixers(spec, qk_norm="head", gated=gates, gate="gate_proj" if gates else "", gate_by_head=gates)
    usual = ("sliding_attention", "conv", "full_attention", "conv") * len(spec.layers)
    kinds = kinds_of(fields, ("conv", "full_attention", "sliding_attention"))
    kinds = kinds or ("conv", *usual[1 : len(spec.layers)])
    for kind in ("full_attention", "sliding_attention"):
        rope = rope_from_hf(told, spec.layers[0].attention.head_dim, layer_type=kind)
        spec = with_mixers(spec, [each == kind for each in kinds], rope=rope)
    window = window_of(fields, 256)
    spec = slide(spec, window, [kind == "sliding_attention" for kind in kinds])
    conv = ShortConvSpec(spec.hidden_size, fields.integer("conv_L_cache", 7), fields.flag("conv_bias"))
    return replace(mixed(spec, [kind != "conv" for kind in kinds], conv), final_norm="model.embedding_norm")


def granite_hybrid(fields: Fields, name: str) -> ModelSpec:
    """Granite 4: a Granite with other names for its network, and Mamba-2 in most layers."""
    spec = granite(fields, name)
    fields = with_defaults(fields, shared_intermediate_size=1024)
    inner = fields.integer("shared_intermediate_size")
    mlp = replace(dense_mlp(spec), inner=inner, into=("shared_mlp.input_linear",), out="shared_mlp.output_linear")
    spec = granite_moe(fields, name) if fields.integer("num_local_experts", 8, least=0) else with_layers(spec, mlp=mlp)
    if fields.text("position_embedding_type", "nope") != "rope":
        spec = with_mixers(spec, rope=None)
    kinds = kinds_of(fields, ("mamba", "linear_attention", "attention", "full_attention"))
    kinds = kinds or fields.texts("layers_block_type") or ("mamba",) * len(spec.layers)
    attends = [kind not in ("mamba", "linear_attention") for kind in kinds]
    return spec if all(attends) else mixed(spec, attends, mamba2(fields, spec.hidden_size))


def mamba2(fields: Fields, hidden: int, inner: int | None = None) -> Mamba2Spec:
    """The mixer of Granite 4, Bamba and Falcon-H1; ``inner``: channels, if they do not follow from ``mamba_expand``."""
    check_silu(fields)
    heads, groups = fields.integer("mamba_n_heads", 128), fields.integer("mamba_n_groups", 1)
    inner = inner or int(fields.number("mamba_expand", 2) * hidden)
    if inner % heads:
        raise ConfigError(f"mamba_n_heads is {heads}, expected a divisor of the {inner} channels of a state space")
    least, most = fields.bounds("time_step_limit")
    return Mamba2Spec(
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state_dim=fields.integer("mamba_d_state", 256),
        width=fields.integer("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias"),
        least_step=max(0.0, least),
        most_step=most,
        norm_groups=groups,
    )


def qwen3_next(fields: Fields, name: str) -> ModelSpec:
    """Qwen3.5 with projections stored by key head, and experts."""
    spec = _with_head(fields, _gated_delta(fields, name, stored="by_head"))
    if not fields.integer("num_experts", 512, least=0):
        return spec
    router = RouterSpec(fields.integer("num_experts_per_tok", 10), renormalize=fields.flag("norm_topk_prob", True))
    moe = _qwen_experts(fields, spec, router, experts=512)
    return with_experts(spec, moe, sparse_steps(fields, spec))


def qwen3_5(fields: Fields, name: str) -> ModelSpec:
    return _with_head(fields, _gated_delta(fields, name, stored="by_part"))


def qwen3_5_moe(fields: Fields, name: str) -> ModelSpec:
    """Qwen3.5 with experts in all layers."""
    fields = Fields({"intermediate_size": 1, **fields.values})  # no layer uses it
    spec = _with_head(fields, _gated_delta(fields, name, stored="by_part"))
    moe = _qwen_experts(fields, spec, RouterSpec(fields.integer("num_experts_per_tok", 8)), experts=256)
    return with_layers(spec, mlp=moe)


def alice(fields: Fields, name: str) -> ModelSpec:
    """AliceAI: attention as in Qwen3-Next beside Kimi Linear's delta rule, experts with sigmoid scores in all layers,
    and streams kept before blocks of layers."""
    needed = "layer_types", "num_experts", "shared_expert_intermediate_size", *_ALICE
    if missing := next((field for field in needed if not fields.has(field)), ""):
        raise ConfigError(f"{missing} is missing, expected it in files of AliceAI")
    fixed = {"decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False, "qkv_bias": False}
    expect(fields, {**_ALICE, **fixed, "attn_output_gate": True})
    defaults = {"intermediate_size": 1, "partial_rotary_factor": 1.0}  # no layer uses the first
    fields = Fields({**defaults, **fields.values})
    spec = _gated_delta(fields, name, stored="low_rank")
    top = fields.integer("num_experts_per_tok")
    router = RouterSpec(top, score="sigmoid", renormalize=fields.flag("norm_topk_prob", True))
    moe = replace(_qwen_experts(fields, spec, router, experts=256), correction=True)
    layers = [
        replace(layer, mixer=_by_channel(layer.mixer)) if isinstance(layer.mixer, GatedDeltaSpec) else layer
        for layer in with_layers(spec, mlp=moe).layers
    ]
    block = fields.integer("block_attn_res_block_size")
    streams = BlockResidualSpec(len(layers), block, ("attn_res", "mlp_res"), "model.attnres_final.res")
    spec = replace(spec, layers=tuple(layers), streams=streams, draft_prefix=QWEN.prefix)
    return replace(spec, tie_embeddings=False)  # whatever files say, as in vLLM


def _by_channel(delta: GatedDeltaSpec) -> GatedDeltaSpec:
    """The rule with decays of channels. Raises :class:`ConfigError` if keys and values differ in size."""
    keys, values = (delta.k_heads, delta.k_dim), (delta.v_heads, delta.v_dim)
    if keys != values:
        raise ConfigError(
            f"linear attention has {keys[0]} heads of {keys[1]} for keys and {values[0]} of {values[1]} for values, "
            "expected the same"
        )
    return replace(delta, flat_rates=True)


def lara_mini(fields: Fields, name: str) -> ModelSpec:
    """LARA mini: layers with the gated delta rule, with a window and without, of which those with a window rotate;
    experts beside one that every token uses."""
    check_silu(fields)
    fields = Fields({"intermediate_size": 1, "num_experts_per_tok": 4, **fields.values})  # no layer uses the first
    fields = with_defaults(fields, moe_intermediate_size=512, num_key_value_heads=4, tie_word_embeddings=True)
    spec = with_mixers(attention_bias(fields, common(fields, name, head_dim=128)), qk_norm="head")
    router = RouterSpec(fields.integer("num_experts_per_tok"), renormalize=fields.flag("norm_topk_prob", True))
    shared = shared_experts(spec, "mlp.shared_expert", fields.integer("shared_expert_intermediate_size", 512))
    spec = with_layers(spec, mlp=replace(experts_of(fields, spec, router, experts=128), shared=shared))
    kinds = kinds_of(fields, ("linear_attention", "sliding_attention", "full_attention"))
    kinds = kinds or tuple(_LARA_LAYERS[at % len(_LARA_LAYERS)] for at in range(len(spec.layers)))
    spec = with_mixers(spec, [kind == "full_attention" for kind in kinds], rope=None)
    spec = slide(spec, window_of(fields, 512), [kind == "sliding_attention" for kind in kinds])
    delta = _delta(fields, "fused", k_heads=8, v_heads=16)
    return mixed(spec, [kind != "linear_attention" for kind in kinds], delta)


def qwen4(fields: Fields, name: str) -> ModelSpec:
    """Qwen3.5 with experts, several residual streams, and embeddings of n-grams in some layers.

    An index of attention chooses all tokens of a text that is no longer than its budget. Nothing chooses fewer here, so
    that this is the longest context.
    """
    kinds = kinds_of(fields, ("linear_attention", "full_attention", "indexed_attention"))
    named = [kind.replace("indexed", "full") for kind in kinds] or None
    defaults = {"intermediate_size": 1, "moe_intermediate_size": 512, "partial_rotary_factor": 1.0}
    fields = Fields({**defaults, **fields.values, "layer_types": named})
    spec = _gated_delta(fields, name, stored="by_part")
    router = RouterSpec(fields.integer("num_experts_per_tok", 10), renormalize=fields.flag("norm_topk_prob", True))
    moe = _qwen_experts(fields, spec, router, experts=512)
    spec = with_mixers(with_layers(spec, mlp=moe, norms=Norms()), unused=_INDEX)
    gate = fields.text("output_gate_type", "silu")
    if gate not in ("silu", "swish", "sigmoid"):
        raise ConfigError(f"output_gate_type is {gate!r}, expected 'silu' or 'sigmoid'")
    layers = [
        replace(layer, mixer=replace(layer.mixer, sigmoid_gate=gate == "sigmoid"))
        if isinstance(layer.mixer, GatedDeltaSpec)
        else layer
        for layer in spec.layers
    ]
    streams = StreamMixSpec(fields.integer("hc_count", 4), fields.integer("hc_lowrank", 320))
    for at, number in enumerate(sorted(set(fields.numbers("ple_layer_ids")))):
        if number not in range(1, len(layers) + 1):
            raise ConfigError(f"ple_layer_ids holds {number:g}, expected numbers of layers, 1 to {len(layers)}")
        layer = layers[int(number) - 1]
        if not isinstance(layer.mixer, GatedDeltaSpec):
            raise ConfigError(f"ple_layer_ids holds {number:g}, expected layers with linear attention")
        layers[int(number) - 1] = replace(layer, ngrams=_ngrams(fields, spec, streams, at))
    longest = spec.max_position
    if any(layer.keeps for layer in layers):
        budget, block = fields.integer("indexer_budget"), fields.integer("indexer_compress_ratio")
        if budget % block:
            raise ConfigError(f"indexer_budget is {budget}, expected a multiple of indexer_compress_ratio, {block}")
        longest = min(longest, budget + block - 1)
    spec = replace(spec, layers=tuple(layers), streams=streams, final_norm="", max_position=longest)
    heads = fields.integer("mtp_num_hidden_layers", fields.integer("num_nextn_predict_layers", 1, least=0), least=0)
    if not any(layer.keeps for layer in layers):  # the head attends as the last layer that does
        return replace(spec, draft_prefix=QWEN4.prefix)
    return with_mtp(spec, QWEN4, heads)


def _ngrams(fields: Fields, spec: ModelSpec, streams: StreamMixSpec, layer: int) -> NGramSpec:
    """The n-grams of the ``layer``-th layer that has some."""
    if not spec.eos_token_ids:
        raise ConfigError("eos_token_id is missing, expected the token that ends texts, for ple_layer_ids")
    tokens, each = fields.integer("ngram_size", 3, least=2, most=16), fields.integer("heads_per_ngram", 8, most=256)
    count = (tokens - 1) * each
    base = fields.integer("ngram_vocab_size_base", 20_000_000, most=_MOST_ROWS)
    sizes = primes_from(base, layer * count, count)
    unit = fields.integer("make_ngram_vocab_size_divisible_by", 128)
    ends = fields.get("eos_token_id")
    eos = ends[0] if isinstance(ends, list | tuple) else ends
    assert isinstance(eos, int)
    return NGramSpec(
        vocab_size=spec.vocab_size,
        streams=streams.streams,
        dim=fields.integer("ple_embed_dim", spec.hidden_size),
        multipliers=hash_multipliers(spec.vocab_size, tokens, layer, fields.integer("seed", 1234, least=0)),
        sizes=sizes,
        rows=-(-sum(sizes) // unit) * unit,
        shards=fields.integer("split_ngram_parts", 512),
        eos=eos,
        width=fields.integer("ple_conv_kernel_size", 4),
    )


def _with_head(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec with a multi-token prediction head; files of Qwen3-Next do not mention it."""
    return with_mtp(spec, QWEN, fields.integer("mtp_num_hidden_layers", 1, least=0))


def _qwen_experts(fields: Fields, spec: ModelSpec, router: RouterSpec, *, experts: int) -> MoESpec:
    """Experts with a gated shared one."""
    inner = fields.integer("shared_expert_intermediate_size", 512)
    return replace(
        experts_of(fields, spec, router, experts=experts),
        shared=shared_experts(spec, "mlp.shared_expert", inner),
        shared_gate="mlp.shared_expert_gate",
    )


def _gated_delta(fields: Fields, name: str, *, stored: DeltaStorage) -> ModelSpec:
    """Three of four layers have the gated delta rule; attention is gated and rotates a quarter of each head."""
    check_silu(fields)
    values = {"partial_rotary_factor": 0.25, **fields.values}
    spec = attention_bias(fields, common(Fields(values), name, head_dim=256))
    spec = replace(with_mixers(spec, qk_norm="head", gated=True), norm_plus_one=True)
    delta = _delta(fields, stored, k_heads=16, v_heads=32)
    period = fields.integer("full_attention_interval", 4)
    kinds = kinds_of(fields, ("linear_attention", "full_attention"))
    attends = [kind == "full_attention" for kind in kinds]
    return mixed(spec, attends or [(layer + 1) % period == 0 for layer in range(len(spec.layers))], delta)


def _delta(fields: Fields, stored: DeltaStorage, *, k_heads: int, v_heads: int) -> GatedDeltaSpec:
    """Qwen's gated delta rule; the numbers of heads are defaults."""
    return GatedDeltaSpec(
        k_heads=fields.integer("linear_num_key_heads", k_heads),
        v_heads=fields.integer("linear_num_value_heads", v_heads),
        k_dim=fields.integer("linear_key_head_dim", 128),
        v_dim=fields.integer("linear_value_head_dim", 128),
        width=fields.integer("linear_conv_kernel_dim", 4),
        stored=stored,
    )


def olmo_hybrid(fields: Fields, name: str) -> ModelSpec:
    """OLMo 3 without windows, with the gated delta rule in three of four layers, behind input norms. A null rotary base
    means no rotation."""
    check_silu(fields)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    rotates = {"rope_theta": 0, **fields.values, **(fields.table("rope_parameters") or {})}["rope_theta"] is not None
    values = {**fields.values} if rotates else {**fields.values, "rope_parameters": None, "rope_scaling": None}
    spec = attention_bias(fields, common(Fields(values), name))
    spec = with_layers(with_mixers(spec, qk_norm="full"), norms=POST)
    if not rotates:
        spec = with_mixers(spec, rope=None)
    k_heads = fields.integer("linear_num_key_heads", heads)
    k_dim = fields.integer("linear_key_head_dim", max(1, int(0.75 * hidden / k_heads)))
    delta = GatedDeltaSpec(
        k_heads=k_heads,
        v_heads=fields.integer("linear_num_value_heads", heads),
        k_dim=k_dim,
        v_dim=fields.integer("linear_value_head_dim", 2 * k_dim),
        width=fields.integer("linear_conv_kernel_dim", 4),
        stored="apart",
        beta_scale=2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0,
        norm_eps=1e-5,  # fixed in its published code
    )
    attends = [kind == "full_attention" for kind in kinds_of(fields, ("linear_attention", "full_attention"))]
    if not attends:
        attends = [layer % 4 == 3 for layer in range(len(spec.layers))]
        attends[-1] = attends[-1] or not any(attends)
    spec = mixed(spec, attends, delta)
    norms = Norms(mixer_in="attention_layer_norm", mlp_in="feedforward_layer_norm")
    layers = (
        layer if attending else replace(layer, norms=norms)
        for layer, attending in zip(spec.layers, attends, strict=True)
    )
    return replace(spec, layers=tuple(layers))


def recurrent_gemma(fields: Fields, name: str) -> ModelSpec:
    """RecurrentGemma: a gated linear recurrence in two of three layers, attention with a window in the others."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    defaults = {"max_position_embeddings": 1 << 20, "partial_rotary_factor": 0.5, "tie_word_embeddings": True}
    inner = max(1, fields.integer("intermediate_size") // 2)
    values = {**defaults, **fields.values, "intermediate_size": inner, "hidden_act": gelu_tanh(fields)}
    spec = common(Fields(values), name)
    spec = with_mixers(spec, qkv_bias=fields.flag("attention_bias"), output_bias=True, name="temporal_block")
    parts = ("mlp_block.gate_proj", "mlp_block.up_proj")
    spec = with_layers(
        slide(spec, fields.integer("attention_window_size", 2048)),
        norms=Norms(mixer_in="temporal_pre_norm", mlp_in="channel_pre_norm"),
        mlp=replace(dense_mlp(spec), bias=True, into=parts, out="mlp_block.down_proj"),
    )
    spec = replace(
        spec,
        norm_plus_one=True,
        final_norm="model.final_norm",
        input=TokenInputSpec(scale=_as_bfloat16(hidden**0.5)),
        logits_softcap=fields.number("logits_soft_cap", 30.0),
    )
    if (channels := fields.integer("lru_width", hidden)) % heads:
        raise ConfigError(f"lru_width is {channels}, expected a multiple of num_attention_heads, {heads}")
    kinds = fields.texts("block_types") or ("recurrent", "recurrent", "attention")
    if (odd := next((kind for kind in kinds if kind not in ("recurrent", "attention")), None)) is not None:
        raise ConfigError(f"block_types holds {odd!r}, expected 'recurrent' or 'attention'")
    attends = [kinds[layer % len(kinds)] == "attention" for layer in range(len(spec.layers))]
    return mixed(spec, attends, RGLRUSpec(heads, channels // heads, fields.integer("conv1d_width", 4)))


def _as_bfloat16(number: float) -> float:
    """The nearest number of bfloat16, to which transformers rounds the factor in every dtype."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    (rounded,) = struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))
    return float(rounded)


def kinds_of(fields: Fields, known: Sequence[str]) -> tuple[str, ...]:
    """The kind of each layer; empty if the file does not say."""
    kinds = fields.texts("layer_types") or ()
    if (odd := next((kind for kind in kinds if kind not in known), None)) is not None:
        raise ConfigError(f"layer_types holds {odd!r}, expected {' or '.join(map(repr, known))}")
    return tuple(kinds)


def mixed(spec: ModelSpec, attends: Sequence[bool], other: MixerSpec, field: str = "layer_types") -> ModelSpec:
    """The spec with the ``other`` mixer in layers without attention. ``field``: the field that lists them."""
    if len(attends) != len(spec.layers):
        raise ConfigError(f"{field} says what {len(attends)} layers are, expected {len(spec.layers)}")
    layers: list[LayerSpec] = [
        layer if attending else replace(layer, mixer=other)
        for layer, attending in zip(spec.layers, attends, strict=True)
    ]
    return replace(spec, layers=tuple(layers))
