"""The base of the server's own image processors: one each for models that transformers reads only with torchvision."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_backends import PilBackend

from .tiles import Pixels, Values, normed, resized


class Scaling(NamedTuple):
    """How pictures are resized, and how their pixels become values of a tensor."""

    resample: int
    """A filter of Pillow's."""
    factor: float
    mean: Sequence[float]
    std: Sequence[float]

    def resized(self, picture: Pixels, height: int, width: int) -> Pixels:
        return resized(picture, height, width, self.resample)

    def normed(self, picture: Pixels) -> Values:
        return normed(picture, self.factor, self.mean, self.std)


class OwnImages(PilBackend):
    """Has the interface of transformers' image processors. Settings are class attributes; a model's files may override
    all, and a caller those that ``valid_kwargs`` names."""

    do_resize = do_rescale = do_normalize = do_convert_rgb = True
    kept_as_lists: ClassVar[tuple[str, ...]] = ()
    """Names of what becomes no tensor, since only the prompt's text depends on it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)

    def _preprocess(  # type: ignore[override]
        self,
        images: list[Pixels],
        resample: int,
        rescale_factor: float,
        image_mean: Sequence[float],
        image_std: Sequence[float],
        return_tensors: str | None,
        **settings: Any,
    ) -> BatchFeature:
        scaling = Scaling(resample, rescale_factor, image_mean, image_std)
        made = self.tensors(images, scaling, SimpleNamespace(**settings))
        return BatchFeature(made, tensor_type=return_tensors, skip_tensor_conversion=list(self.kept_as_lists))

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        """The arrays that the model reads. ``settings``: ``size``, and what ``valid_kwargs`` names."""
        raise NotImplementedError


class TiledImages(OwnImages):
    """Pictures as tiles of one size, and how many each has."""

    def tensors(self, images: list[Pixels], scaling: Scaling, settings: Any) -> dict[str, Any]:
        found = [self.tiles(picture, scaling, settings) for picture in images]
        values = np.stack([scaling.normed(tile) for tiles in found for tile in tiles])
        return {"pixel_values": values, "num_patches": [len(tiles) for tiles in found]}

    def tiles(self, picture: Pixels, scaling: Scaling, settings: Any) -> list[Pixels]:
        """In the order of their embeddings."""
        raise NotImplementedError
