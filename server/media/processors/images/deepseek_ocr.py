"""Pictures of DeepSeek-OCR: the whole, filled up to a square, and tiles of a larger picture."""

from typing import Any, Final

import numpy as np
from transformers.feature_extraction_utils import BatchFeature
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import DeepseekOcr2ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

_NO_TILE: Final = 1 << 30
"""A side in pixels that no picture exceeds."""
_PIXELS: Final = 64
"""Pixels on each side of the square that becomes one embedding."""


class DeepseekOcr2Images(DeepseekOcr2ImageProcessorPil):
    def embeddings(self, inputs: Any, index: int) -> int:
        """How many embeddings the tower makes of a picture."""
        whole, tile = self._sides(inputs, index)
        return int(whole**2 + tile**2 * inputs["num_local_patches"][index] + 1)

    def _sides(self, inputs: Any, index: int) -> tuple[int, int]:
        """Embeddings on each side of the whole picture, and of a tile."""
        sides = inputs["pixel_values"][index].shape[-1], self.tile_size
        whole, tile = (-(-side // _PIXELS) for side in sides)
        return whole, tile


class DeepseekOcrImages(DeepseekOcr2Images):
    """Of the first DeepSeek-OCR: an embedding ends each row."""

    tile_size = 640
    max_patches = 9

    def _preprocess(self, images: Any, **given: Any) -> BatchFeature:  # type: ignore[override]
        found = super()._preprocess(images, **given)
        grids = []
        for picture, count in zip(images, found["num_local_patches"], strict=True):
            size, tile = picture.shape[-2:], given["tile_size"]
            least, most = given["min_patches"], given["max_patches"]
            grids.append(get_optimal_tiled_canvas(size, (tile, tile), least, most) if count else (1, 1))
        found["patches_grid"] = np.array(grids)
        return found

    def embeddings(self, inputs: Any, index: int) -> int:
        whole, tile = self._sides(inputs, index)
        columns, rows = inputs["patches_grid"][index]
        tiles = rows * tile * (columns * tile + 1) if inputs["num_local_patches"][index] else 0
        return int(whole * (whole + 1) + 1 + tiles)


class UnlimitedOcrImages(DeepseekOcrImages):
    """Without tiles the whole is as large as with them."""

    max_patches = 32

    def _preprocess(self, images: Any, **given: Any) -> BatchFeature:  # type: ignore[override]
        if not given["crop_to_patches"]:
            given |= {"crop_to_patches": True, "tile_size": _NO_TILE}
        return super()._preprocess(images, **given)
