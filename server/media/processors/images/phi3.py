"""Pictures of Phi-3-vision: the whole in the size of a tile, and tiles that a picture is enlarged to."""

import math
from typing import Any, ClassVar

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, bicubic, cut


class Phi3VArguments(ImagesKwargs, total=False):
    num_crops: int


class Phi3VImages(OwnImages):
    valid_kwargs = Phi3VArguments
    resample = 2  # bilinear
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    size: ClassVar = {"height": 336, "width": 336}
    num_crops = 1
    """Most tiles."""
    low_detail: ClassVar = {"num_crops": 1}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side, tiles, sizes = settings.size.height, [], []
        for picture in images:
            values = scaling.normed(laid(picture, side, settings.num_crops, scaling))
            _, height, width = values.shape
            tiles += [bicubic(values, side), *cut(values, height // side, width // side)]
            sizes.append((height, width))
        return {"pixel_values": np.stack(tiles), "image_sizes": np.array(sizes)}


def laid(picture: Pixels, side: int, most: int, scaling: Scaling) -> Pixels:
    """The picture with a longer side of as many tiles as it takes at most ``most`` to cover it, and white on both sides
    of it up to whole tiles. Raises ValueError for a picture that is too narrow."""
    if picture.shape[1] > picture.shape[2]:
        return laid(picture.transpose(0, 2, 1), side, most, scaling).transpose(0, 2, 1)
    _, height, width = picture.shape
    ratio = width / height
    columns = max(count for count in range(1, most + 1) if count * math.ceil(count / ratio) <= most)
    inside = int(columns * side / ratio)
    if inside < 1:
        raise ValueError(f"it is {ratio:.0f} times as long as wide, expected at most {columns * side} times")
    found = scaling.resized(picture, inside, columns * side)
    missing = -inside % side
    return np.pad(found, ((0, 0), (missing // 2, missing - missing // 2), (0, 0)), constant_values=255)
