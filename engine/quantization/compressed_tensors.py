"""Parses compressed-tensors' ``quantization_config`` (written by llm-compressor). Torch-free."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from ..model_config.config_fields import ConfigError, Fields
from .formats import (
    FP8_BLOCK,
    Format,
    FP4Format,
    FP8Format,
    GroupedInt8Format,
    Int4Format,
    Int8Format,
    QuantizationRule,
    QuantizedCheckpoint,
)

_FP4: Mapping[str, FP4Format] = {
    "mxfp4-pack-quantized": FP4Format("mxfp4", "compressed-tensors"),
    "nvfp4-pack-quantized": FP4Format("nvfp4", "compressed-tensors"),
}
_FORMATS = (
    "dense",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "mixed-precision",
    *_FP4,
)

T = TypeVar("T")

Patterns = Callable[[object, str], tuple[str, ...]]

_FP8_WEIGHTS: Mapping[str, Literal["tensor", "channel", "block"]] = {
    "tensor": "tensor",
    "channel": "channel",
    "block": "block",
}
_FP8_INPUTS: Mapping[str, Literal["token", "tensor", "group"]] = {
    "token": "token",
    "tensor": "tensor",
    "group": "group",
}
_INT8_WEIGHTS: Mapping[str, Literal["tensor", "channel"]] = {"tensor": "tensor", "channel": "channel"}
_INT8_INPUTS: Mapping[str, Literal["token", "tensor"]] = {"token": "token", "tensor": "tensor"}


def compressed_tensors(fields: Fields, patterns: Patterns) -> QuantizedCheckpoint:
    """Parse the config. Raises :class:`ConfigError` for groups that no kernel supports."""
    stored = fields.text("format", "dense")
    if stored not in _FORMATS:
        raise ConfigError(f"compressed-tensors' format {stored!r} is not read, expected one of {', '.join(_FORMATS)}")
    sparsity = fields.table("sparsity_config") or {}
    if sparsity.get("format", "dense") != "dense":
        raise ConfigError(f"its weights are stored sparse ({sparsity.get('format')!r}), expected dense")
    transforms = fields.table("transform_config") or {}
    if transforms.get("config_groups"):
        raise ConfigError("its inputs are rotated before they are multiplied (transform_config), which is not done")
    groups = fields.table("config_groups") or {}
    rules = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise ConfigError(f"config_groups.{name} is not a table")
        table = Fields(group)
        targets = patterns(group.get("targets") or ["Linear"], f"config_groups.{name}.targets")
        own = table.text("format", stored)
        rules.append(QuantizationRule(targets, _format(name, table, own)))
    # rules for named modules come before those for a class
    rules.sort(key=lambda rule: "Linear" in rule.targets)
    cache = fields.table("kv_cache_scheme")
    if cache is not None and (cache.get("num_bits"), cache.get("type")) != (8, "float"):
        raise ConfigError("kv_cache_scheme is expected to be 8 bits of type float")
    return QuantizedCheckpoint(
        "compressed-tensors",
        tuple(rules),
        patterns(fields.values.get("ignore"), "ignore"),
        kv_cache_fp8=cache is not None,
    )


def _format(name: str, group: Fields, stored: str) -> Format:
    weights = Fields(group.table("weights") or {}, "")
    inputs = group.table("input_activations")
    bits, kind = weights.integer("num_bits"), weights.text("type", "int")
    strategy = weights.text("strategy", "tensor")
    symmetric = weights.flag("symmetric", True)
    where = f"config_groups.{name}"
    if kind == "float" and bits == 4 and symmetric and (fp4 := _FP4.get(stored)) is not None:
        if weights.integer("group_size", fp4.group) != fp4.group:
            raise ConfigError(f"{where}: {fp4.name} in groups of {weights.integer('group_size')}, expected {fp4.group}")
        return fp4  # inputs are not quantised, which is more precise if they should be
    if kind == "float" and bits == 8 and stored != "pack-quantized":
        block = (FP8_BLOCK, FP8_BLOCK)
        if strategy == "block":
            sides = weights.values.get("block_structure") or [FP8_BLOCK, FP8_BLOCK]
            if not (isinstance(sides, list | tuple) and len(sides) == 2 and all(isinstance(s, int) for s in sides)):
                raise ConfigError(f"{where}: block_structure is {sides!r}, expected two sizes")
            block = (int(sides[0]), int(sides[1]))
        granularity = _one_of(where, "fp8 weights", strategy, _FP8_WEIGHTS)
        return FP8Format(granularity, _activations(where, inputs, "float", _FP8_INPUTS) or "none", block=block)
    if kind == "int" and bits == 8 and stored != "pack-quantized":
        if not symmetric:
            raise ConfigError(f"{where}: int8 weights with a zero point are not read, expected symmetric ones")
        by = _one_of(where, "int8 weights", strategy, _INT8_WEIGHTS)
        return Int8Format(by, _activations(where, inputs, "int", _INT8_INPUTS) or "none")
    if kind == "int" and bits in (4, 8) and inputs is None:
        if strategy not in ("group", "channel"):
            raise ConfigError(f"{where}: int{bits} weights by {strategy!r}, expected group or channel")
        group_size = weights.integer("group_size", 128) if strategy == "group" else 0
        order = weights.values.get("actorder")
        # with "weight" the groups keep their places: only the quantiser visited them in another order
        act_order = order in ("group", "dynamic", True)
        packed = Int4Format if bits == 4 else GroupedInt8Format
        return packed("compressed-tensors", group_size, symmetric, act_order)
    beside = "" if inputs is None else " with quantised inputs"
    raise ConfigError(
        f"{where}: {bits}-bit {kind} weights{beside} stored as {stored} are not read; expected fp8, int8, or int4 "
        "with plain inputs, mxfp4 or nvfp4"
    )


def _one_of(where: str, what: str, strategy: str, known: Mapping[str, T]) -> T:
    if strategy not in known:
        raise ConfigError(f"{where}: {what} by {strategy!r} are not read, expected {' or '.join(known)}")
    return known[strategy]


def _activations(where: str, inputs: Mapping[str, object] | None, kind: str, known: Mapping[str, T]) -> T | None:
    """How inputs are quantised, ``tensor`` for a stored scale; None if they are not."""
    if inputs is None:
        return None
    table = Fields(inputs, "")
    if (table.integer("num_bits"), table.text("type", "int")) != (8, kind):
        raise ConfigError(f"{where}: inputs are expected to be 8 bits of type {kind}")
    if not table.flag("symmetric", True):
        raise ConfigError(f"{where}: inputs with a zero point are not read, expected symmetric ones")
    dynamic = inputs.get("dynamic", False)
    strategy = table.text("strategy", "token" if dynamic else "tensor")
    if not dynamic and strategy != "tensor":
        raise ConfigError(f"{where}: stored input scales by {strategy!r} are not read, expected tensor")
    if dynamic and strategy == "tensor":
        strategy = "token"  # more precise than requested, and computed in one pass
    if strategy == "group" and table.integer("group_size", FP8_BLOCK) != FP8_BLOCK:
        raise ConfigError(f"{where}: inputs in groups of {table.integer('group_size')}, expected {FP8_BLOCK}")
    return _one_of(where, "quantised inputs", strategy, known)
