"""m-rope positions of pictures with slices that lie on one canvas (MiniCPM-V 4.7)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch

from stentor.protocols.ipc.steps import RowSpan

from ..rows.rows import Int64
from .positions import MediaPositions, Run

_MARKS_BETWEEN = 2
"""Marks between two slices of a row: of an end and a beginning. Behind a row a line's end stands between them."""


def canvas_positions(
    tokens: Int64, spans: Iterable[tuple[RowSpan, Sequence[Run]]], marks: Sequence[int]
) -> MediaPositions:
    """Compute the positions of a prompt, whose ``tokens`` are given.

    ``spans``: pictures, each with the runs of its placeholders: the whole, then slices row by row. A span's grid has
    the columns of a slice (1 without slices), and the rows and columns of the whole. ``marks``: tokens around runs. The
    whole is stretched over all slices, marks are at corners, and text follows the longer side. Raises ValueError if
    runs do not fit the grid.
    """
    axes = np.zeros((len(tokens), 3), dtype=np.int64)
    of_picture = np.zeros(len(tokens), dtype=bool)
    is_mark = np.isin(tokens, marks)
    at = next_position = 0
    for span, runs in spans:
        first, end = runs[0][0] - 1, runs[-1][1]
        if first < 0:
            raise ValueError("a picture begins a prompt, expected a mark before it")
        end += int(np.argmin(np.append(is_mark[end:], False)))
        before = max(first - at, 0)
        axes[at : at + before] = (np.arange(before) + next_position)[:, None]
        next_position += before
        next_position += _put_picture(axes, next_position, (first, end), runs, span.grid)
        of_picture[first:end] = True
        at = end
    axes[at:] = (np.arange(len(tokens) - at) + next_position)[:, None]
    return MediaPositions(axes, np.flatnonzero(of_picture), int(axes.max()) + 1 - len(tokens))


def _put_picture(axes: Int64, origin: int, inside: Run, runs: Sequence[Run], grid: tuple[int, int, int] | None) -> int:
    """Write the positions of a picture's tokens, with marks ``inside`` [first, end), and return the positions that it
    takes; mutates ``axes``."""
    assert grid is not None
    across, rows, columns = grid
    (begin, close), slices = runs[0], runs[1:]
    lengths = [end - first for first, end in runs]
    down, left = divmod(lengths[1], across) if slices else (1, 0)
    if lengths[0] != rows * columns or left or any(length != down * across for length in lengths[1:]):
        raise ValueError(f"a picture of {rows} x {columns} embeddings stands at runs of {lengths} placeholders")
    ends = [following[0] - run[1] > _MARKS_BETWEEN for run, following in pairwise(slices)]
    in_row = ends.index(True) + 1 if any(ends) else len(slices)
    if slices and len(slices) % in_row:
        in_row = len(slices)
    height, width = (len(slices) // in_row * down, in_row * across) if slices else (rows, columns)
    first, end = inside
    axes[first:end] = origin
    axes[first, 1:] = max(origin - 1, 0)
    if close < end:
        axes[close, 1:] = origin + height, origin + width
    axes[begin:close, 1:] = origin + _spread((rows, columns), (height, width))
    for k, (slice_begin, slice_close) in enumerate(slices):
        corner = origin + np.array([k // in_row * down, k % in_row * across])
        axes[slice_begin - 1, 1:] = corner
        axes[slice_begin:slice_close, 1:] = corner + _spread((down, across), (down, across))
        if slice_close < end:
            axes[slice_close, 1:] = corner + np.array([down - 1, across - 1])
    for k, (run, following) in enumerate(pairwise(slices)):
        if ends[k]:
            axes[run[1] + 1 : following[0] - 1, 1:] = origin + (k // in_row + 1) * down - 1, origin + width
    return max(height, width) + 1


def _spread(grid: tuple[int, int], canvas: tuple[int, int]) -> Int64:
    """Rows and columns [rows · columns, 2] on a canvas, to whose edges a grid is stretched."""
    rows, columns = (
        torch.linspace(0, size - 1, count).round().long().numpy() for count, size in zip(grid, canvas, strict=True)
    )
    return np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
