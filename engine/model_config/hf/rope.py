"""Reads rotary settings of a config.json, in both generations of names.

Older files have ``rope_theta`` and ``rope_scaling`` (with ``type`` or ``rope_type``); newer ones have everything in
``rope_parameters``, one table or one per layer type.
"""

from collections.abc import Mapping
from typing import get_args

from ..config_fields import ConfigError, Fields
from ..spec.positions import RopeConfig, RopeKind

_OLD_NAMES: Mapping[str, RopeKind] = {"su": "longrope", "mrope": "default", "deepseek_yarn": "yarn"}

_MEASURED_FROM_ORIGINAL = ("llama3", "yarn", "longrope")


def rope_from_hf(
    config: Mapping[str, object], head_dim: int, *, theta: float = 10000.0, layer_type: str | None = None
) -> RopeConfig:
    """The rotary settings, for ``layer_type`` if the file has one table per layer type.

    ``theta``: the architecture's default. Raises :class:`ConfigError`.
    """
    fields = Fields(config)
    table = dict(fields.table("rope_scaling") or {}) or dict(fields.table("rope_parameters") or {})
    if layer_type is not None and isinstance(table.get(layer_type), Mapping):
        table = dict(Fields(table).table(layer_type) or {})
    for name in ("rope_theta", "partial_rotary_factor"):
        if table.get(name) is None and fields.has(name):
            table[name] = config[name]
    return _rope(Fields(table), fields, head_dim, theta)


def _rope(rope: Fields, config: Fields, head_dim: int, theta: float) -> RopeConfig:
    named = rope.text("rope_type", rope.text("type", "default"))
    named = _OLD_NAMES.get(named, named)
    if config.text("model_type", "") == "phi3" and named == "yarn":
        named = "longrope"  # its name in early Phi-3 files
    kind: RopeKind | None = next((kind for kind in get_args(RopeKind) if kind == named), None)
    if kind is None:
        raise ConfigError(f"rope_type is {named!r}, expected one of {', '.join(get_args(RopeKind))}")

    longest = config.integer("max_position_embeddings")
    original = 0
    if kind in _MEASURED_FROM_ORIGINAL:
        # Phi-3 has the value beside the table, with priority.
        original = config.integer(
            "original_max_position_embeddings", rope.integer("original_max_position_embeddings", longest)
        )
    elif kind == "dynamic":
        original = longest

    rotary = int(head_dim * rope.number("partial_rotary_factor", 1.0))
    if rotary < 2:
        raise ConfigError(f"{rotary} dimensions of each head rotate, expected at least 2")
    rotating = 0
    if kind == "proportional":
        rotating, rotary = 2 * (rotary // 2), head_dim
    factor = 1.0
    if kind in ("yarn", "longrope") and not rope.has("factor"):
        factor = longest / original
    elif kind == "proportional":
        factor = rope.positive("factor", 1.0)
    elif kind != "default":
        factor = rope.number("factor")
    return RopeConfig(
        theta=rope.number("rope_theta", theta),
        kind=kind,
        rotary_dim=0 if rotary == head_dim else rotary,
        rotating=rotating,
        factor=factor,
        original_max_position=original,
        low_freq_factor=rope.number("low_freq_factor", 1.0),
        high_freq_factor=rope.number("high_freq_factor", 4.0),
        attention_factor=rope.optional_number("attention_factor"),
        beta_fast=rope.number("beta_fast", 32.0) or 32.0,
        beta_slow=rope.number("beta_slow", 1.0) or 1.0,
        mscale=rope.optional_number("mscale"),
        mscale_all_dim=rope.optional_number("mscale_all_dim"),
        truncate=rope.flag("truncate", True),
        short_factor=rope.numbers("short_factor"),
        long_factor=rope.numbers("long_factor"),
    )


def media_axes(
    config: Mapping[str, object], default: tuple[int, ...], pairs: int, *, interleaved: bool, count: int = 3
) -> tuple[int, ...]:
    """The axis of each rotating pair, of ``count`` (frame, row, column), by ``mrope_section``, their numbers of pairs.

    They are consecutive, or with ``interleaved`` alternate as long as there are any. Raises :class:`ConfigError`.
    """
    fields = Fields(config)
    table = Fields(fields.table("rope_scaling") or fields.table("rope_parameters") or {})
    sections = tuple(int(each) for each in table.numbers("mrope_section")) or default
    if len(sections) != count or min(sections) < 0:
        raise ConfigError(f"mrope_section is {list(sections)}, expected {count} counts of rotating pairs")
    if interleaved:
        return tuple(axis if pair < 3 * sections[axis] else 0 for pair in range(pairs) for axis in (pair % 3,))
    if sum(sections) != pairs:
        raise ConfigError(f"mrope_section is {list(sections)}, expected {pairs} rotating pairs in all")
    return tuple(axis for axis, count in enumerate(sections) for _ in range(count))


def spread_axes(config: Mapping[str, object], pairs: int) -> tuple[int, ...]:
    """The same where ``mrope_interleaved`` spreads the pairs of each axis over a head (openPangu): each pair has the
    axis of which the smallest share came before, but not that of the pair before, and the last turns by frame.

    Without it they are consecutive. Raises :class:`ConfigError`.
    """
    fields = Fields(config)
    table = Fields(fields.table("rope_scaling") or fields.table("rope_parameters") or {})
    consecutive = media_axes(config, (), pairs, interleaved=False)
    if not table.flag("mrope_interleaved"):
        return consecutive
    counts = [consecutive.count(axis) - (axis == 0) for axis in range(3)]
    if min(counts) < 0:
        raise ConfigError("mrope_section has no pair that turns by frame, expected one, which is the last of a head")
    made: list[int] = []
    while len(made) < sum(counts):
        left = [axis for axis, count in enumerate(counts) if made.count(axis) < count]
        others = [axis for axis in left if axis != made[-1]] if made else left
        made.append(min(others or left, key=lambda axis: (made.count(axis) / counts[axis], axis)))
    return (*made, 0)


def stretched_context(rope: RopeConfig, longest: int) -> int:
    """The context of a model with an extension that was added later: such files have the original limit."""
    match rope.kind:
        case "yarn":
            return max(longest, int(rope.original_max_position * rope.factor))
        case "linear" | "dynamic":
            return int(longest * rope.factor)
        case _:
            return longest
