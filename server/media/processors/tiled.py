"""Processors of models that see a picture whole and in tiles, and whose code comes with the checkpoint. Run in the
child."""

from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer, LlavaOnevisionImageProcessorPil, LlavaOnevisionProcessor

from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.hf.deepseek_ocr import is_deepseek_ocr
from stentor.engine.model_config.hf.text_part import described_part
from stentor.engine.model_config.towers.vision_fields import side_of
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf

from ...text.templates.placeholders import NUMBER
from ...text.tokenizers.loading import load_tokenizer
from .images.deepseek_vl2 import DeepseekVL2Images
from .images.molmo import MolmoImages
from .images.phi3 import Phi3VImages
from .images.phi4 import Phi4Images
from .model_files import ModelFiles
from .own_processor import OwnProcessor
from .published import DeepseekOcrProcessor

_PHI3_EMBEDDED: Final = "<|image|>"
_PHI4_EMBEDDED: Final = "<|endoftext10|>"


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
        found: str = _PHI3_EMBEDDED * count + self._behind
        return found


class Phi4MMProcessor(OwnProcessor):
    """Of Phi-4-multimodal's published files: pictures are numbered. Sounds are not taken."""

    image_token = f"<|image_{NUMBER}|>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)

    @classmethod
    def of(cls, folder: Path) -> "Phi4MMProcessor":
        """From the files of a model."""
        return cls(Phi4Images.from_pretrained(folder))

    @property
    def unused_input_names(self) -> list[str]:
        return ["num_img_tokens"]

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        return _PHI4_EMBEDDED * int(image_inputs["num_img_tokens"][image_idx])


class DeepseekVL2Processor(OwnProcessor):
    image_token = "<image>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)
        self._side = 14
        """Embeddings on each side of a tile."""

    @classmethod
    def of(cls, folder: Path) -> OwnProcessor:
        """From the files of a model. Those of DeepSeek-OCR name the same processor."""
        files = ModelFiles(folder)
        config = Fields(files.read("config.json"))
        if is_deepseek_ocr(config.values):
            return DeepseekOcrProcessor.of(folder)
        settings = {**files.read("processor_config.json"), **files.read("preprocessor_config.json")}
        vision, projector = (Fields(config.table(f"{name}_config") or {}) for name in ("vision", "projector"))
        size, patch = side_of(vision, "image_size", 384), side_of(vision, "patch_size", 14)
        given = {name: settings[name] for name in ("image_mean", "image_std") if name in settings}
        canvases = config.get("candidate_resolutions") or settings.get("candidate_resolutions")
        if not isinstance(canvases, list) or not all(_is_canvas(each, size) for each in canvases):
            raise ValueError(f"candidate_resolutions is no list of widths and heights that are multiples of {size}")
        square = {"height": size, "width": size}
        made = cls(DeepseekVL2Images(size=square, candidate_resolutions=canvases, **given))
        made._side = -(-(size // patch) // projector.integer("downsample_ratio", 2))
        return made

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        tile = self.image_processor.size["height"]
        rows, columns = (int(length) // tile * self._side for length in image_inputs["image_sizes"][image_idx])
        found: str = self.image_token * (self._side * (self._side + 1) + 1 + rows * (columns + 1))
        return found


class MolmoProcessor(OwnProcessor):
    """A picture is its embeddings row by row, whole and then as the canvas of its squares, each between marks."""

    image_token = "<|image|>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)

    @classmethod
    def of(cls, folder: Path) -> "MolmoProcessor":
        """From the files of a model. Raises ValueError for pictures of another form."""
        files = ModelFiles(folder)
        told = Fields({**files.read("processor_config.json"), **files.read("preprocessor_config.json")})
        for name, known in (("image_padding_mask", True), ("do_normalize", True)):
            if told.flag(name, known) is not known:
                raise ValueError(f"{name} is {str(not known).lower()}, expected {str(known).lower()}")
        side, patch = side_of(told, "base_image_input_size", 336), told.integer("image_patch_size", 14)
        margins = [int(margin) for margin in told.numbers("overlap_margins")] or [4, 4]
        tower = vision_spec_from_hf(files.read("config.json"), 1)
        assert tower.tiles is not None
        if (side, patch, tuple(margin * patch for margin in margins)) != (
            tower.tiles.side,
            tower.patch,
            tower.tiles.overlap,
        ):
            raise ValueError(
                f"base_image_input_size is {side}, image_patch_size {patch} and overlap_margins {margins}, expected "
                f"those of the tower: {tower.tiles.side}, {tower.patch} and {tower.tiles.overlap} pixels"
            )
        given = {name: list(values) for name in ("image_mean", "image_std") if (values := told.numbers(name))}
        return cls(
            MolmoImages(
                size={"height": side, "width": side},
                patch_size=patch,
                overlap_margins=margins,
                max_crops=told.integer("max_crops", 12),
                **given,
            )
        )

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        embedded = 2 * self.image_processor.patch_size
        square = self.image_processor.size["height"]
        height, width = (int(length) for length in image_inputs["image_sizes"][image_idx])
        return "".join(
            f"<im_start>{('<im_patch>' * (columns // embedded) + '<im_col>') * (rows // embedded)}<im_end>"
            for rows, columns in ((square, square), (height, width))
        )


class NormedOnevisionProcessor(LlavaOnevisionProcessor):
    """R-4B and Bee: every picture is cut into tiles, also beside others, as in vLLM."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, patches: int = 729, tiles: int = 9) -> None:
        """``patches`` of a tile; ``tiles``: beyond which embeddings are reduced."""
        ratio = f"anyres_max_{tiles}"
        super().__init__(  # type: ignore[no-untyped-call]
            image_processor, tokenizer, None, patches, "full", vision_aspect_ratio=ratio
        )

    @classmethod
    def of(cls, folder: Path) -> "NormedOnevisionProcessor":
        """From the files of a model."""
        whole = described_part(ModelFiles(folder).read("config.json"))
        tower = vision_spec_from_hf(whole, 1)
        assert tower.tiles is not None
        images = LlavaOnevisionImageProcessorPil.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        return cls(images, tokenizer, tower.side**2, tower.tiles.most)


def _is_canvas(given: object, side: int) -> bool:
    lengths = given if isinstance(given, list) else []
    return len(lengths) == 2 and all(isinstance(each, int) and each > 0 and each % side == 0 for each in lengths)
