"""Pictures of openPangu and Kanana V: Qwen2-VL's patches, of which small pictures are enlarged first."""

from typing import Any, Final

import numpy as np
import transformers as untyped_transformers
from PIL import Image

from .tiles import Pixels

transformers: Any = untyped_transformers

_SMALL: Final = 28
"""A side of a picture that openPangu enlarges."""
_ENLARGED: Final = 56
"""Its shorter side then."""
_LONGEST: Final = 200
"""Ratio of sides up to which Qwen2-VL takes pictures."""


class PanguImages(transformers.Qwen2VLImageProcessorPil):  # type: ignore[misc]  # untyped
    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "temporal_patch_size": 2})  # files say 1, and the tower repeats the picture

    def resize(self, image: Pixels, size: Any, resample: Any, factor: int, **settings: Any) -> Pixels:
        if min(image.shape[-2:]) <= _SMALL:
            image = _enlarged(image, _ENLARGED)
        made: Pixels = super().resize(image, size, resample, factor, **settings)
        return made


class KananaImages(transformers.Qwen2VLImageProcessorPil):  # type: ignore[misc]  # untyped
    def resize(self, image: Pixels, size: Any, resample: Any, factor: int, **settings: Any) -> Pixels:
        if min(image.shape[-2:]) < factor:
            image = _enlarged(image, factor)
        made: Pixels = super().resize(image, size, resample, factor, **settings)
        return made


def _enlarged(image: Pixels, side: int) -> Pixels:
    """image [channels, rows, columns] with a shorter side of ``side`` pixels. Raises ValueError for one so long that
    Qwen2-VL's sizes refuse it in any case: enlarged first, it could fill the memory."""
    short, long = sorted(image.shape[-2:])
    if long > _LONGEST * short:
        raise ValueError(f"its sides of {long} and {short} pixels differ by more than {_LONGEST} times")
    scale = side / short
    height, width = (max(side, int(scale * each)) for each in image.shape[-2:])
    drawn = Image.fromarray(np.moveaxis(image, 0, -1)).resize((width, height), Image.Resampling.BICUBIC)
    return np.moveaxis(np.asarray(drawn), -1, 0)
