"""Tensor operations in one flat namespace, each with a plain torch reference. Imports nothing else of Stentor."""

from . import activation, attention, norm, sampling
from .activation import ActivationKind, activate_, gated_activation, gated_activation_quantized
from .attention import MAX_DECODE_QUERY_LEN, AttentionBatch, paged_attention
from .attention.whole_spans import WholeSpan, attend_whole_spans_
from .causal_conv import causal_conv
from .embedding import embedding
from .gated_delta import gated_delta
from .kv_cache import kv_cache_shape, kv_scale_shape, make_kv_cache, write_kv_
from .latent_attention import latent_attention, latent_cache_shape, latents_of, write_latents_
from .launching import precompiled
from .linear import linear
from .linear_coded import CodedMatrices, CodeKind, empty_coded, linear_coded
from .linear_fp8 import linear_fp8
from .linear_gguf import GGUFWeight, linear_gguf
from .linear_heads import linear_heads
from .linear_int8 import linear_int8
from .linear_normed import NormedProduct, add_linear_, normed_linear
from .linear_w4 import W4Weight, linear_w4
from .mamba2 import mamba2
from .moe import ExpertActivation, Router, Routing, choose_experts, experts_mlp, packed_experts_mlp, route, route_to
from .norm import (
    add_layer_norm,
    add_rms_norm,
    add_rms_norm_quantized,
    layer_norm,
    rms_norm,
    rms_norm_quantized,
)
from .quantize import ActivationScheme, Quantized, quantize, quantize_weight_fp8, quantize_weight_int8
from .rotary import rotary_
from .rotate_and_write import rotate_and_write_kv_
from .selective_scan import selective_scan
from .sparse_index import tokens_of_pools, top_tokens
from .sparse_index.blocks import BlockChoice, block_attention, seen_by, top_blocks, top_regions
from .state_rows import StateRows
from .stream_weights import stream_weights
from .variants import Choice, Variant, force_variant
from .varlen_attention import KeyLayout, lay_out_keys, varlen_attention

precompiled.use()

__all__ = [
    "MAX_DECODE_QUERY_LEN",
    "ActivationKind",
    "ActivationScheme",
    "AttentionBatch",
    "BlockChoice",
    "Choice",
    "CodeKind",
    "CodedMatrices",
    "ExpertActivation",
    "GGUFWeight",
    "KeyLayout",
    "NormedProduct",
    "Quantized",
    "Router",
    "Routing",
    "StateRows",
    "Variant",
    "W4Weight",
    "WholeSpan",
    "activate_",
    "activation",
    "add_layer_norm",
    "add_linear_",
    "add_rms_norm",
    "add_rms_norm_quantized",
    "attend_whole_spans_",
    "attention",
    "block_attention",
    "causal_conv",
    "choose_experts",
    "embedding",
    "empty_coded",
    "experts_mlp",
    "force_variant",
    "gated_activation",
    "gated_activation_quantized",
    "gated_delta",
    "kv_cache_shape",
    "kv_scale_shape",
    "latent_attention",
    "latent_cache_shape",
    "latents_of",
    "lay_out_keys",
    "layer_norm",
    "linear",
    "linear_coded",
    "linear_fp8",
    "linear_gguf",
    "linear_heads",
    "linear_int8",
    "linear_w4",
    "make_kv_cache",
    "mamba2",
    "norm",
    "normed_linear",
    "packed_experts_mlp",
    "paged_attention",
    "quantize",
    "quantize_weight_fp8",
    "quantize_weight_int8",
    "rms_norm",
    "rms_norm_quantized",
    "rotary_",
    "rotate_and_write_kv_",
    "route",
    "route_to",
    "sampling",
    "seen_by",
    "selective_scan",
    "stream_weights",
    "tokens_of_pools",
    "top_blocks",
    "top_regions",
    "top_tokens",
    "varlen_attention",
    "write_kv_",
    "write_latents_",
]
