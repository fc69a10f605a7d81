"""Pictures of Muse Glimmer and Muse Spark: patches of the picture in the grid nearest to its shape."""

import itertools
import math
from typing import Any

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages, Scaling
from .tiles import Pixels


class MuseArguments(ImagesKwargs, total=False):
    max_image_tokens: int


class MuseImages(OwnImages):
    valid_kwargs = MuseArguments
    resample = 1  # Lanczos
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    patch_size = 14
    temporal_patch_size = 2
    """Times that a picture is seen."""
    merge_size = 2
    max_image_tokens = 4096

    def _validate_preprocess_kwargs(self, *_: Any, **settings: Any) -> None:
        super()._validate_preprocess_kwargs(**{**settings, "do_resize": False})  # which would want a size

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side = self.patch_size
        found, grids = [], []
        for picture in images:
            _, height, width = picture.shape
            rows, columns = grid_of(height, width, side * self.merge_size, settings.max_image_tokens)
            rows, columns = rows * self.merge_size, columns * self.merge_size
            values = scaling.normed(scaling.resized(picture, rows * side, columns * side))
            patches = values.reshape(-1, rows, side, columns, side).transpose(1, 3, 0, 2, 4)
            patches = np.repeat(patches.reshape(rows * columns, 1, -1), self.temporal_patch_size, axis=1)
            found.append(patches.reshape(rows * columns, -1))
            grids.append([1, rows, columns])
        return {"pixel_values": np.concatenate(found), "image_grid_thw": np.array(grids)}


def grid_of(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Rows and columns of squares of ``side`` pixels, ``most`` in all, that are nearest to the picture's shape."""
    rows, columns = height / side, width / side
    if rows * columns > most:
        ratio = columns / rows
        rows = (most / ratio) ** 0.5
        columns = rows * ratio
    # in the order of a set, as in transformers, where several are equally near
    grids = {*itertools.product((math.floor(rows), math.ceil(rows)), (math.floor(columns), math.ceil(columns)))}
    fitting = [grid for grid in grids if min(grid) >= 1 and grid[0] * grid[1] <= most]
    if not fitting:
        fitting = [(max(1, round(rows)), max(1, round(columns)))]
    return min(fitting, key=lambda grid: abs(grid[0] / grid[1] - height / width))
