"""The text that stands for a picture of Eagle 2.5, whose own processor comes with its checkpoint."""

from pathlib import Path
from typing import Any, Final

from transformers.processing_utils import ProcessorMixin

from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.vision_fields import side_of

from ..text.placeholders import NUMBER
from .images.eagle import EagleImages
from .model_files import ModelFiles

_EMBEDDED: Final = "<IMG_CONTEXT>"


class EagleProcessor(ProcessorMixin):
    """Pictures are told apart by their numbers, of which the template writes one and the prompt has two."""

    image_token = f"<image-{NUMBER}>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)  # type: ignore[no-untyped-call]
        self._tokens = 256

    @classmethod
    def of(cls, folder: Path) -> "EagleProcessor":
        """As the files of a model say."""
        whole = Fields(ModelFiles(folder).read("config.json"))
        vision = Fields(whole.table("vision_config") or {})
        images = EagleImages.from_pretrained(folder)
        if images.pad_during_tiling:
            raise ValueError("pad_during_tiling is true, expected false")
        made = cls(images)
        patches = side_of(vision, "image_size", 224) // side_of(vision, "patch_size", 16)
        made._tokens = int(patches * whole.positive("downsample_ratio", 0.5)) ** 2
        return made

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        count = int(image_inputs["num_patches"][image_idx]) * self._tokens
        return f"<image {NUMBER}><img>{_EMBEDDED * count}</img>"
