"""Pictures of Pix2Struct: in their own shape, as large as so many patches allow, and normed each by itself."""

from typing import Any

import numpy as np
from PIL import Image
from transformers.processing_utils import ImagesKwargs

from ..processor_options import LOW_DETAIL_PIXELS
from .base import OwnImages, Scaling
from .tiles import Pixels, Values, exactly_resized


class Pix2StructArguments(ImagesKwargs, total=False):
    max_patches: int


class Pix2StructImages(OwnImages):
    """transformers' own needs torch, and hands patches over instead of pixels."""

    valid_kwargs = Pix2StructArguments
    do_resize = False  # to a size that is given
    resample = 2  # bilinear
    image_mean = [0.0] * 3  # each picture has its own
    image_std = [1.0] * 3
    max_patches = 2048
    patch_size = {"height": 16, "width": 16}  # noqa: RUF012

    @property
    def low_detail(self) -> dict[str, int]:
        return {"max_patches": LOW_DETAIL_PIXELS // self._side**2}

    @property
    def _side(self) -> int:
        return int(self.patch_size["height"])

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        (picture,) = images
        return {"pixel_values": enlarged(normed_alone(picture), settings.max_patches, self._side)[None]}


def normed_alone(picture: Pixels) -> Values:
    """With the mean 0 and the deviation 1 over all values; one of a single colour stays nearly 0."""
    values = picture.astype(np.float32)
    found: Values = (values - values.mean()) / np.float32(max(values.std(), values.size**-0.5))
    return found


def enlarged(values: Values, most: int, side: int) -> Values:
    """[channels, height, width] in whole patches of ``side``, ``most`` at most, in nearly the same shape."""
    _, height, width = values.shape
    scale = (most * (side / height) * (side / width)) ** 0.5
    rows, columns = (max(min(int(scale * length / side), most), 1) for length in (height, width))
    return exactly_resized(values, rows * side, columns * side, Image.Resampling.BILINEAR)
