"""Pictures of DeepSeek V4.1: small ones are made larger, and those that would have too many tokens smaller; what is
then no whole patch is filled up with grey."""

import math
from typing import Any, Final

import numpy as np
from PIL import Image, ImageOps
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from ..processor_options import LOW_DETAIL_PIXELS
from .base import OwnImages, Scaling
from .tiles import Pixels, cut

_GREY: Final = (127, 127, 127)


class DeepseekV41Arguments(ImagesKwargs, total=False):
    max_image_tokens: int


class DeepseekV41Images(OwnImages):
    valid_kwargs = DeepseekV41Arguments
    do_resize = False  # to any size that files could tell
    resample = 3  # bicubic
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    patch_size = 14
    downsample_ratio = 3
    """Patches on each side of the square that is an embedding."""
    max_image_tokens = 1024
    min_pixels = 295_936
    max_wh_ratio: float | None = None
    """A wider picture is squeezed to as many times its height."""

    @property
    def low_detail(self) -> dict[str, int]:
        return {"max_image_tokens": LOW_DETAIL_PIXELS // (self.patch_size * self.downsample_ratio) ** 2}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        values, grids = [], []
        for picture in images:
            _, height, width = picture.shape
            rows, columns = self._grid(height, width, settings.max_image_tokens)
            size = columns * self.patch_size, rows * self.patch_size
            whole = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
            method = Image.Resampling(scaling.resample)
            if self.max_wh_ratio is not None and width >= self.max_wh_ratio * height:
                whole = whole.resize(size, method)
            else:
                whole = ImageOps.pad(whole, size, method, color=_GREY)
            values.append(cut(scaling.normed(np.asarray(whole).transpose(2, 0, 1)), rows, columns))
            grids.append([1, rows, columns])
        return {"pixel_values": np.concatenate(values), "image_grid_thw": np.array(grids)}

    def _grid(self, height: float, width: float, most: int) -> tuple[int, int]:
        """Rows and columns of patches of a picture of so many pixels, which has at most so many tokens."""
        if self.max_wh_ratio is not None:
            width = min(width, height * self.max_wh_ratio)
        if height * width < self.min_pixels:
            larger = math.sqrt(self.min_pixels / (height * width))
            height, width = int(height * larger), int(width * larger)
        rows, columns = (max(1, math.ceil(side / self.patch_size)) for side in (height, width))
        return (rows, columns) if self._tokens(rows, columns) <= most else self._fewer(height, width, most)

    def _tokens(self, rows: int, columns: int) -> int:
        down, across = (-(-patches // self.downsample_ratio) for patches in (rows, columns))
        return down * (across + 1) + 2

    def _fewer(self, height: float, width: float, most: int) -> tuple[int, int]:
        """The most rows and columns of patches that keep the shape and have at most ``most`` tokens. One row or column
        of squares remains of very long shapes."""
        side = self.downsample_ratio
        across = math.sqrt((most - 2) / (height / width) + 0.25) - 0.5
        down = across * height / width
        if across < 1:
            return (most - 2) // 2 * side, side
        if down < 1:
            return side, (most - 3) * side
        cell = self.patch_size * side
        scale = min(math.floor(across) * cell / width, math.floor(down) * cell / height)
        return math.floor(height * scale / self.patch_size), math.floor(width * scale / self.patch_size)
