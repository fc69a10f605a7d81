"""Pictures of Llama 4: tiles of a canvas that a picture is laid into, and the whole in the size of a tile behind them.

Values of pixels are those of bfloat16, which the model was trained with.
"""

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, Values, cut, filled_up


class Llama4Arguments(ImagesKwargs, total=False):
    max_patches: int
    resize_to_max_canvas: bool


class Llama4Images(OwnImages):
    valid_kwargs = Llama4Arguments
    resample = 2  # bilinear
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size: ClassVar = {"height": 336, "width": 336}
    max_patches = 16
    """Tiles."""
    resize_to_max_canvas = False
    low_detail: ClassVar = {"max_patches": 1}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side, fills_canvas = settings.size.height, settings.resize_to_max_canvas
        tiles: list[Pixels] = []
        ratios = []
        for picture in images:
            height, width = picture.shape[1:]
            rows, columns = canvas(height, width, side, settings.max_patches, largest=fills_canvas)
            target = rows * side, columns * side
            laid = scaling.resized(picture, *_within(height, width, target, None if fills_canvas else side))
            tiles += [*cut(filled_up(laid, *target), rows, columns)]
            if rows * columns > 1:
                tiles.append(scaling.resized(picture, side, side))
            ratios.append([rows, columns])
        table = _values(scaling.factor, tuple(scaling.mean), tuple(scaling.std))
        channels = np.arange(len(table)).reshape(-1, 1, 1)
        values = np.stack([table[channels, tile] for tile in tiles])
        return {"pixel_values": values, "aspect_ratios": np.array(ratios)}


def canvas(height: int, width: int, side: int, most: int, *, largest: bool) -> tuple[int, int]:
    """Rows and columns of at most ``most`` tiles, for which a picture is enlarged the least (or, with ``largest``, the
    most), or made smaller the least; the fewest of them."""
    grids = [(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)]
    # float32, as where two canvases are compared by it elsewhere
    scales = [
        min(np.float32(rows * side) / np.float32(height), np.float32(columns * side) / np.float32(width))
        for rows, columns in grids
    ]
    enough = [scale for scale in scales if scale >= 1]
    wanted = (max(enough) if largest else min(enough)) if enough else max(scales)
    chosen = [grid for grid, scale in zip(grids, scales, strict=True) if scale == wanted]
    return min(chosen, key=lambda grid: grid[0] * grid[1])


def _within(height: int, width: int, target: tuple[int, int], most: int | None) -> tuple[int, int]:
    """The size that fills ``target`` without distortion; pictures below ``most`` pixels a side are enlarged only to
    that."""
    rows, columns = target
    if most is not None:
        rows, columns = min(max(height, most), rows), min(max(width, most), columns)
    across, down = columns / width, rows / height
    if across < down:
        rows = min(int(height * across), rows)
    else:
        columns = min(int(width * down), columns)
    return max(rows, 1), max(columns, 1)


@lru_cache(maxsize=4)
def _values(factor: float, mean: tuple[float, ...], std: tuple[float, ...]) -> Values:
    """[channels, 256]: the value of each pixel value, with every step rounded to bfloat16."""
    scaled = _bfloat16(np.arange(256, dtype=np.float32) * np.float32(factor))
    means, stds = (_bfloat16(np.array(each, np.float32)).reshape(-1, 1) for each in (mean, std))
    return _bfloat16(_bfloat16(scaled - means) / stds)


def _bfloat16(values: NDArray[np.float32]) -> Values:
    """The nearest that bfloat16 has, of two that are as near the even one."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)
