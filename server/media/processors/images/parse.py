"""Pictures of Nemotron Parse: in the middle of a white page of one size."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import OwnImages, Scaling
from .tiles import Pixels

_WHITE = 255
_UNIT = 2048
"""What the shares of two pixels add up to."""
_Whole = NDArray[np.int64]


class ParseImages(OwnImages):
    resample = 2  # bilinear, as OpenCV has it
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    size = {"height": 2048, "width": 1648}  # noqa: RUF012

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        height, width = settings.size.height, settings.size.width
        return {"pixel_values": np.stack([scaling.normed(on_page(picture, height, width)) for picture in images])}


def on_page(picture: Pixels, height: int, width: int) -> Pixels:
    """The picture, made smaller if it is larger than the page, with white around it."""
    rows, columns = picture.shape[1:]
    ratio = columns / rows
    if rows > height:
        rows, columns = height, max(1, int(height * ratio))
    if columns > width:
        rows, columns = max(1, int(width / ratio)), width
    picture = bilinear(picture, rows, columns)
    down, across = height - rows, width - columns
    margins = ((0, 0), (down // 2, down - down // 2), (across // 2, across - across // 2))
    return np.pad(picture, margins, constant_values=_WHITE)


def bilinear(picture: Pixels, rows: int, columns: int) -> Pixels:
    """Between the nearest four pixels, however much smaller, with OpenCV's whole numbers."""
    if picture.shape[1:] == (rows, columns):
        return picture
    left, right, of_left, of_right = _pairs(picture.shape[2], columns)
    above, below, of_above, of_below = (each[:, None] for each in _pairs(picture.shape[1], rows))
    values = picture.astype(np.int64)
    lines = values[:, :, left] * of_left + values[:, :, right] * of_right >> 4
    found = (lines[:, above[:, 0]] * of_above >> 16) + (lines[:, below[:, 0]] * of_below >> 16)
    return (found + 2 >> 2).astype(np.uint8)


def _pairs(length: int, count: int) -> tuple[_Whole, _Whole, _Whole, _Whole]:
    """Two of ``length`` pixels for each of ``count``, and their shares."""
    at = ((np.arange(count) + 0.5) * (length / count) - 0.5).astype(np.float32).clip(0, length - 1)
    first = np.floor(at).astype(np.int64)
    share = at - first.astype(np.float32)
    shares = (np.rint(part * _UNIT).astype(np.int64) for part in (1 - share, share))
    return first, np.minimum(first + 1, length - 1), *shares
