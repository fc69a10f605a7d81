"""The image processor of a model whose pictures stand in no text (CLIP), in the shape of transformers' processors."""

from pathlib import Path
from typing import Any


class LonePictures:
    """Its tokenizer is not loaded: what stands for a picture is the picture itself."""

    image_token = ""
    unused_input_names = ()

    def __init__(self, image_processor: Any) -> None:
        self.image_processor = image_processor

    @classmethod
    def get_processor_dict(cls, folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {}

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor"]

    def prepare_inputs_layout(self, images: Any) -> tuple[Any, None]:
        return images, None

    def _process_images(self, images: Any, **arguments: Any) -> tuple[Any, list[str]]:
        return self.image_processor(images, **arguments), [""]

    def _merge_kwargs(self, **given: Any) -> dict[str, dict[str, Any]]:
        return {"images_kwargs": given}
