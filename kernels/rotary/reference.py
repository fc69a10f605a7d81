"""Rotary embedding (arXiv:2104.09864): each pair of dims is rotated by the angle of its frequency and position.

A pair is (i, i + R/2), or (2i, 2i + 1) if interleaved. With sections (arXiv:2409.12191) the first frequencies take the
position of row 0, the next that of row 1, the last that of row 2.
"""

import torch
from torch import Tensor


def rotary_(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    interleaved: bool,
    sections: tuple[int, int, int] | None,
) -> None:
    half = cos.shape[1]
    outside = positions[(positions < 0) | (positions >= cos.shape[0])]
    if outside.numel():
        raise IndexError(f"rotary_: position {int(outside[0])} lies outside the table of {cos.shape[0]}")
    c, s = _angles(cos, positions, sections), _angles(sin, positions, sections)
    lower, upper = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    )
    for heads in (q, k):
        first, second = heads[..., lower].float(), heads[..., upper].float()
        heads[..., lower], heads[..., upper] = first * c - second * s, second * c + first * s


def _angles(table: Tensor, positions: Tensor, sections: tuple[int, int, int] | None) -> Tensor:
    """Returns [tokens, 1, R/2]."""
    rows = table[positions]
    if sections is not None:  # [3, tokens, R/2]
        rows = torch.cat([part[axis] for axis, part in enumerate(rows.split(sections, dim=-1))], dim=-1)
    return rows.unsqueeze(1)
