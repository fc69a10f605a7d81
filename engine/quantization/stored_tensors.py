"""What a checkpoint's tensors say of its quantisation where its description is silent or wrong. Torch-free."""

from collections.abc import Mapping
from dataclasses import replace

from .formats import Format, FP8Format, QuantizationRule, QuantizedCheckpoint

_TRANSFORMERS_SCALE, _TRANSFORMERS_INPUT = "weight_scale_inv", "activation_scale"
_USUAL_SCALE = "weight_scale"


def correct_by_tensors(quantized: QuantizedCheckpoint, plain: Mapping[str, bool]) -> QuantizedCheckpoint:
    """The description with what the names and types of tensors add to it.

    A projection whose weight is stored as floats is not quantised: exporters skip projections that their lists do
    not name. And two programs write FP8 with a scale a tensor, by one description but under different names.

    Args:
        quantized: what the description says.
        plain: the stored names, and whether each tensor is stored as floats.
    """
    floats = frozenset(name.removesuffix(".weight") for name in plain if plain[name] and name.endswith(".weight"))
    endings = {name.rpartition(".")[2] for name in plain}
    rules = quantized.rules
    if _TRANSFORMERS_SCALE in endings and _USUAL_SCALE not in endings:
        rules = tuple(QuantizationRule(rule.targets, _as_transformers_names(rule.format)) for rule in rules)
    return replace(quantized, rules=rules, plain=floats)


def _as_transformers_names(format: Format) -> Format:
    if not isinstance(format, FP8Format):
        return format
    return replace(format, scale_ending=_TRANSFORMERS_SCALE, input_ending=_TRANSFORMERS_INPUT)
