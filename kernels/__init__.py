"""Tensor operations: one flat surface, each with a plain torch reference. Imports nothing else of Stentor."""

from .activation import ActivationKind, gated_activation
from .attention import AttentionBatch, paged_attention
from .kv_cache import kv_cache_shape, write_kv_
from .linear import linear
from .norm import add_rms_norm, rms_norm
from .rotary import rotary_
from .variants import Choice, Variant, force_variant

__all__ = [
    "ActivationKind",
    "AttentionBatch",
    "Choice",
    "Variant",
    "add_rms_norm",
    "force_variant",
    "gated_activation",
    "kv_cache_shape",
    "linear",
    "paged_attention",
    "rms_norm",
    "rotary_",
    "write_kv_",
]
