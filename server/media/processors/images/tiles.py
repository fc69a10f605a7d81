"""Shared by image processors that cut pictures into tiles. Pictures are uint8 [channels, height, width]."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
Values = NDArray[np.float32]


def resized(picture: Pixels, height: int, width: int, resample: int) -> Pixels:
    """``resample``: a filter of Pillow's."""
    if picture.shape[1:] == (height, width):
        return picture
    image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    return np.asarray(image.resize((width, height), Image.Resampling(resample))).transpose(2, 0, 1)


def exactly_resized(
    picture: Pixels | Values, height: int, width: int, resample: int = Image.Resampling.BICUBIC
) -> Values:
    """Without rounding to the values of pixels or cutting off what lies outside of them. ``resample``: a filter of
    Pillow's."""
    if picture.shape[1:] == (height, width):
        return picture.astype(np.float32)
    channels = (Image.fromarray(channel.astype(np.float32)) for channel in picture)
    return np.stack([np.asarray(each.resize((width, height), Image.Resampling(resample))) for each in channels])


def filled_up(picture: Pixels, height: int, width: int) -> Pixels:
    """With black below it and on its right."""
    _, rows, columns = picture.shape
    return np.pad(picture, ((0, 0), (0, height - rows), (0, width - columns)))


def cut(picture: Any, rows: int, columns: int) -> Any:
    """Cuts into tiles [tiles, channels, height, width], row by row."""
    channels, height, width = picture.shape
    tiles = picture.reshape(channels, rows, height // rows, columns, width // columns)
    return tiles.transpose(1, 3, 0, 2, 4).reshape(rows * columns, channels, height // rows, width // columns)


def grids(least: int, most: int) -> list[tuple[int, int]]:
    """Columns and rows of ``least`` to ``most`` tiles, fewer before more. Grids of equally many keep the order of a
    set, as in the published processors of InternVL and its relatives."""
    found = {
        (columns, rows)
        for count in range(least, most + 1)
        for columns in range(1, count + 1)
        for rows in range(1, count + 1)
        if least <= columns * rows <= most
    }
    return sorted(found, key=lambda grid: grid[0] * grid[1])


def closest(ratio: float, tiles: float, known: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The grid of the ``known`` ones, columns and rows, whose shape is nearest to the picture's, width over height; of
    one shape the first, or the last that it fills half. ``tiles``: how many the picture has the pixels of."""
    best, least = (1, 1), math.inf
    for grid in known:
        off = abs(ratio - grid[0] / grid[1])
        if off < least or (off == least and tiles > 0.5 * grid[0] * grid[1]):
            best, least = grid, off
    return best


def normed(pixels: Pixels, factor: float, mean: Sequence[float], std: Sequence[float]) -> Values:
    """Values of pixels times ``factor``, less the mean of their channel, over its deviation."""
    shape = (-1, 1, 1)
    scaled_mean, scaled_std = (np.array(each, np.float32).reshape(shape) / np.float32(factor) for each in (mean, std))
    found: Values = (pixels.astype(np.float32) - scaled_mean) / scaled_std
    return found


def patches(tile: Values, side: int) -> Values:
    """Squares of ``side`` pixels, row by row, [patches, side * side * channels]."""
    channels, height, width = tile.shape
    found = tile.reshape(channels, height // side, side, width // side, side)
    return found.transpose(1, 3, 2, 4, 0).reshape(-1, side * side * channels)


def bicubic(values: Values, side: int) -> Values:
    """[channels, side, side] by a bicubic filter of four pixels a direction, however much smaller."""
    rows, by_row = _taps(values.shape[1], side)
    columns, by_column = _taps(values.shape[2], side)
    lines: Values = (values[:, rows] * by_row[:, :, None]).sum(axis=1)
    found: Values = (lines[:, :, columns] * by_column).sum(axis=2)
    return found


def _taps(length: int, side: int) -> tuple[NDArray[np.int64], Values]:
    """Four pixels [4, side] for each of ``side``, and their factors."""
    at = (np.arange(side) + 0.5) * (length / side) - 0.5
    first = np.floor(at).astype(np.int64)
    distance = np.abs(at - first - np.arange(-1, 3)[:, None])
    sharp = -0.75
    near = ((sharp + 2) * distance - (sharp + 3)) * distance**2 + 1
    far = sharp * (((distance - 5) * distance + 8) * distance - 4)
    factors = np.where(distance <= 1, near, far).astype(np.float32)
    return np.clip(first + np.arange(-1, 3)[:, None], 0, length - 1), factors
