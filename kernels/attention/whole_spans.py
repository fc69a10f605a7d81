"""Attention over the paged cache for spans of tokens that also see the later tokens of their span."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import AttentionBatch
from .reference import attend, first_seen, gather


@dataclass(frozen=True)
class WholeSpan:
    """Tokens of a pass that see each other, apart from what they see anyway."""

    first: int
    """Its first token among those of the pass, which has all of the span."""
    count: int
    sequence: int
    """Its sequence in the batch."""
    start: int
    """Position of its first token in the sequence."""
    members: Tensor | None = None
    """bool [count]: which of its tokens see each other, while others see what lies before them; None: all."""


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
    windowed: bool = False,
    own: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Writes the rows of ``out`` [T, Hq, D] of the tokens of ``spans``. Each sees what lies before its span, as far
    back as ``window`` reaches, and all of its span (``windowed``, or with members: as far back as ``window`` reaches),
    as in transformers.

    The arguments are those of :func:`.paged_attention`, which has computed all other rows. The spans' keys and values
    are in the caches already, or ``own``: those of all tokens of the pass, [T, Hkv, D] each. A span's result does not
    depend on what shares the pass.
    """
    size = k_cache.shape[3]
    for span in spans:
        end = span.start + span.count
        oldest = int(first_seen(span.start, window)) // size
        first, cached = oldest * size, end if own is None else span.start
        blocks = batch.block_tables[span.sequence, oldest : -(-cached // size)].long()
        k, v = gather(k_cache, v_cache, blocks, cached - first, k_scale, v_scale)
        rows = slice(span.first, span.first + span.count)
        if own is not None:
            k, v = (torch.cat((old, new[rows].transpose(0, 1)), dim=1) for old, new in zip((k, v), own, strict=True))
        position = torch.arange(span.start, end, device=q.device).unsqueeze(1)
        key = torch.arange(first, end, device=q.device).unsqueeze(0)
        seen_from = first_seen(position, window)
        whole = span.members is None and not windowed
        hidden = key < (seen_from.clamp(max=span.start) if whole else seen_from)
        if span.members is not None:
            members = torch.nn.functional.pad(span.members, (span.start - first, 0))
            hidden = hidden | ((key > position) & ~(span.members.unsqueeze(1) & members))
        out[rows] = attend(q[rows], k, v, hidden, scale, softcap, sinks)
