"""Pictures of Step 3.7: the whole in one size, and squares of it before, whose size depends on the picture's shape."""

import math
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from ...decoding.decoded import DecodedLimits
from .base import OwnImages, Scaling
from .tiles import Pixels, cut, filled_up

_NARROW: Final = 32
"""Pixels on the short side below which a picture of an extreme shape is filled up to a square."""
_MOST_FILLED: Final = math.isqrt(DecodedLimits().pixels)
"""Pixels on each side of such a square: as many as any picture may have."""


class StepArguments(ImagesKwargs, total=False):
    max_image_size: int


class StepImages(OwnImages):
    valid_kwargs = StepArguments
    kept_as_lists = ("patch_newline_masks",)
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

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side = settings.size.height
        wholes: list[Pixels] = []
        squares: list[Pixels] = []
        ends: list[list[bool]] = []
        for picture in images:
            _, height, width = picture.shape
            layout = laid_out(height, width, side, self.patch_size, settings.max_image_size)
            if layout.filled:
                longer = max(height, width)
                if longer > _MOST_FILLED:
                    raise ValueError(
                        f"it is filled up to a square: it has {longer} pixels in a row, expected at most {_MOST_FILLED}"
                    )
                picture = filled_up(picture, longer, longer)
            whole = scaling.resized(picture, *layout.whole)
            wholes.append(scaling.resized(whole, side, settings.size.width))
            if layout.rows:
                canvas = scaling.resized(picture, *layout.canvas)
                found = cut(canvas, layout.rows, layout.columns)
                squares += [scaling.resized(each, self.patch_size, self.patch_size) for each in found]
            last = layout.columns - 1
            places = ((row, column) for row in range(layout.rows) for column in range(layout.columns))
            ends.append([column == last and row < layout.rows - 1 for row, column in places])
        data: dict[str, Any] = {
            "pixel_values": np.stack([scaling.normed(whole) for whole in wholes]),
            "num_local_patches": [len(each) for each in ends],
            "patch_newline_masks": ends,
        }
        if squares:
            data["pixel_values_local"] = np.stack([scaling.normed(square) for square in squares])
        return data


class Layout(NamedTuple):
    filled: bool
    """Whether the picture is first filled up to a square."""
    whole: tuple[int, int]
    """Height and width in pixels, before all pictures are resized to one size."""
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
