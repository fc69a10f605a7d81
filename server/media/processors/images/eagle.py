"""Pictures of Eagle 2.5: tiles of one size, and the whole in that size behind them."""

from typing import Any, ClassVar, Final

from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import Scaling, TiledImages
from .tiles import Pixels, cut, grids

_ENOUGH: Final = 0.6
"""Fraction of a picture's pixels above which more pixels in tiles are no advantage."""


class EagleArguments(ImagesKwargs, total=False):
    max_dynamic_tiles: int
    min_dynamic_tiles: int
    use_thumbnail: bool


class EagleImages(TiledImages):
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

    def tiles(self, picture: Pixels, scaling: Scaling, settings: Any) -> list[Pixels]:
        size, least, most = settings.size, settings.min_dynamic_tiles, settings.max_dynamic_tiles
        _, height, width = picture.shape
        columns, rows = canvas(height, width, size.height, least, most)
        found = [*cut(scaling.resized(picture, rows * size.height, columns * size.width), rows, columns)]
        whole = settings.use_thumbnail and len(found) > 1
        return [*found, scaling.resized(picture, size.height, size.width)] if whole else found


def canvas(height: int, width: int, tile: int, least: int, most: int) -> tuple[int, int]:
    """Columns and rows of ``least`` to ``most`` tiles: those that distort a picture the least, among those with enough
    of its pixels. Of two that are equal the one with fewer tiles."""
    ratio = width / height

    def fit(grid: tuple[int, int]) -> float:
        wanted, area = grid[0] / grid[1], grid[0] * grid[1] * tile * tile / (width * height)
        return min(area, _ENOUGH) * min(wanted / ratio, ratio / wanted)

    return max(grids(least, most), key=fit)
