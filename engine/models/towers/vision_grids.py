"""The layout of a picture's patches: order, positions, attention windows.

Patches that are joined to one embedding are adjacent, row by row, and so are embeddings. If layers attend in windows,
the embeddings of a window are adjacent instead, so that both kinds of attention run over sequences without gaps.
"""

from functools import lru_cache

import msgspec
import torch

from ...model_config.towers.vision_spec import AxialRope, PositionKind

Grid = tuple[int, int]
"""Rows and columns of patches of a picture or a video frame."""


class Layout(msgspec.Struct, frozen=True):
    """The layout of one grid."""

    rows: torch.Tensor
    """int64 [patches]: the row of each, in computing order."""
    columns: torch.Tensor
    windows: tuple[int, ...]
    """Patches of each window."""
    order: torch.Tensor | None
    """int64 [embeddings]: their indices in computing order; None for row by row."""


@lru_cache(maxsize=64)
def layout(grid: Grid, merge: int, window: int) -> Layout:
    """The layout of a grid. Raises ValueError unless squares of ``merge`` patches a side fill it.

    ``window``: embeddings on each side of a window; 0: none.
    """
    height, width = grid
    if height % merge or width % merge or not height * width:
        raise ValueError(f"a picture of {height} x {width} patches is not made of squares of {merge} x {merge}")
    down, across = height // merge, width // merge
    rows, columns = (
        places.reshape(down, merge, across, merge).transpose(1, 2).reshape(-1, merge * merge)
        for places in torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    )
    if not window:
        return Layout(rows.flatten(), columns.flatten(), (), None)
    of_window = (rows[:, 0] // (merge * window)) * across + columns[:, 0] // (merge * window)
    order = torch.argsort(of_window, stable=True)
    lengths = torch.unique(of_window, return_counts=True)[1] * merge * merge
    return Layout(rows[order].flatten(), columns[order].flatten(), tuple(lengths.tolist()), order)


def axial_rotation(
    rope: AxialRope, head_dim: int, rows: torch.Tensor, columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of patches, float32 [patches, head_dim / 2] each; with :attr:`AxialRope.timed` [patches,
    head_dim], of the first numbers of all pairs before those of the second."""
    if rope.timed:
        return _timed_rotation(rope, head_dim, rows, columns)
    pairs = torch.arange(0, head_dim, 4, dtype=torch.float32, device=rows.device)
    by_row = 1.0 / rope.theta ** (pairs / head_dim)
    by_column = 1.0 / rope.theta ** ((pairs + 2) / head_dim) if rope.columns_between else by_row
    halves = torch.outer(rows.float(), by_row), torch.outer(columns.float(), by_column)
    if rope.alternating:
        angles = torch.stack(halves[::-1], dim=2).flatten(1)
    else:
        angles = torch.cat(halves[::-1] if rope.columns_first else halves, dim=1)
    return angles.cos(), angles.sin()


def _timed_rotation(
    rope: AxialRope, head_dim: int, rows: torch.Tensor, columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """4, 6 and 6 of each 16 angles are those of time, row and column. All angles repeat in the second half of a head,
    whose numbers form pairs with their neighbours."""
    unit = head_dim // 32
    frequencies = 1.0 / rope.theta ** (torch.arange(6 * unit, dtype=torch.float32, device=rows.device) / (6 * unit))
    by_row, by_column = (torch.outer(places.float(), frequencies) for places in (rows, columns))
    angles = torch.cat((by_row.new_zeros(len(rows), 4 * unit), by_row, by_column), dim=1).repeat(1, 2)
    angles = torch.cat((angles[:, 0::2], angles[:, 1::2]), dim=1)
    return angles.cos(), angles.sin()


class Learned(msgspec.Struct, frozen=True):
    """Position embeddings: one table row a patch, or a weighted sum of several."""

    rows: torch.Tensor
    """int64 [patches] or [patches, n]"""
    weights: torch.Tensor | None = None
    """float32 [patches, n]"""

    def of(self, table: torch.Tensor) -> torch.Tensor:
        """table [positions, hidden] → [patches, hidden]"""
        found = table[self.rows.to(table.device)]
        if self.weights is None:
            return found
        return (found * self.weights.to(table.device).unsqueeze(2)).sum(dim=1).to(table.dtype)


class Resampled(msgspec.Struct, frozen=True):
    """Position embeddings from the table as a square, resized to the grid."""

    down: torch.Tensor
    """float32 [rows, side]: weights of the square's rows for each row of the grid."""
    across: torch.Tensor
    """float32 [columns, side]"""
    at: Layout

    def of(self, table: torch.Tensor) -> torch.Tensor:
        """table [side · side, hidden] → [patches, hidden]"""
        down, across = self.down.to(table.device), self.across.to(table.device)
        square = table.float().view(down.shape[1], across.shape[1], -1)
        made: torch.Tensor = torch.tensordot(
            across, torch.tensordot(down, square, 1), ([1], [1])
        )  # [columns, rows, hidden]
        return made[self.at.columns.to(table.device), self.at.rows.to(table.device)].to(table.dtype)


@lru_cache(maxsize=64)
def learned(grid: Grid, filled: Grid, merge: int, window: int, side: int, kind: PositionKind) -> Learned | Resampled:
    """The position embeddings of a grid's patches, from a learned square of ``side`` a side.

    Patches of padding, behind ``filled``, use the first row. Raises ValueError for an unsupported grid.
    """
    at = layout(grid, merge, window)
    match kind:
        case "exact" if grid != (side, side):
            raise ValueError(f"a picture has {grid[0]} x {grid[1]} patches, expected {side} x {side}")
        case "exact":
            return Learned(at.rows * side + at.columns)
        case "buckets":
            rows, columns = (
                _buckets(size, side)[places.clamp(max=size - 1)]
                for size, places in zip(filled, (at.rows, at.columns), strict=True)
            )
            real = (at.rows < filled[0]) & (at.columns < filled[1])
            return Learned(torch.where(real, rows * side + columns, 0))
        case "axial" if max(grid) > side:
            raise ValueError(f"a picture has {grid[0]} x {grid[1]} patches, expected at most {side} a side")
        case "axial":
            both = torch.stack((at.columns, side + at.rows), dim=1)
            return Learned(both, torch.ones(both.shape))
        case "centred" | "antialiased":
            down, across = (_resized(size, side, antialias=kind == "antialiased") for size in grid)
            return Resampled(down, across, at)
        case "sampled":
            return Resampled(_sampled(grid[0], side), _sampled(grid[1], side), at)
        case _:
            return _stretched(grid, side, at)


def _stretched(grid: Grid, side: int, at: Layout) -> Learned:
    """Bilinear interpolation between four table rows, with the square resized to the grid."""
    (row, down), (column, right) = _between(grid[0], side, at.rows), _between(grid[1], side, at.columns)
    rows, columns = ((place, (place + 1).clamp(max=side - 1)) for place in (row, column))
    corners = [each * side + beside for each in rows for beside in columns]
    weights = [vertical * level for vertical in (1 - down, down) for level in (1 - right, right)]
    return Learned(torch.stack(corners, dim=1), torch.stack(weights, dim=1))


def _buckets(size: int, side: int) -> torch.Tensor:
    """int64 [size]: for each place along a side, the one of ``side`` places at the same relative distance."""
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    along = torch.arange(size, dtype=torch.float32) * (1.0 / torch.tensor(size))
    return torch.bucketize(along.clamp(max=1.0 - 1e-6), bounds, right=True)


def _between(size: int, side: int, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The place of ``side`` at or before each, with both ends aligned, and the fraction behind it."""
    exact = at.float() * (side - 1) / max(size - 1, 1)
    low = exact.floor()
    return low.long(), exact - low


def _resized(size: int, side: int, *, antialias: bool) -> torch.Tensor:
    """[size, side]: weights of a bilinear resize from ``side`` to ``size``, with centres aligned."""
    unit = torch.eye(side)[None, None]
    made: torch.Tensor = torch.nn.functional.interpolate(
        unit, (size, side), mode="bilinear", antialias=antialias, align_corners=False
    )
    return made[0, 0]


def _sampled(size: int, side: int) -> torch.Tensor:
    """[size, side]: weights of a bicubic resize with fixed filter width, where the border is repeated."""
    unit = torch.eye(side).view(1, side, side, 1)
    places = (torch.arange(size) + 0.5) / size * 2 - 1
    at = torch.stack((torch.zeros(size), places), dim=1).view(1, size, 1, 2)
    made = torch.nn.functional.grid_sample(unit, at, mode="bicubic", padding_mode="border", align_corners=False)
    return made[0, :, :, 0].T.contiguous()
