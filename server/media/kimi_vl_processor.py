"""The text that stands for a picture of Kimi-VL, whose own processor comes with its checkpoint."""

from typing import Any

from transformers.processing_utils import ProcessorMixin


class KimiVLProcessor(ProcessorMixin):
    image_token = "<|media_pad|>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)  # type: ignore[no-untyped-call]

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        patches = int(image_inputs["image_grid_thw"][image_idx].prod())
        found: str = self.image_token * (patches // self.image_processor.merge_size**2)
        return found
