"""Pictures of H2OVL-Mississippi: tiles of two grids of one size, and the whole in that size behind them."""

from typing import Any, ClassVar

from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from .base import Scaling, TiledImages
from .tiles import Pixels, closest, cut, grids

_LEAST_OF_SECOND = 3
"""Tiles of the second grid."""


class H2OVLArguments(ImagesKwargs, total=False):
    min_patches: int
    max_patches: int
    use_msac: bool


class H2OVLImages(TiledImages):
    valid_kwargs = H2OVLArguments
    resample = 3  # bicubic
    image_mean = IMAGENET_DEFAULT_MEAN
    image_std = IMAGENET_DEFAULT_STD
    size: ClassVar = {"height": 448, "width": 448}
    min_patches = 1
    max_patches = 6
    use_msac = True
    """Whether there is a second grid, none of whose sides divides that of the first."""
    low_detail: ClassVar = {"max_patches": 1, "min_patches": 1, "use_msac": False}

    def tiles(self, picture: Pixels, scaling: Scaling, settings: Any) -> list[Pixels]:
        side, least, most = settings.size.height, settings.min_patches, settings.max_patches
        _, height, width = picture.shape
        ratio, pixels = width / height, width * height / side**2
        first = closest(ratio, pixels, grids(1 if settings.use_msac else least, most))
        found = _tiles(picture, first, side, scaling)
        if settings.use_msac:
            others = [grid for grid in grids(_LEAST_OF_SECOND, most) if first[0] % grid[0] and first[1] % grid[1]]
            found = _tiles(picture, closest(ratio, pixels, others), side, scaling) + found
        return [*found, scaling.resized(picture, side, side)]


def _tiles(picture: Pixels, grid: tuple[int, int], side: int, scaling: Scaling) -> list[Pixels]:
    """Those of a grid of columns and rows; none of a single one, which is the whole."""
    columns, rows = grid
    if columns * rows == 1:
        return []
    return [*cut(scaling.resized(picture, rows * side, columns * side), rows, columns)]
