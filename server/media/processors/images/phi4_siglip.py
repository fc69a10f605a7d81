"""Pictures of Phi-4-reasoning-vision: as large as they are, in whole patches, within bounds of their number."""

from typing import Any

import numpy as np
from transformers.models.siglip2.image_processing_pil_siglip2 import get_image_size_for_max_num_patches
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from ..processor_options import LOW_DETAIL_PIXELS
from .base import OwnImages, Scaling
from .tiles import Pixels, patches


class Phi4SiglipArguments(ImagesKwargs, total=False):
    max_patches: int
    min_patches: int


class Phi4SiglipImages(OwnImages):
    valid_kwargs = Phi4SiglipArguments
    do_resize = False  # to a size that is given
    resample = 2  # bilinear
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    max_patches = 3600
    min_patches = 256
    patch_size = 16

    @property
    def low_detail(self) -> dict[str, int]:
        return {"max_patches": LOW_DETAIL_PIXELS // self.patch_size**2}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        (picture,), side = images, self.patch_size
        _, rows, columns = picture.shape
        count = max((rows // side) * (columns // side), 1)
        most = min(max(count, settings.min_patches), settings.max_patches)
        height, width = get_image_size_for_max_num_patches(rows, columns, side, most)
        values = patches(scaling.normed(scaling.resized(picture, height, width)), side)
        return {"pixel_values": values[None], "spatial_shapes": np.array([[height // side, width // side]])}
