"""Completes and corrects a checkpoint's description of its quantisation by its tensors. Torch-free."""

from collections.abc import Mapping

from msgspec.structs import replace

from .formats import (
    Format,
    FP8Format,
    GroupedIntFormat,
    Int8Format,
    QuantizationRule,
    QuantizedCheckpoint,
    ScaleType,
)

_TRANSFORMERS_SCALE, _TRANSFORMERS_INPUT = "weight_scale_inv", "activation_scale"
_TRANSFORMERS_ENDING = "_scale_inv"
"""Also of scales of all experts."""
_USUAL_SCALE = "weight_scale"
_DEEPSEEK_SCALE = "scale"
_PLAIN_HEAD = ("weight", "bias")
_FLOATS = frozenset({"float64", "float32", "bfloat16", "float16"})
_NARROW: tuple[ScaleType, ...] = ("float16", "bfloat16")


def correct_by_tensors(quantized: QuantizedCheckpoint, types: Mapping[str, str]) -> QuantizedCheckpoint:
    """The description, corrected by the names and types of tensors.

    - A projection stored as floats is not quantised: exporters skip projections that their lists do not name. Ternary
      weights may be floats that are rounded at load.
    - A head with scales is quantised, although most formats exclude it implicitly.
    - FP8 with a scale a tensor is written by two programs, with one description but different names. DeepSeek-V4 has
      other names for scales of blocks, and MXFP8 of Inkling 2 those of other programs.
    - Scales of groups are kept in the 16 bits in which they are stored.

    Args:
        quantized: the description.
        types: type by tensor name; torch's name for floats.
    """
    floats = frozenset(
        name.removesuffix(".weight") for name, type in types.items() if type in _FLOATS and name.endswith(".weight")
    )
    endings = {name.rpartition(".")[2] for name in types}
    rules, ignore = quantized.rules, quantized.ignore
    if any(name.startswith("lm_head.") and name.removeprefix("lm_head.") not in _PLAIN_HEAD for name in types):
        ignore = tuple(pattern for pattern in ignore if pattern != "lm_head")
    if any(each.endswith(_TRANSFORMERS_ENDING) for each in endings):
        if _USUAL_SCALE not in endings:
            rules = tuple(QuantizationRule(rule.targets, _as_transformers_names(rule.format)) for rule in rules)
    elif any(each.endswith(_USUAL_SCALE) for each in endings):
        rules = tuple(QuantizationRule(rule.targets, _as_usual_names(rule.format)) for rule in rules)
    if _DEEPSEEK_SCALE in endings and not {_USUAL_SCALE, _TRANSFORMERS_SCALE} & endings:
        rules = tuple(QuantizationRule(rule.targets, _as_deepseek_names(rule.format)) for rule in rules)
    rules = tuple(QuantizationRule(rule.targets, _with_scales(rule.format, types)) for rule in rules)
    rounded = any(isinstance(rule.format, Int8Format) and rule.format.ternary == "rounded" for rule in rules)
    return replace(quantized, rules=rules, ignore=ignore, plain=frozenset() if rounded else floats)


def _as_transformers_names(format: Format) -> Format:
    if not isinstance(format, FP8Format):
        return format
    return replace(format, scale_ending=_TRANSFORMERS_SCALE, input_ending=_TRANSFORMERS_INPUT)


def _as_usual_names(format: Format) -> Format:
    return replace(format, scale_ending=_USUAL_SCALE) if isinstance(format, FP8Format) else format


def _as_deepseek_names(format: Format) -> Format:
    return replace(format, scale_ending=_DEEPSEEK_SCALE) if isinstance(format, FP8Format) else format


def _with_scales(format: Format, types: Mapping[str, str]) -> Format:
    """The format with the type of all group scales, if that is one of 16 bits."""
    if not isinstance(format, GroupedIntFormat):
        return format
    ending = "weight_scale" if format.packing == "compressed-tensors" else "scales"
    found = {type for name, type in types.items() if name.rpartition(".")[2] == ending}
    return replace(format, scales=next((narrow for narrow in _NARROW if found == {narrow}), "float32"))
