"""Root mean square and layer norms."""

from .layer import add_layer_norm, choose_layer, layer_norm
from .quantized import add_rms_norm_quantized, choose_quantized, rms_norm_quantized
from .rms import add_rms_norm, choose, rms_norm

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "add_rms_norm_quantized",
    "choose",
    "choose_layer",
    "choose_quantized",
    "layer_norm",
    "rms_norm",
    "rms_norm_quantized",
]
