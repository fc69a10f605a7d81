"""RMS norms over columns of which each of several workers has some."""

from collections.abc import Sequence

import torch

from .elementwise import elementwise
from .rank_group import RankGroup


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
