"""Readers of the config.json of each family of mixtures of experts."""

from collections.abc import Sequence
from dataclasses import replace

from .config_fields import Fields
from .hf_common import attention_bias, common, slide
from .mlp_spec import APART, STACKED, MoESpec, RouterSpec
from .model_spec import ModelSpec, dense_mlp, with_layers, with_mixers

_MIXTRAL = replace(
    APART,
    router="block_sparse_moe.gate",
    into=("block_sparse_moe.experts.{}.w1.weight", "block_sparse_moe.experts.{}.w3.weight"),
    out="block_sparse_moe.experts.{}.w2.weight",
    correction="block_sparse_moe.e_score_correction_bias",
)


def mixtral(fields: Fields, name: str) -> ModelSpec:
    spec = common(fields, name, eps=1e-5, theta=1_000_000.0)
    router = RouterSpec(_top_k(fields, 2))
    moe = experts_of(fields, spec, router, experts=8, inner="intermediate_size")
    spec = with_layers(spec, mlp=replace(moe, names=(_MIXTRAL, STACKED)))
    return slide(spec, fields.integer("sliding_window", 0, least=0))


def qwen3_moe(fields: Fields, name: str) -> ModelSpec:
    spec = attention_bias(fields, with_mixers(common(fields, name), qk_norm="head"))
    router = RouterSpec(_top_k(fields, 8), renormalize=fields.flag("norm_topk_prob"))
    spec = with_experts(spec, experts_of(fields, spec, router, experts=128), _sparse_steps(fields, spec))
    if not fields.flag("use_sliding_window"):
        return spec
    return slide(spec, fields.integer("sliding_window", 4096, least=0))


def experts_of(
    fields: Fields, spec: ModelSpec, router: RouterSpec, *, experts: int, inner: str = "moe_intermediate_size"
) -> MoESpec:
    """Experts with the activation of the dense network that ``common`` has read; ``experts`` is the default, ``inner``
    the field of the size of one."""
    number = next(
        (fields.integer(each) for each in ("num_local_experts", "num_experts", "n_routed_experts") if fields.has(each)),
        experts,
    )
    activation = dense_mlp(spec).activation
    assert activation != "relu", "common reads none"
    return MoESpec(number, fields.integer(inner), router, activation)


def with_experts(spec: ModelSpec, moe: MoESpec, sparse: Sequence[bool]) -> ModelSpec:
    """The layers that are ``sparse`` have experts, the others keep their dense network."""
    layers = (replace(layer, mlp=moe) if chosen else layer for layer, chosen in zip(spec.layers, sparse, strict=True))
    return replace(spec, layers=tuple(layers))


def _top_k(fields: Fields, default: int) -> int:
    return fields.integer("num_experts_per_tok", default)


def _sparse_steps(fields: Fields, spec: ModelSpec) -> list[bool]:
    """Qwen's: every so many layers are sparse, but those that are listed."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = set(fields.numbers("mlp_only_layers"))
    return [(layer + 1) % step == 0 and layer not in dense for layer in range(len(spec.layers))]
