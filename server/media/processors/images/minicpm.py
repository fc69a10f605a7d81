"""Pictures of MiniCPM-OCR: those of MiniCPM-V 4.6 with four times as many embeddings. And those of MiniCPM-V 2.6 to
4.5, whose sides are not made of squares of patches."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from transformers import MiniCPMV4_6ImageProcessorPil
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPilKwargs


class MiniCPMOcrArguments(MiniCPMV4_6ImageProcessorPilKwargs, total=False):
    small_image_upsize: str


class MiniCPMOcrImages(MiniCPMV4_6ImageProcessorPil):
    valid_kwargs = MiniCPMOcrArguments
    downsample_mode = "4x"
    small_image_upsize = "always"

    def __init__(self, **settings: Any) -> None:
        """Raises ValueError for settings that look at glyphs."""
        super().__init__(**settings)
        if self.small_image_upsize != "always":
            raise ValueError(f"small_image_upsize is {self.small_image_upsize!r}, expected 'always'")


_PUBLISHED: Final[Mapping[str, str]] = {"norm_mean": "image_mean", "norm_std": "image_std"}
"""Fields of published files, and their names in transformers."""


class MiniCPMVImages(MiniCPMV4_6ImageProcessorPil):
    """Slices of patches row by row, with the rows and columns of each."""

    low_detail: Mapping[str, object] = {"slice_mode": False}
    image_feature_size = 64
    im_start, im_end, slice_start, slice_end, unk = "<image>", "</image>", "<slice>", "</slice>", "<unk>"
    im_id_start, im_id_end = "<image_id>", "</image_id>"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{_PUBLISHED.get(name, name): value for name, value in settings.items()})

    def find_best_resize(
        self,
        image_size: tuple[int, int],
        scale_resolution: int,
        patch_size: int,
        downsample_mode: str,
        allow_upscale: bool = False,
    ) -> tuple[int, int]:
        """Height and width in whole patches: nothing is merged, where MiniCPM-V 4.6 merges squares of 4 a side."""
        height, width = image_size
        if allow_upscale or height * width > scale_resolution**2:
            ratio = width / height
            height = int(scale_resolution / math.sqrt(ratio))
            width = int(height * ratio)
        return _whole(height, patch_size), _whole(width, patch_size)

    def _preprocess(self, *images: Any, **arguments: Any) -> Any:
        found = super()._preprocess(*images, **arguments)
        strip, sizes = np.asarray(found.pop("pixel_values"))[0], np.asarray(found.pop("target_sizes"))
        channels, patch, _ = strip.shape
        found["pixel_values"] = strip.reshape(channels, patch, -1, patch).transpose(2, 0, 1, 3)
        found["image_grid_thw"] = np.concatenate((np.ones((len(sizes), 1), np.int64), sizes), axis=1)
        return found


def _whole(length: float, patch: int) -> int:
    """The nearest number of pixels in whole patches."""
    return max(round(length / patch), 1) * patch
