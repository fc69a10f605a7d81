"""What a checkpoint's tensors say of its quantisation where its description is silent or wrong. Torch-free."""

from collections.abc import Mapping
from dataclasses import replace

from .formats import Format, FP8Format, QuantizationRule, QuantizedCheckpoint

_TRANSFORMERS_SCALE, _TRANSFORMERS_INPUT = "weight_scale_inv", "activation_scale"
_USUAL_SCALE = "weight_scale"
_PLAIN_HEAD = ("weight", "bias")


def correct_by_tensors(quantized: QuantizedCheckpoint, plain: Mapping[str, bool]) -> QuantizedCheckpoint:
    """The description with what the names and types of tensors add to it.

    A projection whose weight is stored as floats is not quantised: exporters skip projections that their lists do
    not name. A head that has scales is quantised, although most formats leave it out unsaid. And two programs
    write FP8 with a scale a tensor, by one description but under different names.

    Args:
        quantized: what the description says.
        plain: the stored names, and whether each tensor is stored as floats.
    """
    floats = frozenset(name.removesuffix(".weight") for name in plain if plain[name] and name.endswith(".weight"))
    endings = {name.rpartition(".")[2] for name in plain}
    rules, ignore = quantized.rules, quantized.ignore
    if any(name.startswith("lm_head.") and name.removeprefix("lm_head.") not in _PLAIN_HEAD for name in plain):
        ignore = tuple(pattern for pattern in ignore if pattern != "lm_head")
    if _TRANSFORMERS_SCALE in endings and _USUAL_SCALE not in endings:
        rules = tuple(QuantizationRule(rule.targets, _as_transformers_names(rule.format)) for rule in rules)
    return replace(quantized, rules=rules, ignore=ignore, plain=floats)


def _as_transformers_names(format: Format) -> Format:
    if not isinstance(format, FP8Format):
        return format
    return replace(format, scale_ending=_TRANSFORMERS_SCALE, input_ending=_TRANSFORMERS_INPUT)
