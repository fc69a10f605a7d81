"""Reads the config.json of mixtures of experts."""

from collections.abc import Sequence

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.mlp import APART, STACKED, ExpertNames, MLPSpec, MoESpec, RouterSpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers, with_mtp
from ..spec.mtp_form import DEEPSEEK
from .common import attention_bias, common, expect, slide, sliding_layers, window_of
from .dense import granite

MIXTRAL = replace(
    APART,
    router="block_sparse_moe.gate",
    into=("block_sparse_moe.experts.{}.w1.weight", "block_sparse_moe.experts.{}.w3.weight"),
    out="block_sparse_moe.experts.{}.w2.weight",
    correction="block_sparse_moe.e_score_correction_bias",
)

_GRANITE = (
    ExpertNames(
        router="block_sparse_moe.router.layer",
        into=("block_sparse_moe.input_linear.weight",),
        out="block_sparse_moe.output_linear.weight",
    ),
    ExpertNames(
        router="block_sparse_moe.router",
        into=("block_sparse_moe.experts.gate_up_proj",),
        out="block_sparse_moe.experts.down_proj",
    ),
)
_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Defaults."""


def mixtral(fields: Fields, name: str) -> ModelSpec:
    spec = common(fields, name, eps=1e-5, theta=1_000_000.0)
    router = RouterSpec(_top_k(fields, 2))
    moe = experts_of(fields, spec, router, experts=8, inner="intermediate_size")
    spec = with_layers(spec, mlp=replace(moe, names=(MIXTRAL, STACKED)))
    return slide(spec, fields.integer("sliding_window", 0, least=0))


def qwen3_moe(fields: Fields, name: str) -> ModelSpec:
    spec = attention_bias(fields, with_mixers(common(fields, name), qk_norm="head"))
    router = RouterSpec(_top_k(fields, 8), renormalize=fields.flag("norm_topk_prob"))
    spec = with_experts(spec, experts_of(fields, spec, router, experts=128), sparse_steps(fields, spec))
    if not fields.flag("use_sliding_window"):
        return spec
    return slide(spec, fields.integer("sliding_window", 4096, least=0))


def qwen2_moe(fields: Fields, name: str) -> ModelSpec:
    spec = with_mixers(common(fields, name), qkv_bias=fields.flag("qkv_bias", True))
    router = RouterSpec(_top_k(fields, 4), renormalize=fields.flag("norm_topk_prob"))
    moe = replace(
        experts_of(fields, spec, router, experts=60),
        shared=shared_experts(spec, "mlp.shared_expert", fields.integer("shared_expert_intermediate_size", 5632)),
        shared_gate="mlp.shared_expert_gate",
    )
    spec = with_experts(spec, moe, sparse_steps(fields, spec))
    if not fields.flag("use_sliding_window"):
        return spec
    first = fields.integer("max_window_layers", 28, least=0)
    slides = sliding_layers(fields) or [layer % 2 == 0 and layer < first for layer in range(len(spec.layers))]
    return slide(spec, window_of(fields), slides)


def olmoe(fields: Fields, name: str) -> ModelSpec:
    if fields.has("clip_qkv"):
        raise ConfigError(f"clip_qkv is {fields.get('clip_qkv')!r}, expected null: nothing clips queries and keys")
    spec = attention_bias(fields, with_mixers(common(fields, name, eps=1e-5), qk_norm="full"))
    router = RouterSpec(_top_k(fields, 8), renormalize=fields.flag("norm_topk_prob"))
    return with_layers(spec, mlp=experts_of(fields, spec, router, experts=64, inner="intermediate_size"))


def gpt_oss(fields: Fields, name: str) -> ModelSpec:
    """gpt-oss (arXiv:2508.10925): attention with sinks, experts with biases and a special activation."""
    expect(fields, {"swiglu_limit": 7.0, "swiglu_alpha": 1.702})
    fields = Fields({"head_dim": 64, "rope_theta": 150_000.0, **fields.values})
    if not (fields.has("rope_parameters") or fields.has("rope_scaling")):
        fields = Fields({**fields.values, "rope_parameters": _GPT_OSS_ROPE})
    bias = fields.flag("attention_bias", True)
    spec = with_mixers(common(fields, name, eps=1e-5), qkv_bias=bias, output_bias=bias, sinks=True)
    moe = replace(
        experts_of(fields, spec, RouterSpec(_top_k(fields, 4)), experts=128, inner="intermediate_size"),
        activation="swiglu_oai",
        bias=True,
        router_bias=True,
        names=(replace(STACKED, router="mlp.router", transposed=True, interleaved=True),),
    )
    window = window_of(fields, 128)
    slides = sliding_layers(fields) or [layer % 2 == 0 for layer in range(len(spec.layers))]
    return slide(with_layers(spec, mlp=moe), window, slides)


def glm4_moe(fields: Fields, name: str) -> ModelSpec:
    fields = Fields({"partial_rotary_factor": 0.5, **fields.values})
    spec = common(fields, name, eps=1e-5)
    spec = with_mixers(
        spec,
        qkv_bias=fields.flag("attention_bias"),
        qk_norm="head" if fields.flag("use_qk_norm") else "none",
    )
    spec = with_mtp(spec, DEEPSEEK, fields.integer("num_nextn_predict_layers", 1, least=0))
    moe = deepseek_experts(fields, spec, renormalize=True, top_k=8, shared=1)
    return with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 1, least=0)))


def dots1(fields: Fields, name: str) -> ModelSpec:
    spec = attention_bias(fields, with_mixers(common(fields, name), qk_norm="head"))
    moe = deepseek_experts(fields, spec, renormalize=False)
    first = fields.integer("max_window_layers", 62, least=0)
    slides = sliding_layers(fields) or [layer >= first for layer in range(len(spec.layers))]
    spec = with_experts(spec, moe, sparse_from(spec, fields.integer("first_k_dense_replace", 0, least=0)))
    return slide(spec, window_of(fields), slides)


def minimax_m2(fields: Fields, name: str) -> ModelSpec:
    head_dim = fields.integer("head_dim", 128)
    if fields.has("rotary_dim"):
        fields = Fields({"partial_rotary_factor": fields.integer("rotary_dim") / head_dim, **fields.values})
    spec = with_mixers(common(fields, name, head_dim=128, theta=5_000_000.0), qk_norm="full")
    router = RouterSpec(_top_k(fields, 8), score="sigmoid")
    stacked = replace(STACKED, correction="mlp.e_score_correction_bias")
    moe = experts_of(fields, spec, router, experts=256, inner="intermediate_size")
    return with_layers(spec, mlp=replace(moe, correction=True, names=(MIXTRAL, stacked)))


def granite_moe(fields: Fields, name: str) -> ModelSpec:
    """A Granite with experts, optionally with a shared one."""
    spec = granite(fields, name)
    moe = experts_of(fields, spec, RouterSpec(_top_k(fields, 2)), experts=8, inner="intermediate_size")
    inner = fields.integer("shared_intermediate_size", 0, least=0)
    shared = replace(dense_mlp(spec), inner=inner, into=("shared_mlp.input_linear",), out="shared_mlp.output_linear")
    return with_layers(spec, mlp=replace(moe, names=_GRANITE, shared=shared if inner else None))


def experts_of(
    fields: Fields, spec: ModelSpec, router: RouterSpec, *, experts: int, inner: str = "moe_intermediate_size"
) -> MoESpec:
    """Experts with the dense network's activation. ``experts``: default number. ``inner``: field of an expert's
    size."""
    number = next(
        (fields.integer(each) for each in ("num_local_experts", "num_experts", "n_routed_experts") if fields.has(each)),
        experts,
    )
    activation = dense_mlp(spec).activation
    if activation == "relu" or activation == "relu2" or activation == "xielu":
        raise ConfigError(f"hidden_act is {activation!r}, and experts are gated by 'silu' or 'gelu' alone")
    return MoESpec(number, fields.integer(inner), router, activation)


def with_experts(spec: ModelSpec, moe: MoESpec, sparse: Sequence[bool]) -> ModelSpec:
    """The spec with experts in the ``sparse`` layers."""
    layers = (replace(layer, mlp=moe) if chosen else layer for layer, chosen in zip(spec.layers, sparse, strict=True))
    return replace(spec, layers=tuple(layers))


def _top_k(fields: Fields, default: int) -> int:
    return fields.integer("num_experts_per_tok", default)


def sparse_steps(fields: Fields, spec: ModelSpec) -> list[bool]:
    """Qwen's sparse layers: by a period, without listed ones."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = set(fields.numbers("mlp_only_layers"))
    return [(layer + 1) % step == 0 and layer not in dense for layer in range(len(spec.layers))]


