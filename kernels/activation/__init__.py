"""Activations of feed-forward layers, gated and plain."""

from .gated import ActivationKind, choose, gated_activation
from .plain import activate_, choose_plain
from .quantized import choose_quantized, gated_activation_quantized

__all__ = [
    "ActivationKind",
    "activate_",
    "choose",
    "choose_plain",
    "choose_quantized",
    "gated_activation",
    "gated_activation_quantized",
]
