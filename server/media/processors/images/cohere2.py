"""Pictures of Command A Vision: tiles of one size, and the whole in that size behind them."""

from typing import Any, ClassVar

from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import Scaling, TiledImages
from .tiles import Pixels, cut


class Cohere2VisionArguments(ImagesKwargs, total=False):
    crop_to_patches: bool
    max_patches: int


class Cohere2VisionImages(TiledImages):
    valid_kwargs = Cohere2VisionArguments
    resample = 3  # bicubic
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    size: ClassVar = {"height": 512, "width": 512}
    crop_to_patches = True
    max_patches = 12
    patch_size = 16
    """Embeddings on each side of a tile."""

    def tiles(self, picture: Pixels, scaling: Scaling, settings: Any) -> list[Pixels]:
        size = settings.size
        _, height, width = picture.shape
        columns, rows = canvas(height, width, size.height, settings.max_patches if settings.crop_to_patches else 1)
        found = [*cut(scaling.resized(picture, rows * size.height, columns * size.width), rows, columns)]
        return [*found, scaling.resized(picture, size.height, size.width)] if len(found) > 1 else found


def canvas(height: int, width: int, tile: int, most: int) -> tuple[int, int]:
    """Columns and rows of at most ``most`` tiles: those that enlarge a picture the least, or, if it is larger than all,
    that shrink it the least."""
    grids = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most + 1) if columns * rows <= most]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    scales = [min(columns * tile / width, rows * tile / height) for columns, rows in grids]
    enough = [scale for scale in scales if scale >= 1]
    return grids[scales.index(min(enough) if enough else max(scales))]
