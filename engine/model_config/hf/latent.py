"""Reads the config.json of families with multi-head latent attention (arXiv:2405.04434)."""

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.latent_attention import IndexSpec, LatentAttentionSpec
from ..spec.mlp import APART, STACKED, MoESpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import DEEPSEEK, LING
from ..spec.positions import RopeConfig
from ..spec.recurrent import GatedDeltaSpec
from ..spec.token_input import TokenInputSpec
from .common import attention_bias, check_silu, common, expect, renamed
from .hybrid import kinds_of, mixed
from .moe import deepseek_experts, experts_of, shared_experts, sparse_from, sparse_kinds, with_experts
from .rope import rope_from_hf

KIMI_FIELDS = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
"""Kimi Linear's names of DeepSeek's fields."""
PUBLISHED_LING = "BailingMoeV3ForCausalLM"
"""The name that published files of Ling 3.0 have, not transformers'."""
_MISTRAL4_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""Defaults."""


def deepseek_v2(fields: Fields, name: str) -> ModelSpec:
    fields = Fields({"moe_intermediate_size": 1407, **fields.values})
    return _with_greedy_experts(fields, latent(fields, common(fields, name)), first=0)


def deepseek_ocr(fields: Fields, name: str) -> ModelSpec:
    """The experts of DeepSeek-V2 behind attention that caches keys and values."""
    defaults = {"moe_intermediate_size": 896, "num_experts_per_tok": 6}
    fields = Fields({**defaults, **fields.values})
    return _with_greedy_experts(fields, common(fields, name), first=1)


def unlimited_ocr(fields: Fields, name: str) -> ModelSpec:
    """DeepSeek-OCR whose answers see their prompt and their last tokens."""
    window = fields.integer("rswa_window", fields.integer("sliding_window", 128))
    if fields.integer("sliding_window", window) != window:
        raise ConfigError(f"rswa_window is {window}, expected sliding_window, {fields.integer('sliding_window')}")
    spec = deepseek_ocr(fields, name)
    kinds = fields.texts("layer_types") or ("reference_sliding_attention",) * len(spec.layers)
    if unknown := {*kinds} - {"reference_sliding_attention", "full_attention"}:
        raise ConfigError(
            f"layer_types holds {min(unknown)[:40]!r}, expected 'reference_sliding_attention' or 'full_attention'"
        )
    return with_mixers(spec, [kind != "full_attention" for kind in kinds], answer_window=window)


def deepseek(fields: Fields, name: str) -> ModelSpec:
    """DeepSeekMoE 16B: the experts of DeepSeek-V2 behind attention that caches keys and values."""
    expect(fields, {"scoring_func": "softmax", "moe_layer_freq": 1})
    renormalized = fields.flag("norm_topk_prob")
    fields = Fields({"moe_intermediate_size": 1407, **fields.values, "norm_topk_prob": None})
    if not fields.has("n_routed_experts"):
        fields = Fields({**fields.values, "first_k_dense_replace": MOST_LAYERS})
    if not fields.has("n_shared_experts"):
        fields = Fields({**fields.values, "n_shared_experts": 0})
    spec = _with_greedy_experts(fields, attention_bias(fields, common(fields, name)), first=0)
    layers = (
        replace(layer, mlp=replace(layer.mlp, router=replace(layer.mlp.router, renormalize=renormalized)))
        if isinstance(layer.mlp, MoESpec)
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def _with_greedy_experts(fields: Fields, spec: ModelSpec, *, first: int) -> ModelSpec:
    """The spec with DeepSeek-V2's experts; ``first``: default of the first layer that has some."""
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias")))
    sparse = _sparse(fields, spec, first)
    if not any(sparse):
        return spec
    method = fields.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise ConfigError(f"topk_method is {method[:40]!r}, expected 'greedy' or 'group_limited_greedy'")
    if fields.flag("norm_topk_prob"):
        raise ConfigError("norm_topk_prob is set, expected false: weights of experts are not divided by their sum")
    scale = fields.number("routed_scaling_factor", 1.0)
    router = RouterSpec(fields.integer("num_experts_per_tok"), renormalize=False, scale=scale)
    if method == "group_limited_greedy":
        groups, top = fields.integer("n_group", 1), fields.integer("topk_group", 1)
        router = replace(router, groups=groups, top_groups=top, group_score="max")
    moe = experts_of(fields, spec, router, experts=64)
    number = fields.integer("n_shared_experts", 2, least=0)
    moe = replace(moe, shared=shared_experts(spec, "mlp.shared_experts", moe.inner * number) if number else None)
    return with_experts(spec, moe, sparse)


