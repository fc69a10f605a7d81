"""Pictures of LFM2-VL: one of any shape, or tiles of one size with a smaller whole behind them; as patches, filled up
to one number for all."""

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
from transformers import Lfm2VlProcessor as _Lfm2VlProcessor
from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages
from .tiles import Pixels, cut, normed, patches, resized


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


class _Look(NamedTuple):
    """How a picture is looked at."""

    patch: int
    """Pixels on each side."""
    square: int
    """Pixels on each side of one embedding's area."""
    fewest: int
    """Embeddings."""
    most: int
    tolerance: float
    """Factor of the most embeddings above which a picture is cut into tiles."""
    tile: int
    """Pixels on each side; 0: it is never cut."""
    least_tiles: int
    most_tiles: int


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

    def _preprocess(  # type: ignore[override]
        self,
        images: list[Pixels],
        resample: int,
        rescale_factor: float,
        image_mean: list[float],
        image_std: list[float],
        downsample_factor: int,
        do_image_splitting: bool,
        min_tiles: int,
        max_tiles: int,
        use_thumbnail: bool,
        min_image_tokens: int,
        max_image_tokens: int,
        encoder_patch_size: int,
        tile_size: int,
        max_pixels_tolerance: float,
        return_row_col_info: bool,
        return_tensors: str | None,
        **_: Any,
    ) -> BatchFeature:
        splits = do_image_splitting and not min_tiles == max_tiles == 1
        look = _Look(
            encoder_patch_size,
            encoder_patch_size * downsample_factor,
            min_image_tokens,
            max_image_tokens,
            max_pixels_tolerance,
            tile_size if splits else 0,
            min_tiles,
            max_tiles,
        )
        seen: list[Pixels] = []
        grids, sizes = [], []
        for picture in images:
            found, grid, size = _seen(picture, look, resample, with_whole=use_thumbnail)
            seen += found
            grids.append(grid)
            sizes.append(size)
        shapes = np.array([[length // encoder_patch_size for length in each.shape[1:]] for each in seen])
        longest = max(
            max_image_tokens * downsample_factor**2,
            (tile_size // encoder_patch_size) ** 2 if do_image_splitting else 0,
            int(shapes.prod(axis=1).max()),  # a picture of one row may have more
        )
        values = np.zeros((len(seen), longest, 3 * encoder_patch_size**2), np.float32)
        mask = np.zeros((len(seen), longest), np.int64)
        for number, each in enumerate(seen):
            there = patches(normed(each, rescale_factor, image_mean, image_std), encoder_patch_size)
            values[number, : len(there)] = there
            mask[number, : len(there)] = 1
        made: dict[str, Any] = {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes}
        if return_row_col_info:
            made |= {"image_rows": [rows for rows, _ in grids], "image_cols": [columns for _, columns in grids]}
            made["image_sizes"] = [list(size) for size in sizes]
        return BatchFeature(made, tensor_type=return_tensors)


def _seen(
    picture: Pixels, look: _Look, resample: int, *, with_whole: bool
) -> tuple[list[Pixels], tuple[int, int], tuple[int, int]]:
    """The model's input for a picture, its rows and columns of tiles, and the size of its thumbnail."""
    height, width = picture.shape[1:]
    size = _size(height, width, look)
    if not look.tile or not _too_large(height, width, look):
        return [resized(picture, *size, resample)], (1, 1), size
    columns, rows = _grid(height, width, look)
    tiles = [*cut(resized(picture, rows * look.tile, columns * look.tile, resample), rows, columns)]
    if with_whole and len(tiles) > 1:
        tiles.append(resized(picture, *size, resample))
    return tiles, (rows, columns), size


def _too_large(height: int, width: int, look: _Look) -> bool:
    rows, columns = (max(look.patch, round(length / look.square) * look.square) for length in (height, width))
    return rows * columns > look.most * look.square**2 * look.tolerance


def _size(height: int, width: int, look: _Look) -> tuple[int, int]:
    """Height and width in whole squares, of which a picture has neither too many nor too few."""
    square = look.square
    rows, columns = (max(1, round(length / square)) for length in (height, width))
    if rows * columns > look.most:
        shrink = math.sqrt(height * width / (look.most * square**2))
        rows, columns = (max(1, math.floor(length / shrink / square)) for length in (height, width))
    elif rows * columns < look.fewest:
        grow = math.sqrt(look.fewest * square**2 / (height * width))
        rows, columns = (math.ceil(length * grow / square) for length in (height, width))
    return rows * square, columns * square


def _grid(height: int, width: int, look: _Look) -> tuple[int, int]:
    """Columns and rows of tiles, most nearly in the picture's shape; of two alike the larger one, where the picture has
    more than half of its pixels."""
    most = range(1, look.most_tiles + 1)
    grids = [
        (columns, rows) for columns in most for rows in most if look.least_tiles <= columns * rows <= look.most_tiles
    ]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    best, nearest = (1, 1), math.inf
    for columns, rows in grids:
        off = abs(width / height - columns / rows)
        if off < nearest:
            best, nearest = (columns, rows), off
        elif off == nearest and height * width > 0.5 * look.tile**2 * columns * rows:
            best = columns, rows
    return best
