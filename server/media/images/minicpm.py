"""Pictures of MiniCPM-OCR: those of MiniCPM-V 4.6 with four times as many embeddings."""

from typing import Any

from transformers import MiniCPMV4_6ImageProcessorPil
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPilKwargs


class MiniCPMOcrArguments(MiniCPMV4_6ImageProcessorPilKwargs, total=False):
    small_image_upsize: str


class MiniCPMOcrImages(MiniCPMV4_6ImageProcessorPil):
    valid_kwargs = MiniCPMOcrArguments
    downsample_mode = "4x"
    small_image_upsize = "always"

    def __init__(self, **settings: Any) -> None:
        """Raises ValueError for settings that look at glyphs."""
        super().__init__(**settings)
        if self.small_image_upsize != "always":
            raise ValueError(f"small_image_upsize is {self.small_image_upsize!r}, expected 'always'")
