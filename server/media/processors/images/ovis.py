"""Pictures of Ovis 2.5: their own aspect ratio, scaled to the model's range of pixels, as patches in squares."""

import math
from typing import Any

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages, Scaling
from .tiles import Pixels

_LONGEST = 200
"""Times as long as it is wide a picture is at most."""


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
