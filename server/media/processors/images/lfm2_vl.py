"""Pictures of LFM2-VL: one of any shape, or tiles of one size with a smaller whole behind them; as patches, filled up
to one number for all."""

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
from transformers import Lfm2VlProcessor as _Lfm2VlProcessor
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, closest, cut, patches


class Lfm2VlProcessor(_Lfm2VlProcessor):
    """transformers' class, which only takes the flag for its text from its caller."""

    def _process_images(self, images: Any, use_image_special_tokens: bool = True, **arguments: Any) -> Any:
        return super()._process_images(images, use_image_special_tokens=use_image_special_tokens, **arguments)


class Lfm2VlArguments(ImagesKwargs, total=False):
    downsample_factor: int
    do_image_splitting: bool
    min_tiles: int
    max_tiles: int
    use_thumbnail: bool
    min_image_tokens: int
    max_image_tokens: int
    encoder_patch_size: int
    tile_size: int
    max_pixels_tolerance: float
    return_row_col_info: bool


class Lfm2VlImages(OwnImages):
    valid_kwargs = Lfm2VlArguments
    resample = 2  # bilinear
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size: ClassVar = {"height": 512, "width": 512}
    do_pad = True
    downsample_factor = 2
    do_image_splitting = True
    min_tiles = 2
    max_tiles = 10
    use_thumbnail = True
    min_image_tokens = 64
    max_image_tokens = 256
    encoder_patch_size = 16
    tile_size = 512
    max_pixels_tolerance = 2.0
    return_row_col_info = False

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        pictures = [_tiled(picture, scaling, settings) for picture in images]
        shown = [tile for picture in pictures for tile in picture.tiles]
        patch, most, factor = settings.encoder_patch_size, settings.max_image_tokens, settings.downsample_factor
        shapes = np.array([[length // patch for length in tile.shape[1:]] for tile in shown])
        longest = max(
            most * factor**2,
            (settings.tile_size // patch) ** 2 if settings.do_image_splitting else 0,
            int(shapes.prod(axis=1).max()),  # a picture of one row may have more
        )
        values = np.zeros((len(shown), longest, 3 * patch**2), np.float32)
        mask = np.zeros((len(shown), longest), np.int64)
        for number, tile in enumerate(shown):
            there = patches(scaling.normed(tile), patch)
            values[number, : len(there)] = there
            mask[number, : len(there)] = 1
        made: dict[str, Any] = {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes}
        if settings.return_row_col_info:
            made["image_rows"] = [each.rows for each in pictures]
            made["image_cols"] = [each.columns for each in pictures]
            made["image_sizes"] = [list(each.thumbnail) for each in pictures]
        return made


class _Tiled(NamedTuple):
    tiles: list[Pixels]
    """What the tower is shown: the picture, or its tiles and behind them the whole."""
    rows: int
    columns: int
    thumbnail: tuple[int, int]
    """Height and width of the whole."""


def _tiled(picture: Pixels, scaling: Scaling, settings: Any) -> _Tiled:
    height, width = picture.shape[1:]
    size = _size(height, width, settings)
    splits = settings.do_image_splitting and not settings.min_tiles == settings.max_tiles == 1
    if not splits or not _too_large(height, width, settings):
        return _Tiled([scaling.resized(picture, *size)], 1, 1, size)
    columns, rows = _grid(height, width, settings)
    tile = settings.tile_size
    tiles = [*cut(scaling.resized(picture, rows * tile, columns * tile), rows, columns)]
    if settings.use_thumbnail and len(tiles) > 1:
        tiles.append(scaling.resized(picture, *size))
    return _Tiled(tiles, rows, columns, size)


def _square(settings: Any) -> int:
    """Pixels on each side of one embedding's area."""
    return int(settings.encoder_patch_size * settings.downsample_factor)


def _too_large(height: int, width: int, settings: Any) -> bool:
    square = _square(settings)
    rows, columns = (max(settings.encoder_patch_size, round(edge / square) * square) for edge in (height, width))
    return bool(rows * columns > settings.max_image_tokens * square**2 * settings.max_pixels_tolerance)


def _size(height: int, width: int, settings: Any) -> tuple[int, int]:
    """Height and width in whole squares, of which a picture has neither too many nor too few."""
    square, fewest, most = _square(settings), settings.min_image_tokens, settings.max_image_tokens
    rows, columns = (max(1, round(length / square)) for length in (height, width))
    if rows * columns > most:
        shrink = math.sqrt(height * width / (most * square**2))
        rows, columns = (max(1, math.floor(length / shrink / square)) for length in (height, width))
    elif rows * columns < fewest:
        grow = math.sqrt(fewest * square**2 / (height * width))
        rows, columns = (math.ceil(length * grow / square) for length in (height, width))
    return rows * square, columns * square


def _grid(height: int, width: int, settings: Any) -> tuple[int, int]:
    """Columns and rows of tiles."""
    least, most = settings.min_tiles, settings.max_tiles
    counts = range(1, most + 1)
    grids = [(columns, rows) for columns in counts for rows in counts if least <= columns * rows <= most]
    grids.sort(key=math.prod)
    return closest(width / height, height * width / settings.tile_size**2, grids)
