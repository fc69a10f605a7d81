"""What a checkpoint's tensors say of its quantisation where its description is silent or wrong. Torch-free."""

from collections.abc import Mapping
from dataclasses import replace

from .formats import (
    Format,
    FP8Format,
    GroupedInt8Format,
    Int4Format,
    QuantizationRule,
    QuantizedCheckpoint,
    ScaleType,
)

_TRANSFORMERS_SCALE, _TRANSFORMERS_INPUT = "weight_scale_inv", "activation_scale"
_USUAL_SCALE = "weight_scale"
_PLAIN_HEAD = ("weight", "bias")
_FLOATS = frozenset({"float64", "float32", "bfloat16", "float16"})
_NARROW: tuple[ScaleType, ...] = ("float16", "bfloat16")


def correct_by_tensors(quantized: QuantizedCheckpoint, types: Mapping[str, str]) -> QuantizedCheckpoint:
    """The description with what the names and types of tensors add to it.

    A projection whose weight is stored as floats is not quantised: exporters skip projections that their lists do
    not name. A head that has scales is quantised, although most formats leave it out unsaid. Two programs
    write FP8 with a scale a tensor, by one description but under different names. And scales of groups are kept in
    the 16 bits that they are stored in.

    Args:
        quantized: what the description says.
        types: the type that each stored tensor has by its name, of floats torch's name for it.
    """
    floats = frozenset(
        name.removesuffix(".weight") for name, type in types.items() if type in _FLOATS and name.endswith(".weight")
    )
    endings = {name.rpartition(".")[2] for name in types}
    rules, ignore = quantized.rules, quantized.ignore
    if any(name.startswith("lm_head.") and name.removeprefix("lm_head.") not in _PLAIN_HEAD for name in types):
        ignore = tuple(pattern for pattern in ignore if pattern != "lm_head")
    if _TRANSFORMERS_SCALE in endings and _USUAL_SCALE not in endings:
        rules = tuple(QuantizationRule(rule.targets, _as_transformers_names(rule.format)) for rule in rules)
    rules = tuple(QuantizationRule(rule.targets, _with_scales(rule.format, types)) for rule in rules)
    return replace(quantized, rules=rules, ignore=ignore, plain=floats)


def _as_transformers_names(format: Format) -> Format:
    if not isinstance(format, FP8Format):
        return format
    return replace(format, scale_ending=_TRANSFORMERS_SCALE, input_ending=_TRANSFORMERS_INPUT)


def _with_scales(format: Format, types: Mapping[str, str]) -> Format:
    """The type that all scales of groups have, where it is one of 16 bits."""
    if not isinstance(format, Int4Format | GroupedInt8Format):
        return format
    ending = "weight_scale" if format.packing == "compressed-tensors" else "scales"
    found = {type for name, type in types.items() if name.rpartition(".")[2] == ending}
    return replace(format, scales=next((narrow for narrow in _NARROW if found == {narrow}), "float32"))