def sparse_from(spec: ModelSpec, first: int) -> list[bool]:
    return [layer >= first for layer in range(len(spec.layers))]


def sparse_kinds(fields: Fields, spec: ModelSpec, first: int) -> list[bool]:
    """Which layers have experts: as listed, or all from ``first`` on."""
    kinds = fields.texts("mlp_layer_types")
    if kinds is None:
        return sparse_from(spec, first)
    if len(kinds) != len(spec.layers) or not {*kinds} <= {"dense", "sparse"}:
        raise ConfigError(f"mlp_layer_types is not 'dense' or 'sparse' for each of {len(spec.layers)} layers")
    return [kind == "sparse" for kind in kinds]


def deepseek_experts(
    fields: Fields, spec: ModelSpec, *, renormalize: bool, top_k: int | None = None, shared: int = 0
) -> MoESpec:
    """Experts routed as in DeepSeek-V3 (arXiv:2412.19437): sigmoid scores with a correction, from the best groups.

    ``top_k`` and ``shared`` are defaults.
    """
    router = RouterSpec(
        fields.integer("num_experts_per_tok", top_k),
        score="sigmoid",
        renormalize=fields.flag("norm_topk_prob", renormalize),
        scale=fields.number("routed_scaling_factor", 1.0),
        groups=fields.integer("n_group", 1),
        top_groups=fields.integer("topk_group", 1),
    )
    moe = replace(experts_of(fields, spec, router, experts=128), correction=True)
    number = fields.integer("n_shared_experts", shared, least=0)
    return replace(moe, shared=shared_experts(spec, "mlp.shared_experts", moe.inner * number)) if number else moe


def shared_experts(spec: ModelSpec, name: str, inner: int) -> MLPSpec:
    """Shared experts with the dense network's activation, stored under this name."""
    return replace(dense_mlp(spec), inner=inner, into=(f"{name}.gate_proj", f"{name}.up_proj"), out=f"{name}.down_proj")
