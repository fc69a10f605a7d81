"""Pictures of Ovis 2, as a whole and in tiles that keep their shapes on black squares; and of Ovis 2.5: their own
aspect ratio, scaled to the model's range of pixels, as patches in squares."""

import math
from typing import Any, ClassVar, Final

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import (
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)

from .base import OwnImages, Scaling
from .tiles import Pixels, Values

_LONGEST = 200
"""Times as long as it is wide a picture is at most."""


_COVERED: Final = 0.9
"""Share of a picture's pixels that tiles should keep."""


class OvisArguments(ImagesKwargs, total=False):
    max_patches: int


class OvisImages(OwnImages):
    valid_kwargs = OvisArguments
    resample = 3  # bicubic
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    max_patches = 9
    """Most tiles of a picture, besides the whole."""
    low_detail: ClassVar = {"max_patches": 1}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side, found, grids = settings.size.height, [], []
        for picture in images:
            _, height, width = picture.shape
            grid = covering(height, width, side, settings.max_patches)
            tiles = [picture[:, up:low, left:right] for left, up, right, low in regions(height, width, *grid)]
            found += [self._square(tile, side, scaling) for tile in ([picture, *tiles] if len(tiles) > 1 else tiles)]
            grids.append(grid)
        return {"pixel_values": np.stack(found), "grids": np.array(grids)}

    def _square(self, tile: Pixels, side: int, scaling: Scaling) -> Values:
        """The tile in its shape, between zeros."""
        _, height, width = tile.shape
        rows = side if height >= width else int(height / width * side)
        columns = side if width >= height else int(width / height * side)
        if min(rows, columns) < 1:
            raise ValueError(f"of a tile of {width} x {height} pixels a side becomes shorter than one")
        down, across = side - rows, side - columns
        margins = ((0, 0), (down // 2, down - down // 2), (across // 2, across - across // 2))
        return np.pad(scaling.normed(scaling.resized(tile, rows, columns)), margins)


def regions(height: int, width: int, rows: int, columns: int) -> list[tuple[int, int, int, int]]:
    """Left, upper, right and lower edges of tiles, of which the last ones have what is left over."""
    down, across = height // rows, width // columns
    return [
        (
            column * across,
            row * down,
            width if column == columns - 1 else (column + 1) * across,
            height if row == rows - 1 else (row + 1) * down,
        )
        for row in range(rows)
        for column in range(columns)
    ]


def covering(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Rows and columns of the fewest tiles in which almost all pixels are kept; of equally many those that keep
    most."""
    known = {}
    for rows in range(1, most + 1):
        for columns in range(1, most // rows + 1):
            kept = sum(_kept(*region, side) for region in regions(height, width, rows, columns))
            known[rows, columns] = kept / (height * width)
    enough = [grid for grid in known if known[grid] > _COVERED]
    if enough:
        return min(enough, key=lambda grid: (grid[0] * grid[1], -known[grid]))
    return min(known, key=lambda grid: (-known[grid], grid[0] * grid[1]))


def _kept(left: int, above: int, right: int, below: int, side: int) -> float:
    """Pixels of a tile that is made as long as ``side`` if it is longer, in the makers' way of counting."""
    longer, shorter = max(right - left, below - above), min(right - left, below - above)
    return side * (shorter / longer * side) if longer > side else longer * shorter


class Ovis25Arguments(ImagesKwargs, total=False):
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    max_pixels: int


class Ovis25Images(OwnImages):
    valid_kwargs = Ovis25Arguments
    resample = 3  # bicubic
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    patch_size = 16
    merge_size = 2
    temporal_patch_size = 1

    def __init__(
        self, size: Any = None, min_pixels: int = 448 * 448, max_pixels: int = 1792 * 1792, **settings: Any
    ) -> None:
        """``size``, which files contain, is for towers with a fixed size."""
        super().__init__(size={"shortest_edge": min_pixels, "longest_edge": max_pixels}, **settings)

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        values, grids = [], []
        patch, merge, size = settings.patch_size, settings.merge_size, settings.size
        square = patch * merge
        for picture in images:
            _, height, width = picture.shape
            height, width = fitting(height, width, square, size.shortest_edge, size.longest_edge)
            whole = scaling.normed(scaling.resized(picture, height, width))
            down, across = height // square, width // square
            cut = whole.reshape(len(whole), down, merge, patch, across, merge, patch)
            patches = cut.transpose(1, 4, 2, 5, 0, 3, 6)[..., None, :, :].repeat(settings.temporal_patch_size, axis=5)
            values.append(patches.reshape(down * across * merge**2, -1))
            grids.append([1, height // patch, width // patch])
        return {"pixel_values": np.concatenate(values), "image_grid_thw": np.array(grids)}


def fitting(height: int, width: int, square: int, fewest: int, most: int) -> tuple[int, int]:
    """Height and width in whole squares, with neither too many nor too few pixels."""
    if height < square or width < square:
        grown = square / min(height, width)
        height, width = (square if each == min(height, width) else round(each * grown) for each in (height, width))
    elif max(height, width) > _LONGEST * min(height, width):
        height, width = (min(each, _LONGEST * min(height, width)) for each in (height, width))
    rows, columns = (round(each / square) * square for each in (height, width))
    if rows * columns > most:
        shrink = math.sqrt(height * width / most)
        rows, columns = (math.floor(each / shrink / square) * square for each in (height, width))
    elif rows * columns < fewest:
        grow = math.sqrt(fewest / (height * width))
        rows, columns = (math.ceil(each * grow / square) * square for each in (height, width))
    rows, columns = max(rows, square), max(columns, square)
    longest = max(most // min(rows, columns) // square, 1) * square  # of one that is a square wide
    return min(rows, longest), min(columns, longest)
