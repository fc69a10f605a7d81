"""RMS norms over columns of which each of several workers has some."""

from collections.abc import Sequence

import torch

from .elementwise import elementwise
from .linear.layer_context import LayerContext
from .linear.quantized import Stream, changed
from .linear.rank_group import RankGroup
from .linear.weights import WeightMap
from .norm import RMSNorm


class SplitNorm:
    """An RMS norm of what workers that split a layer have columns of: the input of its last product."""

    def __init__(self, weights: WeightMap, name: str | None, size: int, eps: float, context: LayerContext) -> None:
        """``size``: the columns that are here. Without a ``name`` there are no weights."""
        self._norm = RMSNorm(weights, name, size, eps, context)
        self._eps, self._ranks = eps, context.ranks

    def __call__(self, x: Stream) -> Stream:
        """x [tokens, size] → the same"""
        if (ranks := self._ranks) is None:
            return self._norm.plain(x)
        return changed(x, "norms over workers", lambda rows: self._spread(rows, ranks))

    def _spread(self, x: torch.Tensor, ranks: RankGroup) -> torch.Tensor:
        (normed,) = rms_over_ranks([x], self._eps, ranks)
        return (normed * self._norm.factors).to(x.dtype)


def rms_over_ranks(
    parts: Sequence[torch.Tensor], eps: float, ranks: RankGroup, workers: int | None = None
) -> list[torch.Tensor]:
    """x / rms(x), without weights, float32 [tokens, columns] of each part; ``workers`` that follow each other have as
    many columns of it each, or all have. One sum over all ranks serves all parts."""
    workers = workers or ranks.size
    squares = torch.zeros(ranks.size // workers, len(parts), len(parts[0]), device=parts[0].device)
    own = squares[ranks.rank // workers]
    wide = [part.float() for part in parts]
    for total, part in zip(own, wide, strict=True):
        torch.sum(part * part, dim=1, out=total)
    ranks.sum_(squares)
    return [
        part * elementwise(torch.rsqrt, total / (workers * part.shape[1]) + eps)[:, None]
        for total, part in zip(own, wide, strict=True)
    ]
