"""Pictures of Eagle 2.5: tiles of one size, and the whole in that size behind them."""

from typing import Any, ClassVar, Final

import numpy as np
from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages
from .tiles import Pixels, cut, normed, resized

_ENOUGH: Final = 0.6
"""Fraction of a picture's pixels above which more pixels in tiles are no advantage."""


class EagleArguments(ImagesKwargs, total=False):
    max_dynamic_tiles: int
    min_dynamic_tiles: int
    use_thumbnail: bool


class EagleImages(OwnImages):
    valid_kwargs = EagleArguments
    resample = 3  # bicubic
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size: ClassVar = {"height": 448, "width": 448}
    max_dynamic_tiles = 12
    min_dynamic_tiles = 1
    use_thumbnail = True
    pad_during_tiling = False
    low_detail: ClassVar = {"max_dynamic_tiles": 1, "min_dynamic_tiles": 1}

    def _preprocess(  # type: ignore[override]
        self,
        images: list[Pixels],
        size: Any,
        resample: int,
        rescale_factor: float,
        image_mean: list[float],
        image_std: list[float],
        max_dynamic_tiles: int,
        min_dynamic_tiles: int,
        use_thumbnail: bool,
        return_tensors: str | None,
        **_: Any,
    ) -> BatchFeature:
        tiles: list[Pixels] = []
        counts = []
        for picture in images:
            _, height, width = picture.shape
            columns, rows = canvas(height, width, size.height, min_dynamic_tiles, max_dynamic_tiles)
            found = [*cut(resized(picture, rows * size.height, columns * size.width, resample), rows, columns)]
            if use_thumbnail and len(found) > 1:
                found.append(resized(picture, size.height, size.width, resample))
            tiles += found
            counts.append(len(found))
        values = np.stack([normed(tile, rescale_factor, image_mean, image_std) for tile in tiles])
        return BatchFeature({"pixel_values": values, "num_patches": counts}, tensor_type=return_tensors)


def canvas(height: int, width: int, tile: int, least: int, most: int) -> tuple[int, int]:
    """Columns and rows of ``least`` to ``most`` tiles: those that distort a picture the least, among those with enough
    of its pixels. Of two that are equal the one with fewer tiles."""
    # the order of those with as many tiles is that of a set, as in the published processor
    grids = {
        (columns, rows)
        for count in range(least, most + 1)
        for columns in range(1, count + 1)
        for rows in range(1, count + 1)
        if least <= columns * rows <= most
    }
    ratio = width / height

    def fit(grid: tuple[int, int]) -> float:
        wanted, area = grid[0] / grid[1], grid[0] * grid[1] * tile * tile / (width * height)
        return min(area, _ENOUGH) * min(wanted / ratio, ratio / wanted)

    return max(sorted(grids, key=lambda grid: grid[0] * grid[1]), key=fit)
