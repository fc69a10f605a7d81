"""Attention of tokens that see those behind them too, as far as their span goes: over the paged cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import AttentionBatch
from .reference import attend, first_seen, gather


@dataclass(frozen=True)
class WholeSpan:
    """Tokens of a pass that see each other, besides what they see anyway."""

    first: int
    """Among the tokens of the pass, of which all of the span are some."""
    count: int
    sequence: int
    """Which of the batch's."""
    start: int
    """Position of the first in its sequence."""


def attend_whole_spans_(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    spans: Sequence[WholeSpan],
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Writes the rows of ``out`` [T, Hq, D] that belong to tokens of ``spans``: each sees what lies before its span, as
    far as ``window`` reaches back, and all of its span that it reaches.

    The arguments are those of :func:`.paged_attention`, which has computed all other rows; keys and values of the spans
    are in the caches already. A span alone decides its numbers, whatever shares the pass.
    """
    size = k_cache.shape[3]
    for span in spans:
        end = span.start + span.count
        oldest = int(first_seen(span.start, window)) // size
        blocks = batch.block_tables[span.sequence, oldest : -(-end // size)].long()
        first = oldest * size
        k, v = gather(k_cache, v_cache, blocks, end - first, k_scale, v_scale)
        position = torch.arange(span.start, end, device=q.device).unsqueeze(1)
        key = torch.arange(first, end, device=q.device).unsqueeze(0)
        hidden = key < first_seen(position, window)
        rows = slice(span.first, span.first + span.count)
        out[rows] = attend(q[rows], k, v, hidden, scale, softcap, sinks)
