"""Pictures of Isaac: as large as they are, in whole squares of patches; smaller or larger ones are scaled to bounds."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from ..processor_options import LOW_DETAIL_PIXELS
from .base import OwnImages, Scaling
from .molmo2 import bilinear
from .tiles import Pixels, patches

_CLOSE: Final = 1e-5
"""Width of the interval at which the search of a scale ends, as in the published processor."""
_LARGEST: Final = 100.0
"""Scale beyond which no picture is enlarged."""


class IsaacArguments(ImagesKwargs, total=False):
    max_patches: int
    min_patches: int


class IsaacImages(OwnImages):
    valid_kwargs = IsaacArguments
    do_resize = False  # to a size that is given
    resample = 2  # bilinear
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    max_patches = 6144
    min_patches = 256
    patch_size = 16
    merge_size = 2

    @property
    def low_detail(self) -> dict[str, int]:
        return {"max_patches": LOW_DETAIL_PIXELS // self.patch_size**2}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        values, grids = [], []
        for picture in images:
            bounds = min(settings.min_patches, settings.max_patches), settings.max_patches
            height, width = self.size_of(picture.shape[1], picture.shape[2], *bounds)
            whole = scaling.normed(bilinear(picture, height, width))
            values.append(patches(whole, self.patch_size))
            grids.append([1, height // self.patch_size, width // self.patch_size])
        return {"pixel_values": np.concatenate(values), "image_grid_thw": np.array(grids)}

    def size_of(self, height: int, width: int, least: int, most: int) -> tuple[int, int]:
        """Height and width in pixels, of ``least`` to ``most`` patches if whole squares make as many."""
        square = self.patch_size * self.merge_size

        def scaled(scale: float) -> tuple[int, int]:
            rows, columns = (max(1, int(np.ceil(scale * side / square))) for side in (height, width))
            return rows * square, columns * square

        def count(size: tuple[int, int]) -> int:
            return size[0] * size[1] // self.patch_size**2

        whole = scaled(1.0)
        if count(whole) < least:
            return scaled(_search(1.0, _LARGEST, lambda scale: count(scaled(scale)) < least)[1])
        if count(whole) > most:
            return scaled(_search(_CLOSE / 10, 1.0, lambda scale: count(scaled(scale)) <= most)[0])
        return whole


def _search(low: float, high: float, is_low: Callable[[float], bool]) -> tuple[float, float]:
    """Halve the interval of a scale until it is :data:`_CLOSE`."""
    while high - low >= _CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low, high
