"""Pictures of Inkling: squares of the picture in its own size, row by row, with one more square behind each row; of
Inkling 2 without it, and on a checkerboard where they are transparent."""

from typing import Any, ClassVar

import numpy as np
from PIL import Image
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, Values

_BEHIND = -1.0
"""What stands for the value of a pixel outside of the picture."""
_FRAMES = 2
"""Times that a still picture is seen."""
_CHECK, _GREYS = 8, (204, 153)
"""Side of the squares of a checkerboard in pixels, and their two values; that of the first corner is first."""


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
        side = _side(settings)
        most = settings.rescale_image_max_upscaled_long_edge
        found = [
            squares(_enlarged(picture, scaling, settings.rescale_image_frac, most), side, scaling, beyond=1)
            for picture in images
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


class Inkling2Images(OwnImages):
    resample = 1  # asked for by the base, though nothing is resized
    image_mean = image_std = (0.5, 0.5, 0.5)
    size: ClassVar = {"height": 40, "width": 40}
    """Of a square."""

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side = _side(settings)
        found = [squares(picture, side, scaling) for picture in images]
        grids = [[1, *(-(-length // side) for length in picture.shape[1:])] for picture in images]
        return {"pixel_values": np.concatenate(found), "image_grid_thw": np.array(grids)}

    @staticmethod
    def opaque(picture: Image.Image) -> Image.Image:
        """A picture in RGBA on a checkerboard, in RGB."""
        values = np.asarray(picture).astype(np.int32)
        alpha = values[:, :, 3:]
        rows, columns = (np.arange(length) // _CHECK for length in values.shape[:2])
        behind = np.where((rows[:, None] + columns) % 2 == 0, *_GREYS)[:, :, None]
        mixed = (values[:, :, :3] * alpha + behind * (255 - alpha) + 127) // 255
        return Image.fromarray(mixed.astype(np.uint8))


def _side(settings: Any) -> int:
    """Of a square, in pixels."""
    side = int(settings.size.height)
    if side != settings.size.width:
        raise ValueError(f"its squares have {side} times {settings.size.width} pixels, expected as many")
    return side


def squares(picture: Pixels, side: int, scaling: Scaling, *, beyond: int = 0) -> Values:
    """[squares, side, side, channels], float32, of which each row has those that cover the picture; with ``beyond``,
    one more where they end with it."""
    channels, height, width = picture.shape
    rows, columns = -(-height // side), -(-(width + beyond) // side)
    canvas = np.full((channels, rows * side, columns * side), _BEHIND, np.float32)
    canvas[:, :height, :width] = picture
    cut = scaling.normed(canvas).reshape(channels, rows, side, columns, side)
    return cut.transpose(1, 3, 2, 4, 0).reshape(rows * columns, side, side, channels)
