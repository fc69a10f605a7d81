"""The text that stands for a picture of Nemotron Nano VL, whose own processor comes with its checkpoint."""

from pathlib import Path
from typing import Any

import transformers as untyped_transformers
from transformers.processing_utils import ProcessorMixin

from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.vision_fields import side_of

from .model_files import ModelFiles

transformers: Any = untyped_transformers


class NemotronVLProcessor(ProcessorMixin):
    """Tiles as InternVL has them, normed as the model's files say."""

    image_token = "<image>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)  # type: ignore[no-untyped-call]
        self._tokens = 256

    @classmethod
    def of(cls, folder: Path) -> "NemotronVLProcessor":
        """As the files of a model say."""
        files = ModelFiles(folder)
        whole = Fields(files.read("config.json"))
        settings = Fields({**whole.values, **files.read("preprocessor_config.json")})
        if not settings.flag("use_thumbnail", True):
            raise ValueError("use_thumbnail is false, expected true")
        side = side_of(whole, "force_image_size", 512)
        norms = {f"image_{name}": settings.numbers(f"norm_{name}") for name in ("mean", "std")}
        made = cls(
            transformers.GotOcr2ImageProcessorPil(
                size={"height": side, "width": side},
                crop_to_patches=True,
                max_patches=settings.integer("max_num_tiles", 12),
                **{name: list(values) for name, values in norms.items() if values},
            )
        )
        patch = side_of(Fields(whole.table("vision_config") or {}), "patch_size", 16)
        made._tokens = int(side // patch * whole.positive("downsample_ratio", 0.5)) ** 2
        return made

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        count = int(image_inputs["num_patches"][image_idx]) * self._tokens
        return f"<img>{self.image_token * count}</img>"
