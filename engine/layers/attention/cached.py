"""Attention over a layer's blocks of the cache, and the scales of a cache of 8 bits: layers with keys of their own
share these with layers that attend to another's."""

from typing import Any

import torch

from stentor import kernels

from ...model_config.spec.attention import AttentionSpec
from ..forward_batch import CacheScales, ForwardBatch, LayerCache
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap


def attend_cached(
    q: torch.Tensor,
    batch: ForwardBatch,
    cache: LayerCache,
    spec: AttentionSpec,
    scales: CacheScales,
    *,
    window: int,
    chunk: int = 0,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    distances: torch.Tensor | None = None,
    invariant: bool = False,
) -> torch.Tensor:
    """Attention of q [tokens, heads, head_dim] over each token's row; with ``spec.whole_spans`` within pictures in both
    directions.

    ``scales``: of keys and of values, if the cache has any.
    """
    attention, (k_scale, v_scale) = batch.attention[cache.group], scales
    shared: dict[str, Any] = {
        "scale": spec.scale,
        "window": window,
        "softcap": spec.softcap,
        "sinks": sinks,
        "k_scale": k_scale,
        "v_scale": v_scale,
    }
    out = kernels.paged_attention(
        q,
        cache.k,
        cache.v,
        attention,
        chunk=chunk,
        slopes=slopes,
        distances=distances,
        invariant=invariant,
        **shared,
    )
    if spec.whole_spans and batch.media is not None:
        spans = batch.media.spans
        kernels.attend_whole_spans_(out, q, cache.k, cache.v, attention, spans, windowed=spec.windowed_spans, **shared)
    return out


def cache_scales(
    weights: WeightMap, prefix: str, kv_heads: int, context: LayerContext
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of float8 keys and values of a layer, float32 [kv_heads] each: 1 unless stored."""
    return _cache_scale(weights, prefix, "k", kv_heads, context), _cache_scale(weights, prefix, "v", kv_heads, context)


def _cache_scale(weights: WeightMap, prefix: str, which: str, kv_heads: int, context: LayerContext) -> torch.Tensor:
    scale = context.ones(kv_heads)
    for name in (f"{which}_scale", f"{which}_proj.{which}_scale", f"{which}_proj.output_scale", "kv_scale"):
        weights.offer(f"{prefix}.{name}", scale)
    return scale
