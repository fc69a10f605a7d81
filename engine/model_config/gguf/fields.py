"""Reads that all GGUF architectures share."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.positions import RopeConfig

Shapes = Mapping[str, tuple[int, ...]]
"""By tensor name, in GGUF's order."""
ReadFloats = Callable[[str], tuple[float, ...]]
"""Reads a small float32 tensor by its name in the file."""


def once(fields: Fields, name: str, default: int | None = None) -> int:
    """A count that is stored once, or equal for every layer."""
    value = fields.get(name)
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        return Fields({name: value[0]}).integer(name)
    return fields.integer(name, default)


def head_dim_of(fields: Fields, shapes: Shapes, hidden: int, heads: int) -> int:
    """Dimensions of a head."""
    query = shapes.get("blk.0.attn_q.weight")
    if fields.has("attention.key_length"):
        return fields.integer("attention.key_length")
    if query is not None and len(query) == 2 and query[1] % heads == 0:
        return query[1] // heads
    if hidden % heads:
        raise ConfigError(f"{hidden} hidden columns do not divide among {heads} heads")
    return hidden // heads


def rope_of(
    fields: Fields,
    head_dim: int,
    shapes: Shapes,
    read_floats: ReadFloats,
) -> RopeConfig:
    """The rotary settings of heads of ``head_dim``, by halves."""
    rotary = fields.integer("rope.dimension_count", head_dim)
    context = fields.integer("context_length")
    original = fields.integer("rope.scaling.original_context_length", context)
    rope = RopeConfig(
        theta=fields.number("rope.freq_base", 10000.0),
        rotary_dim=0 if rotary == head_dim else rotary,
    )
    if "rope_factors_long.weight" in shapes and "rope_factors_short.weight" in shapes:
        return replace(
            rope,
            kind="longrope",
            factor=max(1.0, context / original),
            original_max_position=original,
            short_factor=read_floats("rope_factors_short.weight"),
            long_factor=read_floats("rope_factors_long.weight"),
            attention_factor=fields.optional_number("rope.scaling.attn_factor"),
        )
    if "rope_freqs.weight" in shapes:
        rope = replace(rope, frequency_divisors=read_floats("rope_freqs.weight"))
    linear = fields.number("rope.scale_linear", 1.0)  # written by old converters
    kind = fields.text("rope.scaling.type", "linear" if linear != 1.0 else "none")
    match kind:
        case "none":
            return rope
        case "linear":
            return replace(rope, kind="linear", factor=fields.number("rope.scaling.factor", linear))
        case "yarn":
            return replace(
                rope,
                kind="yarn",
                factor=fields.number("rope.scaling.factor", max(1.0, context / original)),
                original_max_position=original,
                beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=fields.optional_number("rope.scaling.attn_factor"),
            )
        case _:
            raise ConfigError(f"rope.scaling.type is {kind!r}, expected none, linear or yarn")
