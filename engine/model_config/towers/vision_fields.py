"""Common parts of vision tower readers: fields of a config.json, and parts of a spec. Torch-free."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.positions import RopeConfig
from .vision_spec import ProductActivation, ProjectorProduct, VisionSpec

_ACTIVATIONS: Final[Mapping[str, ProductActivation]] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
MOST_SIDE: Final = 1 << 14
"""Limit on pixels or patches of a side, and pictures in a grid."""


class VisionFields(msgspec.Struct, frozen=True):
    """The whole config.json and its tower's part."""

    whole: Fields
    vision: Fields
    hidden: int
    """Hidden size of the decoder."""


def activation_of(fields: Fields, name: str, default: str) -> ProductActivation:
    return fields.one_of(name, _ACTIVATIONS, default)


def side_of(fields: Fields, name: str, default: int) -> int:
    """A size in pixels, or two equal ones."""
    sizes = fields.get(name)
    if isinstance(sizes, list | tuple) and len(sizes) == 2 and sizes[0] == sizes[1]:
        return Fields({name: sizes[0]}).integer(name, most=MOST_SIDE)
    return fields.integer(name, default, most=MOST_SIDE)


def attention_of(heads: int, hidden: int, *, bias: bool, rotates: bool = False) -> AttentionSpec:
    """``rotates``: rotation by a patch's row and column."""
    if hidden % heads:
        raise ConfigError(f"{heads} heads do not divide {hidden} dimensions")
    head_dim = hidden // heads
    rope = RopeConfig() if rotates else None
    return AttentionSpec(heads, heads, head_dim, head_dim**-0.5, rope, qkv_bias=bias, output_bias=bias)


def theta_of(vision: Fields) -> float:
    """The rotary base, in either generation of names."""
    return Fields(vision.table("rope_parameters") or {}).positive("rope_theta", vision.positive("rope_theta", 10_000.0))


def layer_numbers(fields: Fields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Layer numbers."""
    return tuple(int(number) for number in fields.numbers(name)) if fields.has(name) else default


def two_products(model: VisionFields, *, biased: bool) -> tuple[ProjectorProduct, ProjectorProduct]:
    """``biased``: a default."""
    bias = model.whole.flag("multimodal_projector_bias", biased)
    activation = activation_of(model.whole, "projector_hidden_act", "gelu")
    return (
        ProjectorProduct("projector.linear_1", model.hidden, bias, activation),
        ProjectorProduct("projector.linear_2", model.hidden, bias),
    )


def up_to(spec: VisionSpec, output: int) -> VisionSpec:
    """The spec up to one output: number 0 is the first layer's input, -1 the last one's output."""
    count = output if output >= 0 else len(spec.layers) + 1 + output
    if not 0 < count <= len(spec.layers):
        raise ConfigError(f"vision_feature_layer is {output}, expected one of {len(spec.layers)} layers")
    return replace(spec, layers=spec.layers[:count], final_norm="", unused=(*spec.unused, "post_layernorm."))
