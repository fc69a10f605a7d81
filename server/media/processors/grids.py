"""Processors of models that see pictures of any shape, a placeholder for each square of patches. They come with their
checkpoints. Run in the child."""

from pathlib import Path
from typing import Any, Final

from transformers import AutoImageProcessor

from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.towers.media_spec import media_spec

from ...text.tokenizers.loading import load_tokenizer
from .images.deepseek_v41 import DeepseekV41Images
from .images.enlarged import KananaImages
from .model_files import ModelFiles
from .own_processor import OwnProcessor


class GridProcessor(OwnProcessor):
    """Its subclasses name the placeholder."""

    image_token = ""
    embedded = ""
    """The token in whose place an embedding is, if it is not the placeholder."""

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)

    def embeddings(self, image_inputs: Any, image_idx: int) -> str:
        """The tokens of a picture's embeddings."""
        patches = int(image_inputs["image_grid_thw"][image_idx].prod())
        found: str = (self.embedded or self.image_token) * (patches // self.image_processor.merge_size**2)
        return found

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        return self.embeddings(image_inputs, image_idx)


_SIZES: Final = ("patch_size", "downsample_ratio", "max_image_tokens", "min_pixels")
"""Fields of DeepSeek V4.1's tower."""
_MARKED: Final = "<|vision_start|><|image_pad|><|vision_end|>"


class KimiVLProcessor(GridProcessor):
    image_token = "<|media_pad|>"


class KimiK3Processor(GridProcessor):
    """Prompts tell the size of a picture as it came, in pixels."""

    image_token = "<|kimi_image_placeholder|>"
    embedded = "<|media_pad|>"

    @property
    def unused_input_names(self) -> list[str]:
        return ["original_sizes"]

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        height, width = (int(side) for side in image_inputs["original_sizes"][image_idx])
        inside = self.embeddings(image_inputs, image_idx)
        return f"<|media_begin|>image {width}x{height}<|media_content|>{inside}<|media_end|>"


class DotsVLProcessor(GridProcessor):
    """Of dots.ocr."""

    image_token = "<|imgpad|>"


class ImagePadProcessor(GridProcessor):
    """Of Keye-VL (1.5 too) and LLaVA-OneVision 2."""

    image_token = "<|image_pad|>"


class Ling3VLProcessor(ImagePadProcessor):
    """Of Ling 3.0 with pictures, each of which ends its line. Templates write its placeholder alone or with marks."""

    embedded = ImagePadProcessor.image_token

    @classmethod
    def of(cls, folder: Path) -> "Ling3VLProcessor":
        """From the files of a model."""
        made = cls(AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False))
        if _MARKED in load_tokenizer(folder).template_source:
            made.image_token = _MARKED
        return made

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        return f"<|vision_start|>{self.embeddings(image_inputs, image_idx)}<|vision_end|>\n"


class DeepseekV41Processor(GridProcessor):
    """Its files tell nothing of it but for the tower's fields. Embeddings of a picture's rows have one behind each, and
    two around all."""

    image_token = "<｜deepseek_image｜>"

    @classmethod
    def of(cls, folder: Path) -> "DeepseekV41Processor":
        """From the files of a model. Raises :class:`stentor.engine.model_config.config_fields.ConfigError`."""
        vision = Fields(Fields(ModelFiles(folder).read("config.json")).table("vision_config") or {})
        sizes = {name: vision.integer(name, getattr(DeepseekV41Images, name)) for name in _SIZES}
        most = vision.positive("max_wh_ratio", 1.0) if vision.has("max_wh_ratio") else None
        return cls(DeepseekV41Images(**sizes, max_wh_ratio=most))

    def embeddings(self, image_inputs: Any, image_idx: int) -> str:
        side = self.image_processor.downsample_ratio
        rows, columns = (-(-int(patches) // side) for patches in image_inputs["image_grid_thw"][image_idx][1:])
        found: str = self.image_token * (rows * (columns + 1) + 2)
        return found


class KananaVProcessor(GridProcessor):
    """The token behind the one that ends a text stands for each embedding, as in vLLM."""

    image_token = "<image>"

    @classmethod
    def of(cls, folder: Path) -> "KananaVProcessor":
        """From the files of a model. Raises ValueError where no token is known for pictures."""
        media = media_spec(ModelFiles(folder).read("config.json"))
        if media is None or "image" not in media.placeholders:
            raise ValueError("text_config has no eos_token_id, behind which is the token of pictures")
        made = cls(KananaImages.from_pretrained(folder))
        made.embedded = load_tokenizer(folder).name_of(media.placeholders["image"])
        return made


class OpenPanguProcessor(GridProcessor):
    image_token = "[unused19]"


class OpenCUAProcessor(GridProcessor):
    image_token = "<|media_placeholder|>"
