"""Pictures of Gemma 4 without an encoder: its patches, joined to squares."""

from typing import Any

import numpy as np
from transformers import Gemma4ImageProcessorPil
from transformers.feature_extraction_utils import BatchFeature


class Gemma4UnifiedImages(Gemma4ImageProcessorPil):
    def _preprocess(self, images: Any, **arguments: Any) -> BatchFeature:  # type: ignore[override]
        """``pixel_values`` [pictures, squares, channels of a square] and their ``image_position_ids`` [pictures,
        squares, 2], column first; both filled up, positions with -1."""
        found = super()._preprocess(images, **arguments)
        side, most = int(arguments["pooling_kernel_size"]), int(arguments["max_soft_tokens"])
        patches, places = np.asarray(found["pixel_values"]), np.asarray(found["image_position_ids"])
        joined = np.zeros((len(patches), most, patches.shape[-1] * side * side), patches.dtype)
        at = np.full((len(patches), most, 2), -1, places.dtype)
        for number, (picture, place) in enumerate(zip(patches, places, strict=True)):
            columns, rows = place.max(axis=0) + 1
            squares = _squares(picture[: rows * columns], int(rows), int(columns), side)
            joined[number, : len(squares)] = squares
            at[number, : len(squares), 0] = np.arange(len(squares)) % (columns // side)
            at[number, : len(squares), 1] = np.arange(len(squares)) // (columns // side)
        tensors = {**found, "pixel_values": joined, "image_position_ids": at}
        return BatchFeature(tensors, tensor_type=arguments["return_tensors"])


def _squares(patches: Any, rows: int, columns: int, side: int) -> Any:
    """Patches [rows x columns, pixels of a patch] as squares of ``side`` patches, pixel row by pixel row."""
    patch = int((patches.shape[-1] // 3) ** 0.5)
    cut = patches.reshape(rows // side, side, columns // side, side, patch, patch, 3)
    squares = cut.transpose(0, 2, 1, 4, 3, 5, 6)  # [rows, columns, patch row, pixel row, patch column, pixel, channel]
    return squares.reshape(rows // side * (columns // side), -1)
