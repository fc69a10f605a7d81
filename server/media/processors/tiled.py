"""Processors of models that see a picture whole and in tiles, and whose code comes with the checkpoint. Run in the
child."""

from pathlib import Path
from typing import Any, Final

from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.towers.vision_fields import side_of

from ...text.templates.placeholders import NUMBER
from ...text.tokenizers.loading import load_tokenizer
from .images.phi3 import Phi3VImages
from .model_files import ModelFiles
from .own_processor import OwnProcessor

_PHI3_EMBEDDED: Final = "<|image|>"


class Phi3VProcessor(OwnProcessor):
    """Pictures are numbered. The published one tokenizes the texts between them apart, each with its BOS."""

    image_token = f"<|image_{NUMBER}|>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)
        self._merged = 28
        """Pixels on each side of the square that becomes one embedding."""
        self._behind = ""

    @classmethod
    def of(cls, folder: Path) -> "Phi3VProcessor":
        """From the files of a model."""
        made = cls(Phi3VImages.from_pretrained(folder))
        tokenizer = load_tokenizer(folder)
        if tokenizer.encode("") == [tokenizer.bos_token_id]:
            made._behind = tokenizer.bos_token or ""
        vision = Fields(Fields(ModelFiles(folder).read("config.json")).table("vision_config") or {})
        made._merged = 2 * side_of(vision, "patch_size", 14)
        return made

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        height, width = (int(length) // self._merged for length in image_inputs["image_sizes"][image_idx])
        whole = self.image_processor.size.height // self._merged
        count = whole * (whole + 1) + 1 + height * (width + 1)
        return _PHI3_EMBEDDED * count + self._behind
