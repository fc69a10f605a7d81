"""Pictures of Step 3.7: the whole in one size, and squares of it before, whose size depends on the picture's shape."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import OwnImages
from .tiles import Pixels, cut, filled_up, normed, resized

_NARROW = 32
"""Pixels on the short side below which a picture of an extreme shape is filled up to a square."""


class StepArguments(ImagesKwargs, total=False):
    max_image_size: int


class StepImages(OwnImages):
    valid_kwargs = StepArguments
    resample = 2  # bilinear
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    size: ClassVar = {"height": 728, "width": 728}
    max_image_size = 3024
    """Longest side in pixels."""
    low_detail: ClassVar = {"max_image_size": 728}
    patch_size = 504
    """Pixels on each side of a square."""
    vision_patch_size = 14
    downsampler_stride = 4

    def _preprocess(  # type: ignore[override]
        self,
        images: list[Pixels],
        size: Any,
        resample: int,
        rescale_factor: float,
        image_mean: list[float],
        image_std: list[float],
        max_image_size: int,
        return_tensors: str | None,
        **_: Any,
    ) -> BatchFeature:
        wholes: list[Pixels] = []
        squares: list[Pixels] = []
        ends: list[list[bool]] = []
        for picture in images:
            _, height, width = picture.shape
            layout = laid_out(height, width, size.height, self.patch_size, max_image_size)
            if layout.filled:
                picture = filled_up(picture, max(height, width), max(height, width))
            whole = resized(picture, *layout.whole, resample)
            wholes.append(resized(whole, size.height, size.width, resample))
            if layout.rows:
                canvas = resized(picture, *layout.canvas, resample)
                found = cut(canvas, layout.rows, layout.columns)
                squares += [resized(each, self.patch_size, self.patch_size, resample) for each in found]
            last = layout.columns - 1
            places = ((row, column) for row in range(layout.rows) for column in range(layout.columns))
            ends.append([column == last and row < layout.rows - 1 for row, column in places])
        data: dict[str, Any] = {
            "pixel_values": np.stack([normed(whole, rescale_factor, image_mean, image_std) for whole in wholes]),
            "num_local_patches": [len(each) for each in ends],
        }
        if squares:
            values = [normed(square, rescale_factor, image_mean, image_std) for square in squares]
            data["pixel_values_local"] = np.stack(values)
        made = BatchFeature(data, tensor_type=return_tensors)
        made["patch_newline_masks"] = ends  # for the text alone
        return made


class Layout(NamedTuple):
    filled: bool
    """Whether the picture is first filled up to a square."""
    whole: tuple[int, int]
    """Height and width in pixels, before those of all pictures."""
    canvas: tuple[int, int]
    """Of what is cut into squares."""
    rows: int
    """Of squares; 0: none."""
    columns: int


def laid_out(height: int, width: int, side: int, square: int, most: int) -> Layout:
    """How a picture is cut. ``side``: of the whole. ``square``: of its squares. ``most``: longest side of a picture."""
    filled = min(width, height) < _NARROW and max(width / height, height / width) > 4
    if filled:
        width = height = max(width, height)
    if max(height, width) > most:
        scale = most / max(height, width)
        width, height = int(width * scale), int(height * scale)
    short, long = min(height, width), max(height, width)
    if long <= side:
        window = short if long / short > 1.5 else 0
    else:
        window = min(short, square) if long / short > 4 else square
    if not window:
        return Layout(filled, (height, width), (0, 0), 0, 0)
    canvas = _snapped(height, window), _snapped(width, window)
    return Layout(filled, (height, width), canvas, *(max(1, edge // window) for edge in canvas))


def _snapped(edge: int, window: int) -> int:
    """The next multiple of the window's size up from a fifth of it; an edge below the window as it is."""
    whole, rest = divmod(edge, window)
    return window * (whole + (rest > 0.2 * window)) if whole else edge
