"""Processors of MiniCPM-V and MiniCPM-o: pictures are numbered, and their slices stand behind the whole. Run in the
child."""

from collections.abc import Mapping
from typing import Any

import transformers as untyped_transformers
from transformers.processing_utils import ProcessorMixin

from ...text.templates.placeholders import INDEX
from .own_processor import OwnProcessor

transformers: Any = untyped_transformers


class MergedSlicesProcessor(transformers.MiniCPMV4_6Processor):  # type: ignore[misc]
    """MiniCPM-V 4.6 and MiniCPM-OCR, whose slices have as many embeddings as their sizes say. transformers' own needs
    torchvision for videos."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        marks = [f"{part}_{side}_token" for part in ("image", "slice", "image_id") for side in ("start", "end")]
        for name in ("image_token", "video_token", *marks):
            setattr(self, name, getattr(tokenizer, name))
        self.slice_mode = image_processor.slice_mode

    def _process_images(self, images: Any, **arguments: Any) -> Any:
        found, texts = super()._process_images(images, **arguments)
        if not self.image_processor.use_image_id:
            return found, texts
        named = f"{self.image_id_start_token}{INDEX}{self.image_id_end_token}"
        return found, [named + text for text in texts]


class CanvasSlicesProcessor(MergedSlicesProcessor):
    """MiniCPM-V 4.7, whose pictures lie on canvases."""

    def grid(self, tensors: Mapping[str, Any]) -> tuple[int, int, int]:
        """Columns of a slice, 1 without slices, then rows and columns of the whole
        (:mod:`stentor.engine.worker.media.canvas_positions`)."""
        merged = 2 if self.image_processor.downsample_mode == "4x" else 4
        (rows, columns), *slices = (tensors["target_sizes"] // merged).tolist()
        return slices[0][1] if slices else 1, rows, columns


class SampledSlicesProcessor(OwnProcessor):
    """MiniCPM-V and MiniCPM-o 2.6 to 4.5, which come with their checkpoints: all slices have as many embeddings."""

    image_token = "(<image>./</image>)"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)

    @property
    def unused_input_names(self) -> list[str]:
        return ["grids", "num_patches_per_image"]

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        images = self.image_processor
        inside = images.unk * images.image_feature_size
        piece = f"{images.slice_start}{inside}{images.slice_end}"
        rows, columns = image_inputs["grids"][image_idx]
        number = f"{images.im_id_start}{INDEX}{images.im_id_end}" if images.use_image_id else ""
        return f"{number}{images.im_start}{inside}{images.im_end}" + "\n".join([piece * columns] * rows)
