"""Pictures of DeepSeek-VL2: the whole in the size of a tile, and the tiles of a canvas, with bars of one colour around
them."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageOps
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, cut


class DeepseekVL2Arguments(ImagesKwargs, total=False):
    candidate_resolutions: Sequence[Sequence[int]]


class DeepseekVL2Images(OwnImages):
    valid_kwargs = DeepseekVL2Arguments
    resample = 3  # bicubic
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size: ClassVar = {"height": 384, "width": 384}
    candidate_resolutions: ClassVar[Sequence[Sequence[int]]] = [[384, 384]]
    """Width and height of possible canvases."""

    @property
    def low_detail(self) -> dict[str, object]:
        """One tile."""
        return {"candidate_resolutions": [[self.size["width"], self.size["height"]]]}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side, tiles, sizes = settings.size.height, [], []
        for picture in images:
            _, height, width = picture.shape
            across, down = canvas(height, width, settings.candidate_resolutions)
            whole = scaling.normed(_laid(picture, side, side, scaling))
            laid = scaling.normed(_laid(picture, across, down, scaling))
            tiles += [whole, *cut(laid, down // side, across // side)]
            sizes.append((down, across))
        return {"pixel_values": np.stack(tiles), "image_sizes": np.array(sizes)}


def canvas(height: int, width: int, canvases: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Width and height of the canvas that keeps most of the picture's pixels, and of these the first of the
    smallest."""

    def fit(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[0] / width, size[1] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return used, used - size[0] * size[1]

    across, down = max(canvases, key=fit)
    return across, down


def _laid(picture: Pixels, width: int, height: int, scaling: Scaling) -> Pixels:
    """The picture as large as the canvas takes it, in its middle."""
    colour = tuple(int(each * 255) for each in scaling.mean)
    image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    laid = ImageOps.pad(image, (width, height), Image.Resampling(scaling.resample), color=colour)
    return np.asarray(laid).transpose(2, 0, 1)
