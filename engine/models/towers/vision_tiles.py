"""Joins the embeddings of a whole picture and of its tiles (LLaVA-NeXT, arXiv:2408.03326)."""

import math
from collections.abc import Mapping, Sequence

import torch

from ...model_config.towers.vision_spec import TileSpec

_MOST_STRETCHED = 1.1
"""Largest excess of a side that is not resized."""


def put_together(
    spec: TileSpec, tensors: Mapping[str, torch.Tensor], embeddings: torch.Tensor, marks: torch.Tensor
) -> torch.Tensor:
    """Join embeddings [tiles · side · side, hidden], the whole picture's first → [embeddings, hidden].

    ``tensors``: a payload's. ``marks`` [marks, hidden]: those of the spec. Raises ValueError for an invalid number of
    tiles.
    """
    end = marks[0]
    count = tensors["pixel_values"].flatten(0, -4).shape[0]
    tiles = embeddings.view(count, -1, embeddings.shape[1])
    if count == 1 and not spec.between:
        return torch.cat((tiles[0], end[None]))
    sizes = tensors.get("image_sizes")
    if sizes is None or sizes.numel() != 2 or sizes.min() < 1:
        raise ValueError("tiles come without image_sizes, expected the height and the width of their picture")
    height, width = (int(length) for length in sizes.flatten())
    canvas = _canvas(spec, height, width) if spec.canvases else (height, width)
    rows, columns = (length // spec.side for length in canvas)
    if count != 1 + rows * columns:
        raise ValueError(f"a picture of {height} x {width} pixels has {count} tiles, expected {1 + rows * columns}")
    side = math.isqrt(tiles.shape[1])
    lattice = tiles[1:].view(rows, columns, side, side, -1).transpose(1, 2).reshape(rows * side, columns * side, -1)
    if spec.canvases:
        lattice = _fewer(spec, _without_padding(lattice, height, width), side)
    ended = _with_ends(lattice, end)
    if not spec.between:
        return torch.cat((tiles[0], ended))
    parts = (_with_ends(tiles[0].view(side, side, -1), end), marks[1:], ended)
    return torch.cat(parts[::-1] if spec.whole_last else parts)


def overlapped(spec: TileSpec, tensors: Mapping[str, torch.Tensor], embeddings: torch.Tensor) -> torch.Tensor:
    """Embeddings [tiles · side · side, hidden], the whole picture's first → those of the whole, and of the canvas row
    by row, each from the tile in which it lies farther from an edge.

    ``tensors``: a payload's. Raises ValueError for an invalid number of tiles.
    """
    count = tensors["pixel_values"].flatten(0, -4).shape[0]
    tiles = embeddings.view(count, -1, embeddings.shape[1])
    sizes = tensors.get("image_sizes")
    if sizes is None or sizes.numel() != 2 or sizes.min() < 1:
        raise ValueError("tiles come without image_sizes, expected the height and the width of their canvas")
    window = spec.side - sum(spec.overlap)
    rows, columns = ((int(length) - sum(spec.overlap)) // window for length in sizes.flatten())
    if count != 1 + rows * columns:
        canvas = " x ".join(map(str, sizes.flatten().tolist()))
        raise ValueError(f"a canvas of {canvas} pixels has {count} tiles, expected {1 + rows * columns}")
    side = math.isqrt(tiles.shape[1])
    before, behind = (length * side // spec.side for length in spec.overlap)
    lattice = tiles[1:].view(rows, columns, side, side, -1)

    def kept(number: int, of: int) -> slice:
        return slice(before if number else 0, side if number == of - 1 else side - behind)

    lines = [
        torch.cat([lattice[row, column, kept(row, rows), kept(column, columns)] for column in range(columns)], dim=1)
        for row in range(rows)
    ]
    return torch.cat((tiles[0], torch.cat(lines).flatten(0, 1)))


def gridded(tensors: Mapping[str, torch.Tensor], embeddings: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
    """Put marks around embeddings [tiles · side · side, hidden], the whole picture's first.

    ``tensors``: a payload's. ``marks`` [marks, hidden]: as :data:`...model_config.towers.vision_spec.GRID_MARKS` counts
    them. Raises ValueError for an invalid number of tiles.
    """
    tiles, grid = tensors["pixel_values"].flatten(0, -4).shape[0], tensors.get("grids")
    if grid is None or grid.numel() != 2 or grid.min() < 1:
        raise ValueError("tiles come without grids, expected the rows and the columns of their picture")
    rows, columns = (int(count) for count in grid.flatten())
    expected = 1 + rows * columns * (rows * columns > 1)
    if tiles != expected:
        raise ValueError(f"a picture has {tiles} tiles, expected {expected} of {rows} x {columns}")
    begin, behind_whole, between, below, end = marks.split(1)
    whole, *others = embeddings.chunk(tiles)
    parts = [begin, whole, behind_whole]
    for number, tile in enumerate(others, 1):
        parts += (tile, between if number % columns else below)
    return torch.cat([*(parts[:-1] if others else parts), end])


def lined(
    tensors: Mapping[str, torch.Tensor], embeddings: torch.Tensor, side: int, marks: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Put marks before a picture, behind each of its rows, and behind all of it.

    ``tensors``: a payload's. ``side``: patches on each side of the square that is an embedding; those at the edges may
    have fewer. ``marks``: [hidden] each.
    """
    begin, line, end = marks
    _, rows, _ = tensors["image_grid_thw"].flatten().tolist()
    lattice = embeddings.view(-(-rows // side), -1, embeddings.shape[1])
    return torch.cat((begin[None], _with_ends(lattice, line), end[None]))


def _with_ends(lattice: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """lattice [rows, columns, hidden] → [rows · (columns + 1), hidden]"""
    return torch.cat((lattice, end.expand(len(lattice), 1, -1)), dim=1).flatten(0, 1)


def pooled(embeddings: torch.Tensor, frames: int, end: torch.Tensor) -> torch.Tensor:
    """Embeddings of a video [frames · side · side, hidden] → a quarter of them, with ``end`` [hidden] behind all."""
    side = math.isqrt(len(embeddings) // frames)
    half = math.ceil(side / 2)
    found = _resized(embeddings.view(frames, side, side, -1), half, half)
    return torch.cat((found.flatten(0, 2), end[None]))


def _canvas(spec: TileSpec, height: int, width: int) -> tuple[int, int]:
    """The canvas that keeps most of the picture's pixels, and of these the smallest."""

    def fit(canvas: tuple[int, int]) -> tuple[int, int]:
        scale = min(canvas[1] / width, canvas[0] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return used, used - canvas[0] * canvas[1]

    return max(spec.canvases, key=fit)


def _without_padding(lattice: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """lattice [rows, columns, hidden] of a canvas, without the padding around the picture."""
    rows, columns, _ = lattice.shape
    if width / height > columns / rows:
        padding = (rows - int(round(height * (columns / width), 7))) // 2
        return lattice[padding : rows - padding]
    padding = (columns - int(round(width * (rows / height), 7))) // 2
    return lattice[:, padding : columns - padding]


def _fewer(spec: TileSpec, lattice: torch.Tensor, side: int) -> torch.Tensor:
    """The lattice, resized to the size for the largest number of tiles if it is clearly larger."""
    rows, columns, _ = lattice.shape
    longer = math.sqrt(rows * columns / (spec.most * side**2)) if spec.most else 0.0
    if longer <= _MOST_STRETCHED:
        return lattice
    return _resized(lattice[None], int(rows // longer), int(columns // longer))[0]


def _resized(lattices: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Resize [n, rows, columns, hidden] bilinearly."""
    made = torch.nn.functional.interpolate(lattices.permute(0, 3, 1, 2), (rows, columns), mode="bilinear")
    return made.permute(0, 2, 3, 1)
