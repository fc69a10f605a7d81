"""Pictures of Molmo 2: the whole in one square, then overlapping squares of a canvas, with the patches that each
embedding pools."""

import itertools
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from .base import OwnImages, Scaling
from .tiles import Pixels, Values, patches

Numbers = NDArray[np.int64]


class Molmo2Arguments(ImagesKwargs, total=False):
    max_crops: int


class Molmo2Images(OwnImages):
    valid_kwargs = Molmo2Arguments
    resample = 2  # bilinear
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size: ClassVar[Any] = {"height": 378, "width": 378}
    """Of a square."""
    max_crops = 8
    low_detail: ClassVar = {"max_crops": 1}
    overlap_margins: ClassVar = [4, 4]
    """Patches at the edges of a square that its neighbours have too: above or on the left, and below or right."""
    patch_size = 14
    pooling_size: ClassVar = [2, 2]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.size.height != self.size.width:
            raise ValueError(f"size is {self.size.height} by {self.size.width}, expected a square")
        if self.resample != 2:
            raise ValueError(
                f"resample is {self.resample}, expected 2: pictures are resized bilinearly, without a filter"
            )

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        pixels: list[Values] = []
        pooled: list[Numbers] = []
        grids: list[list[int]] = []
        most = min(settings.max_crops, self.max_crops)
        for picture in images:
            before = len(pixels)
            whole = bilinear(picture, self.size.height, self.size.width)
            canvas, crops = self._crops(picture, most)
            pixels += [patches(scaling.normed(each), self.patch_size) for each in (whole, *crops)]
            side = self.size.height // self.patch_size
            squares = np.arange(side * side).reshape(side, side), canvas + side * side
            windows = [pooling(grid, *self.pooling_size) for grid in squares]
            pooled += [np.where(each.patches < 0, -1, each.patches + before * side * side) for each in windows]
            grids.append([number for each in windows for number in (each.rows, each.columns)])
        return {
            "pixel_values": np.stack(pixels),
            "image_token_pooling": np.concatenate(pooled),
            "image_grids": np.array(grids),
        }

    def _crops(self, picture: Pixels, most: int) -> tuple[Numbers, list[Pixels]]:
        """The patch of the squares, counted over all of them, at each place of the canvas [rows, columns]; and the
        squares, row by row."""
        _, height, width = picture.shape
        side, patch, (before, behind) = self.size.height, self.patch_size, self.overlap_margins
        margins, window = (before + behind) * patch, (side // patch - before - behind) * patch
        rows, columns = tiling(height - margins, width - margins, window, most)
        canvas = bilinear(picture, rows * window + margins, columns * window + margins)
        corners = list(itertools.product(range(0, rows * window, window), range(0, columns * window, window)))
        squares = [canvas[:, top : top + side, left : left + side] for top, left in corners]
        each = side // patch
        numbers = np.full((canvas.shape[1] // patch, canvas.shape[2] // patch), -1)
        for number, (top, left) in enumerate(corners):
            own = np.arange(each * each).reshape(each, each) + number * each * each
            first_row, first_column = (before if edge else 0 for edge in (top, left))
            row, column = top // patch, left // patch
            # a neighbour behind has all but the margin before it, and overwrites what this one has there
            numbers[row + first_row : row + each, column + first_column : column + each] = own[
                first_row:, first_column:
            ]
        return numbers, squares

    def frames(self, frames: Any, height: int, width: int) -> dict[str, Any]:
        """The tensors of a video's ``frames``, uint8 [height, width, channels] each: each is a square, of which an
        embedding pools ``height`` by ``width`` patches."""
        scaling = Scaling(self.resample, self.rescale_factor, self.image_mean, self.image_std)
        side = self.size.height // self.patch_size
        squares = [bilinear(frame.transpose(2, 0, 1), self.size.height, self.size.width) for frame in frames]
        window = pooling(np.arange(side * side).reshape(side, side), height, width)
        numbers = [np.where(window.patches < 0, -1, window.patches + at * side * side) for at in range(len(squares))]
        return {
            "pixel_values_videos": np.stack([patches(scaling.normed(each), self.patch_size) for each in squares]),
            "video_token_pooling": np.concatenate(numbers),
            "video_grids": np.array([[len(squares), window.rows, window.columns]]),
        }


class Windows(NamedTuple):
    patches: Numbers
    """[embeddings, patches of a window]: numbers of patches, -1 beyond the edge."""
    rows: int
    columns: int
    """Of windows."""


def pooling(grid: Numbers, height: int, width: int) -> Windows:
    """Windows of ``height`` by ``width`` patches over a ``grid`` [rows, columns], which stands in their middle."""
    down, across = -grid.shape[0] % height, -grid.shape[1] % width
    filled = np.pad(grid, ((down // 2, down - down // 2), (across // 2, across - across // 2)), constant_values=-1)
    rows, columns = filled.shape[0] // height, filled.shape[1] // width
    windows = filled.reshape(rows, height, columns, width).transpose(0, 2, 1, 3)
    return Windows(windows.reshape(rows * columns, height * width), rows, columns)


def tiling(height: int, width: int, window: int, most: int) -> tuple[int, int]:
    """Rows and columns of at most ``most`` windows: those that enlarge a picture least, or shrink it least if it fits
    into none. The fewest of equal ones, and of these the fewest rows."""
    sides = range(1, most + 1)
    known = [(rows, columns) for rows in sides for columns in sides if rows * columns <= most]
    known.sort(key=lambda each: (each[0] * each[1], each[0]))
    sizes = np.array(known, np.int32) * np.int32(window)
    # a picture smaller than the margins has negative sizes, as in transformers
    with np.errstate(divide="ignore"):
        scales = (sizes.astype(np.float32) / np.array([height, width], np.float32)).min(axis=1)
    if (scales < 1).all():
        return known[int(scales.argmax())]
    return known[int(np.where(scales < 1, np.float32(10e9), scales).argmin())]


def bilinear(picture: Pixels, height: int, width: int) -> Pixels:
    """A picture [channels, height, width] resized by the four nearest pixels of each, without a filter."""
    rows, columns = (_between(old, new) for old, new in zip(picture.shape[1:], (height, width), strict=True))
    values = picture.astype(np.float32)
    across = values[:, :, columns.first] * (1 - columns.share) + values[:, :, columns.second] * columns.share
    share = rows.share[:, None]
    found = across[:, rows.first] * (1 - share) + across[:, rows.second] * share
    return found.round().clip(0, 255).astype(np.uint8)


class _Between(NamedTuple):
    first: Numbers
    second: Numbers
    share: Values
    """Of the second."""


def _between(old: int, new: int) -> _Between:
    """The two pixels of ``old`` between which the middle of each of ``new`` lies."""
    at = np.maximum((np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new) - np.float32(0.5), 0)
    first = at.astype(np.int64)
    return _Between(first, np.minimum(first + 1, old - 1), (at - first).astype(np.float32))
