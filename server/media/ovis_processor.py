"""The text that stands for a picture or a video of Ovis 2.5, whose own processor comes with its checkpoint."""

from pathlib import Path
from typing import Any

from transformers.processing_utils import ProcessorMixin

from .images.ovis import Ovis25Images
from .model_files import ModelFiles

_MARKS = 2
"""Embeddings around those of a picture, which stand in place of the same token."""


class Ovis25Processor(ProcessorMixin):
    image_token = "<image>"
    video_token = "<video>"

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
        return self._placeholders(image_inputs["image_grid_thw"][image_idx])

    def replace_video_token(self, video_inputs: Any, video_idx: int, **_: Any) -> str:
        return self._placeholders(video_inputs["video_grid_thw"][video_idx])

    def _placeholders(self, grid: Any) -> str:
        found: str = "<|image_pad|>" * (int(grid.prod()) // self.image_processor.merge_size**2 + _MARKS)
        return found
