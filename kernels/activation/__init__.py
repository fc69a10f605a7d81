"""Gated activations of feed-forward layers."""

from .gated import ActivationKind, choose, gated_activation
from .quantized import choose_quantized, gated_activation_quantized

__all__ = ["ActivationKind", "choose", "choose_quantized", "gated_activation", "gated_activation_quantized"]
