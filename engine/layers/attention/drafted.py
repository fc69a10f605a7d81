"""Attention of blocks of tokens that are drafted in one pass (DFlash, arXiv:2602.06036)."""

import dataclasses

import torch

from stentor import kernels

from ...model_config.spec.attention import AttentionSpec
from ..forward_batch import CacheScales, ForwardBatch, LayerCache


def attend_drafted(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: ForwardBatch,
    cache: LayerCache,
    spec: AttentionSpec,
    scales: CacheScales,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of q [tokens, heads, head_dim] to the cache and to the block's own keys and values, which are not added
    to it: with ``spec.whole_spans`` to all of the block, otherwise to its tokens up to the query.

    A query sees as far back as the window reaches.
    """
    spans, (k_scale, v_scale) = batch.drafted, scales
    if not spec.whole_spans:
        spans = [
            dataclasses.replace(span, members=torch.zeros(span.count, dtype=torch.bool, device=q.device))
            for span in spans
        ]
    out = torch.empty_like(q)
    kernels.attend_whole_spans_(
        out,
        q,
        cache.k,
        cache.v,
        batch.attention[cache.group],
        spans,
        scale=spec.scale,
        window=spec.window,
        softcap=spec.softcap,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
        windowed=True,
        own=(k, v),
    )
    return out
