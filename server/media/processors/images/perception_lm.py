"""Pictures of Perception LM: the whole in one square tile, and tiles of a canvas on which it is as large as it can
be."""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, cut

_TILED = "thumb+tile"
_WHOLE = "vanilla"


class PerceptionLMArguments(ImagesKwargs, total=False):
    vision_input_type: str
    max_num_tiles: int


class PerceptionLMImages(OwnImages):
    valid_kwargs = PerceptionLMArguments
    kept_as_lists = ("pixel_values",)
    resample = 3  # bicubic
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size: ClassVar = {"height": 448, "width": 448}
    """Not read: a tile has its own."""
    vision_input_type = _TILED
    low_detail: ClassVar = {"vision_input_type": _WHOLE}
    tile_size = 448
    max_num_tiles = 36

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side, most = self.tile_size, min(settings.max_num_tiles, self.max_num_tiles)
        found = []
        for picture in images:
            tiles = [scaling.resized(picture, side, side)]
            if settings.vision_input_type == _TILED:
                _, height, width = picture.shape
                columns, rows = (1, 1) if most == 1 else canvas(width, height, side, most)
                tiles += [*cut(scaling.resized(picture, rows * side, columns * side), rows, columns)]
            found.append(np.stack([scaling.normed(tile) for tile in tiles]))
        return {"pixel_values": found}


def canvas(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """Columns and rows of at most ``most`` tiles. Of the canvases that hold a picture, that on which its shorter side
    is longest, the last of equal ones; if none holds it, one whose shape is nearest to its, with the most tiles."""
    known = list(_canvases(most))
    best, longest = (0, 0), -1.0
    for columns, rows in known:
        if columns * side >= width and rows * side >= height:
            scale = min(columns * side / width, rows * side / height)
            # in the order of transformers' operations, which decides between nearly equal ones
            shape = width / height
            if shape > 1:
                short = float(int(scale * width / shape))
            else:
                short = float(int(scale * height * shape)) if shape < 1 else scale * height
            if short >= longest:
                best, longest = (columns, rows), short
    if longest >= 0:
        return best
    return _nearest(width / height, known)


def _canvases(most: int) -> Iterator[tuple[int, int]]:
    """All, those of one shape one after another: shapes in the order of their largest canvases, and then by columns."""
    by_shape: dict[float, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for columns in range(1, count + 1):
            if count % columns == 0:
                by_shape.setdefault(columns / (count // columns), []).append((columns, count // columns))
    for canvases in by_shape.values():
        yield from canvases


def _nearest(shape: float, known: list[tuple[int, int]]) -> tuple[int, int]:
    """The largest canvas of the nearest shape that is not wider; of tall pictures, of the nearest that is wider."""
    shapes = dict.fromkeys(columns / rows for columns, rows in known)
    if shape >= 1:
        nearest = min((each for each in shapes if each <= shape), key=lambda each: abs(each - shape))
        return max((each for each in known if each[0] / each[1] == nearest), key=lambda each: each[0])
    nearest = min((each for each in shapes if each > shape), key=lambda each: abs(1 / each - 1 / shape))
    return max((each for each in known if each[0] / each[1] == nearest), key=lambda each: each[1])
