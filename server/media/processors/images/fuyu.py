"""Pictures of Fuyu: squares of pixels, row by row, of a picture that is made smaller if it is larger than the model
takes."""

from typing import Any, ClassVar

import numpy as np

from .base import OwnImages, Scaling
from .tiles import Pixels, patches

_BEYOND = 1
"""Pixels that fill up the last squares of a row and the last row."""


class FuyuImages(OwnImages):
    resample = 2  # bilinear
    image_mean = (0.5,)
    image_std = (0.5,)
    size: ClassVar = {"height": 1080, "width": 1920}
    """The largest picture."""
    patch_size: ClassVar = {"height": 30, "width": 30}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        """``pixel_values`` [squares, side · side · channels] of all pictures, and their ``rows`` and ``cols``."""
        side, most = self.patch_size["height"], settings.size
        if self.patch_size["width"] != side or most.height % side or most.width % side:
            raise ValueError(f"patch_size is {self.patch_size}, expected squares that {most.height}:{most.width} holds")
        found, rows, columns = [], [], []
        for picture in images:
            _, height, width = picture.shape
            if height > most.height or width > most.width:
                factor = min(most.height / height, most.width / width)
                picture = scaling.resized(picture, max(int(height * factor), 1), max(int(width * factor), 1))
                _, height, width = picture.shape
            beyond = (0, 0), (0, -height % side), (0, -width % side)
            filled = np.pad(picture, beyond, constant_values=_BEYOND)
            found.append(patches(scaling.normed(filled), side))
            rows.append(filled.shape[1] // side)
            columns.append(filled.shape[2] // side)
        return {"pixel_values": np.concatenate(found), "rows": rows, "cols": columns}
