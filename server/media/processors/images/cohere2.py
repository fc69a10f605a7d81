"""Pictures of Command A Vision: tiles of one size, and the whole in that size behind them."""

from typing import Any, ClassVar

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, cut


class Cohere2VisionArguments(ImagesKwargs, total=False):
    crop_to_patches: bool
    max_patches: int


class Cohere2VisionImages(OwnImages):
    valid_kwargs = Cohere2VisionArguments
    resample = 3  # bicubic
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    size: ClassVar = {"height": 512, "width": 512}
    crop_to_patches = True
    max_patches = 12
    patch_size = 16
    """Embeddings on each side of a tile."""

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        size = settings.size
        tiles: list[Pixels] = []
        counts = []
        for picture in images:
            _, height, width = picture.shape
            columns, rows = canvas(height, width, size.height, settings.max_patches if settings.crop_to_patches else 1)
            whole = scaling.resized(picture, rows * size.height, columns * size.width)
            found = [*cut(whole, rows, columns)]
            if len(found) > 1:
                found.append(scaling.resized(picture, size.height, size.width))
            tiles += found
            counts.append(len(found))
        return {"pixel_values": np.stack([scaling.normed(tile) for tile in tiles]), "num_patches": counts}


def canvas(height: int, width: int, tile: int, most: int) -> tuple[int, int]:
    """Columns and rows of at most ``most`` tiles: those that enlarge a picture the least, or, if it is larger than all,
    that shrink it the least."""
    grids = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most + 1) if columns * rows <= most]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    scales = [min(columns * tile / width, rows * tile / height) for columns, rows in grids]
    enough = [scale for scale in scales if scale >= 1]
    return grids[scales.index(min(enough) if enough else max(scales))]
