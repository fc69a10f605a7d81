"""The text that stands for a picture of Ovis 2.5, whose own processor comes with its checkpoint."""

from pathlib import Path
from typing import Any

from transformers.processing_utils import ProcessorMixin

from .images.ovis import Ovis25Images
from .model_files import ModelFiles

_MARKS = 2
"""Embeddings around those of a picture, which stand in place of the same token."""


class Ovis25Processor(ProcessorMixin):
    image_token = "<image>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)  # type: ignore[no-untyped-call]

    @classmethod
    def of(cls, folder: Path) -> "Ovis25Processor":
        """As the files of a model say."""
        vision = ModelFiles(folder).read("config.json").get("vit_config") or {}
        names = {"hidden_stride": "merge_size"}
        known = ("patch_size", "hidden_stride", "temporal_patch_size")
        given = {names.get(name, name): vision[name] for name in known if name in vision}
        return cls(Ovis25Images.from_pretrained(folder, **given))

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        patches = int(image_inputs["image_grid_thw"][image_idx].prod())
        found: str = "<|image_pad|>" * (patches // self.image_processor.merge_size**2 + _MARKS)
        return found
