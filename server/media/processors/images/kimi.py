"""Pictures of Kimi K2.5, Kimi K3 and Kimi-VL: made smaller where they have too many patches, never larger, and filled
up to whole squares of patches."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from ..processor_options import LOW_DETAIL_PIXELS
from .base import OwnImages, Scaling
from .tiles import Pixels, cut, filled_up

_OF_TABLE: Final[Mapping[str, str]] = {
    **{"in_patch_limit": "max_patches", "merge_kernel_size": "merge_size", "patch_size": "patch_size"},
    **{"image_mean": "image_mean", "image_std": "image_std"},
}
"""Names of Kimi K3's settings, and those here."""


class KimiArguments(ImagesKwargs, total=False):
    max_patches: int
    patch_size: int
    merge_size: int


class KimiImages(OwnImages):
    valid_kwargs = KimiArguments
    resample = 3  # bicubic
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size: ClassVar = {"max_height": 512, "max_width": 512}
    """Patches on each side."""
    max_patches = 16_384
    patch_size = 14
    merge_size = 2

    @property
    def low_detail(self) -> dict[str, int]:
        return {"max_patches": LOW_DETAIL_PIXELS // self.patch_size**2}

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        values, grids = [], []
        patch = settings.patch_size
        square = patch * settings.merge_size
        for picture in images:
            _, rows, columns = picture.shape
            height, width = _size(rows, columns, patch, settings.max_patches, settings.size.max_height)
            whole = scaling.resized(picture, height, width)
            whole = filled_up(whole, height + -height % square, width + -width % square)
            rows, columns = whole.shape[1] // patch, whole.shape[2] // patch
            values.append(cut(scaling.normed(whole), rows, columns))
            grids.append([1, rows, columns])
        return {"pixel_values": np.concatenate(values), "image_grid_thw": np.array(grids)}


class KimiVLImages(KimiImages):
    """Kimi-VL: its files use other names, and pictures have fewer patches."""

    def __init__(
        self,
        in_token_limit: int = 4096,
        merge_kernel_size: Sequence[int] = (2, 2),
        *,
        pad_input: bool = True,
        **settings: Any,
    ) -> None:
        if not pad_input:
            raise ValueError("pad_input is false, expected true: pictures are filled up here, never cropped")
        super().__init__(max_patches=in_token_limit, merge_size=merge_kernel_size[0], **settings)


class KimiK3Images(KimiImages):
    """Kimi K3: its files have settings in a table, and prompts tell the size of a picture as it came."""

    def __init__(self, media_proc_cfg: Mapping[str, Any] | None = None, **settings: Any) -> None:
        table = dict(media_proc_cfg or {})
        if table.get("fixed_output_tokens") is not None:
            raise ValueError(f"fixed_output_tokens is {table['fixed_output_tokens']!r}, expected null")
        for theirs, ours in _OF_TABLE.items():
            if table.get(theirs) is not None:
                settings[ours] = table[theirs]
        if (most := table.get("patch_limit_on_one_side")) is not None:
            settings["size"] = {"max_height": most, "max_width": most}
        super().__init__(**settings)

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        sizes = np.array([picture.shape[1:] for picture in images])
        return {**super().tensors(images, scaling, settings), "original_sizes": sizes}


def _size(height: int, width: int, patch: int, most: int, most_a_side: int) -> tuple[int, int]:
    """At most ``most`` patches in all, and ``most_a_side`` in a row."""
    count = max(1.0, height // patch) * max(1.0, width // patch)
    longest = most_a_side * patch
    scale = min(1.0, math.sqrt(most / count), longest / height, longest / width)
    return min(max(1, int(height * scale)), longest), min(max(1, int(width * scale)), longest)
