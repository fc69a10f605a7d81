"""m-rope positions: frame, row and column of media tokens."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from stentor.protocols.ipc.steps import RowSpan

from ...model_config.towers.media_spec import MediaAxes
from ..rows.rows import Int64

Run = tuple[int, int]
"""Placeholders at positions [first, end) of a prompt."""


class MediaPositions(msgspec.Struct, frozen=True):
    """The m-rope positions of a prompt and the text behind it.

    A picture takes as many positions as its longer side has embeddings, however many embeddings it has: the position of
    text behind it is lower than its index. With numbered pictures every token's position is its index.
    """

    axes: Int64
    """[prompt, 3]: frame, row and column of each token; [prompt, 4] with numbered pictures: index, column, row and
    number of the picture. Equal for text."""
    media: Int64
    """Indices of media tokens in the prompt, ascending."""
    shift: int
    """Position minus index of tokens behind the prompt."""

    @classmethod
    def of(
        cls, prompt_len: int, spans: Iterable[tuple[RowSpan, Sequence[Run]]], kind: MediaAxes = "grid"
    ) -> "MediaPositions":
        """Compute the positions of a prompt.

        ``spans``: media with a grid, in order, each with the runs of its placeholders: one for all embeddings, or one a
        frame. Raises ValueError if runs do not fit the grid.
        """
        if kind == "numbered":
            return cls._numbered(prompt_len, spans)
        axes = np.zeros((prompt_len, 3), dtype=np.int64)
        media = []
        at = next_position = 0
        for span, runs in spans:
            runs = _by_frame(span, runs) if kind == "blocks" else runs
            for (first, end), grid in zip(runs, _grids(span, runs), strict=True):
                axes[at:first] = (np.arange(first - at) + next_position)[:, None]
                next_position += first - at
                lattice = _lattice(grid, span.interval)
                if kind == "corner":
                    axes[first:end] = lattice + np.array([next_position, 0, 0])
                    next_position += grid[0]
                else:
                    axes[first:end] = lattice + next_position
                    next_position += int(lattice.max()) + 1 if kind == "frames" else max(grid[1:])
                media.append(np.arange(first, end))
                at = end
        axes[at:] = (np.arange(prompt_len - at) + next_position)[:, None]
        shift = int(axes.max()) + 1 - prompt_len
        return cls(axes, np.concatenate(media) if media else np.zeros(0, dtype=np.int64), shift)

    @classmethod
    def _numbered(cls, prompt_len: int, spans: Iterable[tuple[RowSpan, Sequence[Run]]]) -> "MediaPositions":
        """A picture has an embedding before its first row, one behind each row and one at its end. The first and last
        have text positions."""
        axes = np.repeat(np.arange(prompt_len)[:, None], 4, axis=1)
        media = []
        for number, (span, runs) in enumerate(spans):
            assert span.grid is not None
            _, rows, columns = span.grid
            found = [end - first for first, end in runs]
            if found != [rows * (columns + 1) + 2]:
                raise ValueError(f"a picture of {rows} x {columns} embeddings stands at runs of {found} placeholders")
            inside = slice(runs[0][0] + 1, runs[0][1] - 1)
            row, column = np.divmod(np.arange(rows * (columns + 1)), columns + 1)
            axes[inside, 1], axes[inside, 2], axes[inside, 3] = column, row, number
            media.append(np.arange(inside.start, inside.stop))
        return cls(axes, np.concatenate(media), 0)

    def of_text(self, start: int, count: int) -> Int64:
        """Positions of tokens [start, start + count), as if all were text."""
        known = self.axes[start : start + count, 0]
        behind = np.arange(start + len(known), start + count) + self.shift
        return np.concatenate((known, behind))

    def of_media(self, start: int, count: int) -> tuple[Int64, Int64]:
        """Media tokens within [start, start + count): their indices, and positions [media, axes]."""
        begin, end = np.searchsorted(self.media, (start, start + count))
        at = self.media[begin:end]
        return at, self.axes[at]


def _by_frame(span: RowSpan, runs: Sequence[Run]) -> Sequence[Run]:
    """A run of each frame in place of one for all, if it fits them."""
    assert span.grid is not None
    frames, rows, columns = span.grid
    size = rows * columns
    if [end - first for first, end in runs] != [frames * size]:
        return runs
    start, end = runs[0]
    return [(first, first + size) for first in range(start, end, size)]


def _grids(span: RowSpan, runs: Sequence[Run]) -> list[tuple[int, int, int]]:
    """The grid of each run."""
    assert span.grid is not None
    frames, rows, columns = span.grid
    grids = [(frames, rows, columns)] if len(runs) == 1 else [(1, rows, columns)] * frames
    found = [end - first for first, end in runs]
    if found != [each[0] * each[1] * each[2] for each in grids]:
        raise ValueError(
            f"media of {frames} frames of {rows} x {columns} embeddings stand at runs of {found} placeholders"
        )
    return grids


def _lattice(grid: tuple[int, int, int], interval: float) -> Int64:
    """[embeddings, 3], frame by frame and row by row."""
    frames, rows, columns = np.meshgrid(*map(np.arange, grid), indexing="ij")
    found = np.stack([(frames * interval).astype(np.int64), rows, columns], axis=-1)
    return found.reshape(-1, 3)
