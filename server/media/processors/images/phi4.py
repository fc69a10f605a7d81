"""Pictures of Phi-4-multimodal: the whole in the size of a tile, and tiles of a canvas that a picture is laid into,
with the patches of each tile that are not filled up."""

import math
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, Values, bicubic, closest, cut, resized

_LEAST: Final = 10
"""Pixels of the shorter side of a picture that is laid into its canvas."""
_BILINEAR: Final = 2


class Phi4Arguments(ImagesKwargs, total=False):
    patch_size: int
    dynamic_hd: int


class Phi4Images(OwnImages):
    valid_kwargs = Phi4Arguments
    resample = 3  # bicubic
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size: ClassVar = {"height": 448, "width": 448}
    patch_size = 14
    dynamic_hd = 36
    """Tiles."""
    low_detail: ClassVar = {"dynamic_hd": 1}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        side, patch, most_tiles = settings.size.height, settings.patch_size, settings.dynamic_hd
        seen = [_seen(picture, side, patch, most_tiles, scaling) for picture in images]
        most = max(len(each.tiles) for each in seen)
        return {
            "image_pixel_values": np.stack([_filled(each.tiles, most, 0) for each in seen]),
            "image_sizes": np.array([each.size for each in seen]),
            "image_attention_mask": np.stack([_filled(each.masks, most, 1) for each in seen]),
            "num_img_tokens": [each.embeddings for each in seen],
        }


class _Seen(NamedTuple):
    """A picture as its tower takes it."""

    tiles: Values
    """The whole, and the tiles row by row, [tiles, channels, side, side]."""
    masks: Values
    """1 for each patch that is not all white, [tiles, rows, columns]."""
    size: tuple[int, int]
    """Of the canvas."""
    embeddings: int


def _seen(picture: Pixels, side: int, patch: int, most: int, scaling: Scaling) -> _Seen:
    _, height, width = picture.shape
    rows, columns = canvas(height, width, side, most)
    laid, mask = _laid(picture, rows * side, columns * side, patch)
    values = scaling.normed(laid)
    masks = cut(mask[None], rows, columns)[:, 0]
    kept = masks[:, ::2, ::2]  # an embedding is of four patches
    joined = kept.reshape(rows, columns, *kept.shape[1:]).transpose(0, 2, 1, 3)
    lines, row = (int(joined.any(axis=axes).sum()) for axes in ((2, 3), (0, 1)))
    whole = kept.shape[1]
    return _Seen(
        np.concatenate((bicubic(values, side)[None], cut(values, rows, columns))),
        np.concatenate((np.ones((1, *masks.shape[1:]), np.float32), masks)),
        (rows * side, columns * side),
        lines * (row + 1) + 1 + whole * (whole + 1),
    )


def _filled(tiles: Values, most: int, value: int) -> Values:
    """With tiles of one value up to ``most``."""
    return np.pad(tiles, ((0, most - len(tiles)), *[(0, 0)] * (tiles.ndim - 1)), constant_values=value)


def canvas(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Rows and columns of tiles: as many as cover the picture, or the :func:`closest` of at most ``most``."""
    rows, columns = math.ceil(height / side), math.ceil(width / side)
    if rows * columns <= most:
        return rows, columns
    grids = [(across, down) for down in range(1, most + 1) for across in range(1, most // down + 1)]
    columns, rows = closest(width / height, width * height / side**2, sorted(grids, key=math.prod))
    return rows, columns


def _laid(picture: Pixels, height: int, width: int, patch: int) -> tuple[Pixels, Values]:
    """The picture as large as the canvas takes it, with white below it and on its right, and 1 for each patch that is
    not all white. Raises ValueError for a picture that is too narrow."""
    across, down = width / picture.shape[2], height / picture.shape[1]
    wide = across < down
    inside = (int(picture.shape[1] * across), width) if wide else (height, int(picture.shape[2] * down))
    if min(inside) < _LEAST:
        raise ValueError(f"it would have {inside[1]} x {inside[0]} pixels, fewer than {_LEAST} on a side")
    found = resized(picture, *inside, _BILINEAR)
    below, behind = height - inside[0], width - inside[1]
    mask = np.ones((height // patch, width // patch), np.float32)
    mask[len(mask) - below // patch :] = 0
    mask[:, mask.shape[1] - behind // patch :] = 0
    return np.pad(found, ((0, 0), (0, below), (0, behind)), constant_values=255), mask
