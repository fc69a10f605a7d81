"""Pictures of Apertus 1.5 and Emu3: of about as many pixels as they have, in squares, each of which is a token."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from .base import OwnImages, Scaling
from .tiles import Pixels


class ApertusArguments(ImagesKwargs, total=False):
    min_pixels: int
    max_pixels: int
    spatial_factor: int


class ApertusImages(OwnImages):
    valid_kwargs = ApertusArguments
    resample = 3  # bicubic
    image_mean: Sequence[float] = (0.5, 0.5, 0.5)
    image_std: Sequence[float] = (0.5, 0.5, 0.5)
    size: ClassVar = {"shortest_edge": 128 * 128, "longest_edge": 1400 * 1400}
    """The fewest and the most pixels of a picture."""
    spatial_factor = 16
    """Pixels on each side of a token's square."""

    def __init__(self, **settings: Any) -> None:
        """Files call the bounds ``min_pixels`` and ``max_pixels``."""
        told = dict(settings.pop("size", None) or {})
        told |= {name: settings.pop(name) for name in ("min_pixels", "max_pixels") if name in settings}
        names = ("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")
        size = {edge: told.get(name, told.get(edge, self.size[edge])) for name, edge in names}
        super().__init__(**settings, size=size)

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        """``pixel_values`` [pictures, 3, height, width] filled up with zeros to one size, and the ``image_sizes``."""
        size, made = settings.size, []
        for picture in images:
            _, height, width = picture.shape
            rows, columns = smart_resize(
                height, width, settings.spatial_factor, min_pixels=size.shortest_edge, max_pixels=size.longest_edge
            )
            made.append(scaling.normed(scaling.resized(picture, rows, columns)))
        sizes = [[*values.shape[1:]] for values in made]
        most = np.max(sizes, axis=0)
        beyond = [((0, 0), (0, most[0] - rows), (0, most[1] - columns)) for rows, columns in sizes]
        filled = [np.pad(values, widths) for values, widths in zip(made, beyond, strict=True)]
        return {"pixel_values": np.stack(filled), "image_sizes": sizes}


class Emu3Images(ApertusImages):
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    size: ClassVar = {"shortest_edge": 512 * 512, "longest_edge": 1024 * 1024}
    spatial_factor = 8
