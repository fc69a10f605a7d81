"""Pictures of Inkling: squares of the picture in its own size, row by row, with one more square behind each row."""

from typing import Any, ClassVar

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, Values

_BEHIND = -1.0
"""What stands for the value of a pixel outside of the picture."""
_FRAMES = 2
"""Times that a still picture is seen."""


class InklingArguments(ImagesKwargs, total=False):
    rescale_image_frac: float | None
    rescale_image_max_upscaled_long_edge: int | None


class InklingImages(OwnImages):
    valid_kwargs = InklingArguments
    kept_as_lists = ("num_patches",)
    resample = 1  # Lanczos
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    size: ClassVar = {"height": 40, "width": 40}
    """Of a square."""
    rescale_image_frac = None
    """Factor on a picture's sides before it is cut; None: 1."""
    rescale_image_max_upscaled_long_edge = 2048
    """Longest side in pixels that a picture may be enlarged to."""

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side = settings.size.height
        if side != settings.size.width:
            raise ValueError(f"its squares have {side} times {settings.size.width} pixels, expected as many")
        most = settings.rescale_image_max_upscaled_long_edge
        found = [
            squares(_enlarged(picture, scaling, settings.rescale_image_frac, most), side, scaling) for picture in images
        ]
        whole = np.concatenate(found)[:, None].repeat(_FRAMES, axis=1)
        return {"pixel_values": whole, "num_patches": [len(each) for each in found]}


def _enlarged(picture: Pixels, scaling: Scaling, factor: float | None, most: int | None) -> Pixels:
    """The picture with sides times ``factor``, but not enlarged beyond ``most`` pixels on its longer side."""
    _, height, width = picture.shape
    if factor is None:
        return picture
    longest = max(height, width)
    wanted = longest * factor if most is None else min(longest * factor, max(most, longest))
    ratio = wanted / longest
    return scaling.resized(picture, *(int(np.floor(length * ratio + 0.5)) for length in (height, width)))


def squares(picture: Pixels, side: int, scaling: Scaling) -> Values:
    """[squares, side, side, channels], float32"""
    channels, height, width = picture.shape
    rows, columns = -(-height // side), width // side + 1
    canvas = np.full((channels, rows * side, columns * side), _BEHIND, np.float32)
    canvas[:, :height, :width] = picture
    cut = scaling.normed(canvas).reshape(channels, rows, side, columns, side)
    return cut.transpose(1, 3, 2, 4, 0).reshape(rows * columns, side, side, channels)