def deepseek_v3(fields: Fields, name: str) -> ModelSpec:
    """DeepSeek-V3; also Kimi K2."""
    defaults = {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
    groups = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
    fields = Fields({**defaults, **groups, **fields.values})
    spec = latent(fields, common(fields, name))
    spec = with_mtp(spec, DEEPSEEK, fields.integer("num_nextn_predict_layers", 1, least=0))
    moe = deepseek_experts(fields, spec, renormalize=True, shared=1)
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 3, least=0)))


def axk1(fields: Fields, name: str) -> ModelSpec:
    """A.X K1: a DeepSeek-V3 whose experts' output is normed. Published files have this norm in dense layers too, which
    do not use it, and no correction of the choice of experts."""
    if fields.integer("moe_layer_freq", 1) != 1:
        raise ConfigError(f"moe_layer_freq is {fields.integer('moe_layer_freq')}, expected 1")
    defaults = {"n_routed_experts": 192, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
    groups = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
    fields = Fields({**defaults, **groups, **fields.values})
    spec = latent(fields, common(fields, name))
    moe = replace(deepseek_experts(fields, spec, renormalize=True, shared=1), correction_stored=False)
    spec = _with_listed_experts(fields, spec, moe, first=1)
    norm = "post_mlp_layernorm"
    layers = (
        replace(layer, norms=replace(layer.norms, mlp_out=norm))
        if isinstance(layer.mlp, MoESpec)
        else replace(layer, unused=(f"{norm}.weight",))
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def glm4_moe_lite(fields: Fields, name: str) -> ModelSpec:
    """GLM-4.7-Flash."""
    defaults = {"n_routed_experts": 64, "num_experts_per_tok": 4, "routed_scaling_factor": 1.8}
    sizes = {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "moe_intermediate_size": 1536}
    fields = Fields({**defaults, **sizes, **fields.values})
    spec = latent(fields, common(fields, name, eps=1e-5))
    spec = with_mtp(spec, DEEPSEEK, fields.integer("num_nextn_predict_layers", 1, least=0))
    return _with_listed_experts(fields, spec, deepseek_experts(fields, spec, renormalize=True, shared=1), first=1)


def deepseek_v32(fields: Fields, name: str) -> ModelSpec:
    """DeepSeek-V3.2."""
    defaults = {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
    groups = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
    return _indexed(Fields({**defaults, **groups, **fields.values}), name)


def glm_moe_dsa(fields: Fields, name: str) -> ModelSpec:
    """GLM-5: some layers use the index of an earlier one."""
    defaults = {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
    sizes = {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "index_n_heads": 32}
    others = {"routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5, "indexer_rope_interleave": True}
    spec = _indexed(Fields({**defaults, **sizes, **others, **fields.values}), name)
    layers = []
    for layer, shared in zip(spec.layers, index_shares(fields, len(spec.layers)), strict=True):
        assert isinstance(layer.mixer, LatentAttentionSpec)
        assert layer.mixer.index is not None
        index = replace(layer.mixer.index, shared=shared)
        layers.append(replace(layer, mixer=replace(layer.mixer, index=index)))
    return replace(spec, layers=tuple(layers))


def _indexed(fields: Fields, name: str) -> ModelSpec:
    """The spec with an index in every layer."""
    index = IndexSpec(
        heads=fields.integer("index_n_heads", 64),
        head_dim=fields.integer("index_head_dim", 128),
        top_k=fields.integer("index_topk", 2048),
        interleaved=fields.flag("indexer_rope_interleave"),
    )
    spec = latent(fields, common(fields, name), index)
    spec = with_mtp(spec, DEEPSEEK, fields.integer("num_nextn_predict_layers", 1, least=0))
    return _with_listed_experts(fields, spec, deepseek_experts(fields, spec, renormalize=True, shared=1), first=3)


def index_shares(fields: Fields, layers: int) -> list[bool]:
    """Which layers have no index of their own: as listed, by a pattern, or by a period."""
    pattern = fields.get("index_topk_pattern")
    kinds: Sequence[str] | None = fields.texts("indexer_types")
    if kinds is None:
        kinds = _spelled(pattern) if isinstance(pattern, str) else fields.texts("index_topk_pattern")
    if kinds is None:
        every, first = fields.integer("index_topk_freq", 1, least=0), fields.integer("index_skip_topk_offset", 2)
        kinds = ["shared" if max(layer - first + 1, 0) % max(every, 1) else "full" for layer in range(layers)]
    if len(kinds) != layers or not {*kinds} <= {"full", "shared"} or kinds[0] == "shared":
        raise ConfigError(
            f"indexer_types or index_topk_pattern is not 'full' or 'shared' for each of {layers} layers, the first "
            "'full'"
        )
    return [kind == "shared" for kind in kinds]


def _spelled(pattern: str) -> Sequence[str]:
    return [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]


def mistral4(fields: Fields, name: str) -> ModelSpec:
    """Mistral Small 4: queries are scaled by position, experts chosen by a softmax."""
    sizes = {"q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "moe_intermediate_size": 2048}
    fields = Fields({**sizes, **fields.values})
    rope = dict(fields.table("rope_scaling") or fields.table("rope_parameters") or _MISTRAL4_ROPE)
    rope["partial_rotary_factor"] = 1.0  # files tell the rotating part of a whole head
    rotating = fields.integer("qk_rope_head_dim", 64)
    fields = Fields({**fields.values, "rope_scaling": None, "rope_parameters": rope, "head_dim": rotating})
    spec = latent(fields, common(fields, name))
    if beta := Fields(rope).number("llama_4_scaling_beta", 0.0):
        floor = Fields(rope).integer("original_max_position_embeddings")
        spec = with_temperature(spec, beta, floor)
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=4, shared=1)
    moe = replace(moe, correction=False, router=replace(moe.router, score="softmax"), names=(STACKED, APART))
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 0, least=0)))


def mistral_large3(fields: Fields, name: str) -> ModelSpec:
    """Mistral Large 3: a Mistral Small 4 whose attention has a factor of its own for an extended context, or none."""
    expect(fields, {"scoring_func": "softmax", "moe_layer_freq": 1})
    rope = dict(fields.table("rope_scaling") or fields.table("rope_parameters") or {})
    if rope.get("attention_factor") == 1.0:
        rope |= {"mscale": None, "mscale_all_dim": None}
    spec = mistral4(Fields({**fields.values, "rope_scaling": None, "rope_parameters": rope}), name)
    grows = Fields(fields.table("llama_4_scaling") or {})
    if not grows.values:
        return spec
    return with_temperature(spec, grows.number("beta"), grows.integer("original_max_position_embeddings"))


def with_temperature(spec: ModelSpec, beta: float, floor: int) -> ModelSpec:
    """The spec with queries scaled by position in every layer with latent attention."""
    layers = (
        replace(layer, mixer=replace(layer.mixer, temperature_beta=beta, temperature_floor=floor))
        if isinstance(layer.mixer, LatentAttentionSpec)
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def _with_listed_experts(fields: Fields, spec: ModelSpec, moe: MoESpec, *, first: int) -> ModelSpec:
    """The spec with experts in the layers of ``mlp_layer_types``, or from ``first_k_dense_replace`` on, else from
    ``first``."""
    return with_experts(spec, moe, _sparse(fields, spec, first))


def _sparse(fields: Fields, spec: ModelSpec, first: int) -> Sequence[bool]:
    """Which layers have experts; ``first``: see :func:`_with_listed_experts`."""
    if not fields.has("mlp_layer_types"):
        first = fields.integer("first_k_dense_replace", first, least=0)
    return sparse_kinds(fields, spec, first)


def ling(fields: Fields, name: str) -> ModelSpec:
    """Ling 3.0: most layers have the gated delta rule by channel, the last of every few latent attention with a gate
    of each head; all but the first have experts. Published files have fields that transformers lacks."""
    check_silu(fields)
    expect(fields, {"no_kda_lora": True, "use_mla_nope": False, "score_function": "sigmoid"})
    gates = fields.text("gated_attention_proj_granularity_type", "head_wise")
    if gates not in ("head_wise", "element_wise"):
        raise ConfigError(
            f"gated_attention_proj_granularity_type is {gates[:40]!r}, expected 'head_wise' or 'element_wise'"
        )
    defaults = {"moe_intermediate_size": 768, "routed_scaling_factor": 2.5, "num_experts": 512, "n_group": 8}
    others = {"topk_group": 4, "norm_topk_prob": True, "rope_theta": 6_000_000.0, "max_position_embeddings": 1 << 18}
    rope = {"partial_rotary_factor": None, "rope_interleave": True}  # files tell the rotating part of a whole head
    fields = Fields({**renamed(fields, KIMI_FIELDS, q_lora_rank=None, **defaults, **others).values, **rope})
    dim = fields.integer("linear_head_dim", fields.integer("head_dim", 128))
    # head_dim is the size of its rotating part
    spec = common(Fields({**fields.values, "head_dim": fields.integer("qk_rope_head_dim", 64)}), name)
    spec = latent(fields, spec)
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    mixer = replace(mixer, gate="g_proj", gate_by_value=gates == "element_wise", name="attention", out="dense")
    published = name == PUBLISHED_LING
    spec = with_layers(spec, mixer=replace(mixer, norm_eps=spec.norm_eps if published else mixer.norm_eps))
    delta = GatedDeltaSpec(
        mixer.heads,
        mixer.heads,
        dim,
        dim,
        fields.integer("short_conv_kernel_size", 4),
        stored="full_rank",
        least_decay=fields.number("kda_lower_bound", -5.0) if fields.flag("kda_safe_gate", True) else 0.0,
        name="attention",
        out="dense",
    )
    period, count = fields.integer("layer_group_size", 6), len(spec.layers)
    kinds = kinds_of(fields, ("linear_attention", "full_attention"))
    attends = [kind == "full_attention" for kind in kinds]
    rest = count // period * period if published else count  # layers of no whole group attend there
    spec = mixed(spec, attends or [(layer + 1) % period == 0 or layer >= rest for layer in range(count)], delta)
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8, shared=1)
    if moe.shared is not None and fields.has("moe_shared_expert_intermediate_size"):
        shared = fields.integer("moe_shared_expert_intermediate_size") * fields.integer("n_shared_experts", 1)
        moe = replace(moe, shared=replace(moe.shared, inner=shared))
    moe = replace(moe, names=(replace(APART, correction="mlp.gate.expert_bias"),))
    spec = replace(spec, embedding="model.word_embeddings", draft_prefix=f"{spec.prefix}.{len(spec.layers)}.")
    spec = with_mtp(spec, LING, fields.integer("num_nextn_predict_layers", 1, least=0))
    return _with_limits(fields, _with_listed_experts(fields, spec, moe, first=2))


def _with_limits(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec with the limits of some layers' experts, and of shared ones."""
    routed, shared = (_limits(fields, f"{which}_swiglu_limit_list") for which in ("expert", "share_expert"))
    layers = []
    for at, layer in enumerate(spec.layers):
        mlp = layer.mlp
        if isinstance(mlp, MoESpec):
            if (limit := routed.get(at, 0.0)) not in (0, 7):
                raise ConfigError(f"expert_swiglu_limit_list holds {limit:g}, expected 0 or 7")
            mlp = replace(mlp, activation="silu_7" if limit else mlp.activation)
            if mlp.shared is not None and (limit := shared.get(at, 0.0)):
                mlp = replace(mlp, shared=replace(mlp.shared, limit=limit, limits_active=True))
        layers.append(replace(layer, mlp=mlp))
    return replace(spec, layers=tuple(layers))


def _limits(fields: Fields, field: str) -> Mapping[int, float]:
    """The limits of activations by layer; null is none."""
    listed = fields.get(field)
    if isinstance(listed, list):
        fields = Fields({field: [each or 0 for each in listed]})
    return dict(enumerate(fields.numbers(field)))


def youtu(fields: Fields, name: str) -> ModelSpec:
    """Youtu: dense, with DeepSeek-V3's latent attention."""
    fields = Fields({"tie_word_embeddings": True, **fields.values})
    spec = latent(fields, common(fields, name))
    return with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias")))


def minicpm3(fields: Fields, name: str) -> ModelSpec:
    """MiniCPM3: dense, with factors on embeddings, parts of layers and logits."""
    defaults = {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "tie_word_embeddings": True}
    fields = Fields({"q_lora_rank": 768, **defaults, **fields.values, "rope_interleave": False})
    if not fields.has("v_head_dim"):
        head = fields.integer("hidden_size") // fields.integer("num_attention_heads")
        fields = Fields({**fields.values, "v_head_dim": head})
    # head_dim is the size of its rotating part
    spec = common(Fields({**fields.values, "head_dim": fields.integer("qk_rope_head_dim")}), name, eps=1e-5)
    spec = latent(fields, spec)
    spec = with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias")))
    # null factors have no effect
    layers, hidden, given = math.sqrt(len(spec.layers)), spec.hidden_size, fields.values
    base = fields.integer("dim_model_base", hidden if "dim_model_base" in given else 256)
    return replace(
        spec,
        input=TokenInputSpec(scale=fields.number("scale_emb", 12.0)),
        residual_scale=fields.number("scale_depth", layers if "scale_depth" in given else 1.4) / layers,
        logits_divisor=hidden / base,
    )


def latent(fields: Fields, spec: ModelSpec, index: IndexSpec | None = None) -> ModelSpec:
    """The spec with latent attention in every layer, of DeepSeek's sizes by default, and optionally an index.

    A null ``q_lora_rank`` means that queries have no latent.
    """
    nope, rotating = fields.integer("qk_nope_head_dim", 128), fields.integer("qk_rope_head_dim", 64)
    rope = rope_from_hf(fields.values, rotating)
    mixer = LatentAttentionSpec(
        heads=fields.integer("num_attention_heads"),
        kv_lora_rank=fields.integer("kv_lora_rank", 512),
        nope_dim=nope,
        rope_dim=rotating,
        v_dim=fields.integer("v_head_dim", 128),
        scale=(nope + rotating) ** -0.5 * _stretch(rope),
        q_lora_rank=fields.integer("q_lora_rank", 0 if "q_lora_rank" in fields.values else 1536),
        rope=rope,
        interleaved=fields.flag("rope_interleave", True),
        bias=fields.flag("attention_bias"),
        index=index,
    )
    return with_layers(spec, mixer=mixer)


def _stretch(rope: RopeConfig) -> float:
    """Factor on scores with an extended context: yarn's factor for queries, and again for keys."""
    if rope.kind == "default" or not rope.mscale_all_dim or rope.factor <= 1:
        return 1.0
    return (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2
