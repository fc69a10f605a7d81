"""Pictures of Nemotron 3 Nano Omni in whole squares of patches, and frames of its videos in one size."""

import math
from typing import Any, ClassVar

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, Values, exactly_resized

_MARKS: int = 4
"""Tokens of the context that the model's files reserve for text."""


class NemotronOmniArguments(ImagesKwargs, total=False):
    patch_size: int
    downsample_ratio: float
    min_num_patches: int
    max_num_patches: int
    max_model_len: int


class NemotronOmniImages(OwnImages):
    valid_kwargs = NemotronOmniArguments
    resample = 3  # bicubic
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    patch_size = 16
    downsample_ratio = 0.5
    min_num_patches = 1024
    max_num_patches = 13312
    max_model_len = 16384
    video_target_num_patches = 1024
    video_maintain_aspect_ratio = True
    do_resize = False  # to a size that is given
    low_detail: ClassVar = {"max_num_patches": 1024}

    def __init__(self, **settings: Any) -> None:
        names = {"norm_mean": "image_mean", "norm_std": "image_std"}  # of published files
        super().__init__(**{names.get(name, name): value for name, value in settings.items()})

    @property
    def merge(self) -> int:
        """Patches on each side of an embedding."""
        return round(1 / self.downsample_ratio)

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        patch, least = settings.patch_size, settings.min_num_patches
        most = (settings.max_model_len - _MARKS) * self.merge**2
        most = max(min(most, settings.max_num_patches or most), least)
        grids = [_grid(each.shape[1], each.shape[2], patch, self.merge, least, most) for each in images]
        parts = []
        for picture, (rows, columns) in zip(images, grids, strict=True):
            values = exactly_resized(picture, rows * patch, columns * patch)
            parts.append(_patches(_normed(values, scaling.factor, scaling.mean, scaling.std), patch))
        return {"pixel_values": np.concatenate(parts), "image_grid_hw": np.array(grids)}

    def frames(self, frames: Any) -> tuple[Values, int]:
        """Frames [frames, height, width, 3] of a video → values [frames, 3, height, width], and the embeddings of each
        two."""
        rows, columns = self._frame_grid(*frames.shape[1:3])
        factor, side = 1 / 255, self.patch_size
        made = [
            _normed(
                exactly_resized(frame.transpose(2, 0, 1), rows * side, columns * side),
                factor,
                self.image_mean,
                self.image_std,
            )
            for frame in frames
        ]
        return np.stack(made), rows * columns // self.merge**2

    def _frame_grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches, about as many as the files say, in the frame's shape or in a square."""
        most, merge = self.video_target_num_patches, self.merge
        if not self.video_maintain_aspect_ratio:
            side = max(merge, math.isqrt(most) // merge * merge)
            return side, side
        shape = width / max(height, 1)
        rows, columns = max(round(math.sqrt(most / shape)), 1), max(round(math.sqrt(most * shape)), 1)
        up, across = (-(-length // merge) * merge for length in (rows, columns))
        if up * across <= most:
            return up, across
        return max(merge, rows // merge * merge), max(merge, columns // merge * merge)


def _grid(height: int, width: int, patch: int, merge: int, least: int, most: int) -> tuple[int, int]:
    """Rows and columns of patches as the picture has them, within both bounds, in whole squares."""
    rows, columns = round(height / patch + 0.5), round(width / patch + 0.5)
    shrink = min(math.sqrt(most / (rows * columns)), 1.0)
    rows, columns = math.floor(shrink * rows), math.floor(shrink * columns)
    if rows == 0 or columns == 0:
        raise ValueError(f"it is too narrow for {most} patches")
    if most > least and rows * columns < least:
        grow = math.sqrt(least / (rows * columns))
        rows, columns = math.ceil(grow * rows), math.ceil(grow * columns)
    rows = _whole(rows, merge, columns, most)
    return rows, _whole(columns, merge, rows, most)


def _whole(length: int, merge: int, other: int, most: int) -> int:
    """``length`` as a multiple of ``merge``: the next one, unless there are too many patches with it."""
    rest = length % merge
    if not rest:
        return length
    up = length + merge - rest
    return up if up * other <= most else max(merge, length - rest)


def _normed(values: Values, factor: float, mean: Any, std: Any) -> Values:
    shape = (-1, 1, 1)
    less, over = (np.asarray(each, np.float32).reshape(shape) for each in (mean, std))
    found: Values = (values * np.float32(factor) - less) / over
    return found


def _patches(values: Values, side: int) -> Values:
    """Squares of ``side`` pixels, row by row, [patches, 3 * side * side]."""
    channels, height, width = values.shape
    found = values.reshape(channels, height // side, side, width // side, side)
    return found.transpose(1, 3, 0, 2, 4).reshape(-1, channels * side * side)
