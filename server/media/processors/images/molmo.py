"""Pictures of Molmo: the whole in one square, then overlapping squares of a canvas, each with black around the picture,
and how much of each patch is picture."""

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import OwnImages, Scaling
from .molmo2 import tiling
from .tiles import Pixels, Values, exactly_resized

_UNKNOWN: Final = -1.0
"""The share of the last square's patches, which counts as a part."""


class MolmoArguments(ImagesKwargs, total=False):
    max_crops: int


class MolmoImages(OwnImages):
    valid_kwargs = MolmoArguments
    resample = 2  # bilinear
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    size: ClassVar[Any] = {"height": 336, "width": 336}
    """Of a square."""
    max_crops = 12
    low_detail: ClassVar = {"max_crops": 1}
    overlap_margins: ClassVar = [4, 4]
    """Patches at the edges of a square that its neighbours have too: above or on the left, and below or right."""
    patch_size = 14

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        pixels: list[Values] = []
        shares: list[Values] = []
        sizes: list[tuple[int, int]] = []
        for picture in images:
            canvas = self._canvas(picture, min(settings.max_crops, self.max_crops), scaling)
            whole = laid(picture, self.size.height, self.size.width, scaling)
            squares = list(self._corners(canvas.values))
            pixels += [_normed(whole.values, scaling), *(_normed(canvas.values[:, *at], scaling) for at in squares)]
            # as in its authors' code: the shares of each square are given to the one before it
            shares += [self._shares(canvas.real[at]) for at in squares]
            shares.append(np.full_like(shares[-1], _UNKNOWN))
            sizes.append(canvas.real.shape)
        return {"pixel_values": np.stack(pixels), "image_masks": np.stack(shares), "image_sizes": np.array(sizes)}

    @property
    def _margins(self) -> int:
        """Pixels."""
        return sum(self.overlap_margins) * self.patch_size

    def _canvas(self, picture: Pixels, most: int, scaling: Scaling) -> "Laid":
        _, height, width = picture.shape
        margins = self._margins
        window = self.size.height - margins
        rows, columns = tiling(height - margins, width - margins, window, most)
        return laid(picture, rows * window + margins, columns * window + margins, scaling)

    def _corners(self, canvas: Values) -> Iterator[tuple[slice, slice]]:
        """The (rows, columns) of each square, row by row."""
        side = self.size.height
        step = side - self._margins
        _, height, width = canvas.shape
        for top, left in itertools.product(range(0, height - side + 1, step), range(0, width - side + 1, step)):
            yield slice(top, top + side), slice(left, left + side)

    def _shares(self, real: NDArray[np.bool_]) -> Values:
        """How much of each patch is picture, [patches]."""
        count = len(real) // self.patch_size
        squares = real.reshape(count, self.patch_size, count, self.patch_size).astype(np.float32)
        found: Values = squares.mean(axis=(1, 3)).reshape(-1)
        return found


class Laid(NamedTuple):
    values: Values
    """[channels, height, width], from 0 to 1."""
    real: NDArray[np.bool_]
    """[height, width]: where the picture is."""


def laid(picture: Pixels, height: int, width: int, scaling: Scaling) -> Laid:
    """The picture as large as ``height`` and ``width`` take it, in the middle of black. Raises ValueError for one of
    which nothing would be left."""
    _, rows, columns = picture.shape
    scale = min(np.float32(height) / np.float32(rows), np.float32(width) / np.float32(columns))
    inside = int(np.float32(rows) * scale), int(np.float32(columns) * scale)
    if min(inside) < 1:
        longer = max(rows, columns) / min(rows, columns)
        raise ValueError(f"it is {longer:.0f} times as long as wide, expected at most {min(height, width)} times")
    values = exactly_resized(picture, *inside, scaling.resample) * np.float32(scaling.factor)
    padding = [
        ((each - own) // 2, each - own - (each - own) // 2) for each, own in zip((height, width), inside, strict=True)
    ]
    return Laid(np.pad(values.clip(0, 1), ((0, 0), *padding)), np.pad(np.ones(inside, bool), padding))


def _normed(values: Values, scaling: Scaling) -> Values:
    mean, std = (np.array(each, np.float32).reshape(-1, 1, 1) for each in (scaling.mean, scaling.std))
    found: Values = (values - mean) / std
    return found
