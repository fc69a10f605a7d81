"""Processors of models with pictures whose code comes with the checkpoint. Run in the child."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import transformers as untyped_transformers
from transformers.utils.constants import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)

from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.hf.deepseek_ocr import FIRST
from stentor.engine.model_config.towers.vision_fields import side_of

from ...text.templates.placeholders import NUMBER
from .audio import ParakeetSounds
from .grids import GridProcessor
from .images.deepseek_ocr import DeepseekOcr2Images, DeepseekOcrImages, UnlimitedOcrImages
from .images.eagle import EagleImages
from .images.h2ovl import H2OVLImages
from .images.isaac import IsaacImages
from .images.muse import MuseImages
from .images.nemotron import NemotronOmniImages
from .images.ovis import Ovis25Images, OvisImages
from .images.parse import ParseImages
from .images.phi4_siglip import Phi4SiglipImages
from .images.pix2struct import Pix2StructImages
from .model_files import ModelFiles
from .own_processor import OwnProcessor
from .pictures import LonePictures

transformers: Any = untyped_transformers

_OVIS_MARKS: Final = 2
"""Embeddings around an image of Ovis 2.5, with the same placeholder token."""
_MUSE_TOKENS: Final[Mapping[str, str]] = {
    **{"image_token": "<|patch|>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"}
}
_PHI4_BOUNDS: Final[Mapping[str, int]] = {"min": 256, "max": 3600}
"""Patches of a picture by default."""
_PARSE_SIDES: Final = (2048, 1648)
_EAGLE_EMBEDDED: Final = "<IMG_CONTEXT>"


class OvisProcessor(OwnProcessor):
    """Of Ovis 2 as published: marks around the whole picture and between its tiles have the placeholder too."""

    image_token = "<image>"
    _tokens = 256

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)

    @classmethod
    def of(cls, folder: Path) -> "OvisProcessor":
        """From the files of a model."""
        seen = Fields(Fields(ModelFiles(folder).read("config.json")).table("visual_tokenizer_config") or {})
        backbone = Fields(seen.table("backbone_config") or {})
        side = side_of(backbone, "image_size", 224)
        made = cls(OvisImages.from_pretrained(folder, size={"height": side, "width": side}))
        made._tokens = (side // side_of(backbone, "patch_size", 14) // seen.integer("hidden_stride", 1)) ** 2
        return made

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        tiles = int(np.prod(image_inputs["grids"][image_idx]))
        count = self._tokens + 3 if tiles == 1 else (1 + tiles) * (self._tokens + 1) + 1
        return "<|image_pad|>" * count


class Ovis25Processor(OwnProcessor):
    image_token = "<image>"
    video_token = "<video>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)

    @classmethod
    def of(cls, folder: Path) -> "Ovis25Processor":
        """From the files of a model."""
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
        found: str = "<|image_pad|>" * (int(grid.prod()) // self.image_processor.merge_size**2 + _OVIS_MARKS)
        return found


class EagleProcessor(OwnProcessor):
    """Pictures are numbered: the template writes the number once, the prompt has it twice."""

    image_token = f"<image-{NUMBER}>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)
        self._tokens = 256

    @classmethod
    def of(cls, folder: Path) -> "EagleProcessor":
        """From the files of a model."""
        whole = Fields(ModelFiles(folder).read("config.json"))
        vision = Fields(whole.table("vision_config") or {})
        images = EagleImages.from_pretrained(folder)
        if images.pad_during_tiling:
            raise ValueError("pad_during_tiling is true, expected false")
        made = cls(images)
        patches = side_of(vision, "image_size", 224) // side_of(vision, "patch_size", 16)
        made._tokens = int(patches * whole.positive("downsample_ratio", 0.5)) ** 2
        return made

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        count = int(image_inputs["num_patches"][image_idx]) * self._tokens
        return f"<image {NUMBER}><img>{_EAGLE_EMBEDDED * count}</img>"


class NemotronVLProcessor(OwnProcessor):
    """Tiles as InternVL has them, normed as the model's files say."""

    image_token = "<image>"
    embedded = image_token
    """The token in whose place an embedding is."""
    images: Any = transformers.GotOcr2ImageProcessorPil
    names: Mapping[str, str] = {"image_mean": "norm_mean", "image_std": "norm_std", "max_patches": "max_num_tiles"}
    """Fields of the model's files."""
    norms: Mapping[str, Sequence[float]] = {}
    """Where files have none; otherwise those of transformers' class."""

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)
        self._tokens = 256

    @classmethod
    def of(cls, folder: Path) -> "NemotronVLProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        whole = Fields(files.read("config.json"))
        settings = Fields({**whole.values, **files.read("preprocessor_config.json")})
        vision = Fields(whole.table("vision_config") or {})
        side = side_of(whole, "force_image_size", side_of(vision, "image_size", 512))
        said = {name: settings.numbers(cls.names[name]) for name in ("image_mean", "image_std")}
        norms = {**cls.norms, **{name: values for name, values in said.items() if values}}
        square = {"height": side, "width": side}
        made = cls(cls._tiles(whole, settings, {"size": square, **{name: list(norms[name]) for name in norms}}))
        patch = side_of(vision, "patch_size", 16)
        made._tokens = int(side // patch * whole.positive("downsample_ratio", 0.5)) ** 2
        return made

    @classmethod
    def _tiles(cls, whole: Fields, settings: Fields, given: Mapping[str, Any]) -> Any:
        """The image processor. ``whole``: config.json; ``settings``: with preprocessor_config.json. ``given``: the
        tiles' size and norms."""
        if not settings.flag("use_thumbnail", True):
            raise ValueError("use_thumbnail is false, expected true")
        return cls.images(
            crop_to_patches=whole.flag("dynamic_image_size", True),
            min_patches=whole.integer("min_dynamic_patch", 1),
            max_patches=settings.integer(cls.names["max_patches"], 12),
            **given,
        )

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        count = int(image_inputs["num_patches"][image_idx]) * self._tokens
        return f"<img>{self.embedded * count}</img>"


class LlamaNemotronNanoVLProcessor(NemotronVLProcessor):
    """Of Llama Nemotron Nano VL: tiles as Eagle has them."""

    norms: Mapping[str, Sequence[float]] = {"image_mean": OPENAI_CLIP_MEAN, "image_std": OPENAI_CLIP_STD}

    @classmethod
    def _tiles(cls, whole: Fields, settings: Fields, given: Mapping[str, Any]) -> Any:
        return EagleImages(
            max_dynamic_tiles=settings.integer(cls.names["max_patches"], 12),
            use_thumbnail=settings.flag("use_thumbnail", True),
            **given,
        )


class NemotronEmbedProcessor(NemotronVLProcessor):
    """Of NVIDIA's embedders and rerankers: tiles as Eagle has them, whose number processor_config.json bounds."""

    embedded = "<IMG_CONTEXT>"

    @classmethod
    def of(cls, folder: Path) -> "NemotronEmbedProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        whole, own = Fields(files.read("config.json")), Fields(files.read("processor_config.json"))
        vision = Fields(whole.table("vision_config") or {})
        side = side_of(whole, "force_image_size", side_of(vision, "image_size", 512))
        least = own.integer("min_input_tiles", whole.integer("min_dynamic_patch", 1))
        most = own.integer("max_input_tiles", whole.integer("max_dynamic_patch", 6))
        if not own.flag("dynamic_image_size", whole.flag("dynamic_image_size", True)):
            least = most = 1
        made = cls(
            EagleImages(
                size={"height": side, "width": side},
                min_dynamic_tiles=least,
                max_dynamic_tiles=max(least, most),
                use_thumbnail=own.flag("use_thumbnail", True),
            )
        )
        made._tokens = int(side // side_of(vision, "patch_size", 16) * whole.positive("downsample_ratio", 0.5)) ** 2
        return made


class InternVLChatProcessor(NemotronVLProcessor):
    """Of InternVL as first published, and of Qianfan-OCR."""

    embedded = "<IMG_CONTEXT>"
    names: Mapping[str, str] = {
        "image_mean": "image_mean",
        "image_std": "image_std",
        "max_patches": "max_dynamic_patch",
    }
    norms: Mapping[str, Sequence[float]] = {"image_mean": IMAGENET_DEFAULT_MEAN, "image_std": IMAGENET_DEFAULT_STD}


class NVLMProcessor(InternVLChatProcessor):
    """Each tile stands behind its name, and the whole behind its own, also where it is the only one."""

    embedded = "<|vision_pad|>"

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        tiles = range(1, int(image_inputs["num_patches"][image_idx]))
        names = [*(f"<tile_{number}>" for number in tiles), "<tile_global_thumbnail>"]
        return f"<Image>{''.join(name + self.embedded * self._tokens for name in names)}</Image>"


class H2OVLProcessor(InternVLChatProcessor):
    """Of H2OVL-Mississippi, which cuts the one picture of a conversation into two grids."""

    images: Any = H2OVLImages
    in_company: Mapping[str, object] = {"use_msac": False}
    """Options for pictures beside others."""

    @classmethod
    def of(cls, folder: Path) -> "NemotronVLProcessor":
        made = super().of(folder)
        whole = Fields(ModelFiles(folder).read("config.json"))
        if not whole.flag("dynamic_image_size", True):
            raise ValueError("dynamic_image_size is false, expected true")
        made.image_processor.use_msac = whole.flag("use_msac", True)
        return made


class DeepseekOcrProcessor(OwnProcessor):
    image_token = "<image>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)

    @classmethod
    def of(cls, folder: Path) -> "DeepseekOcrProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        first = FIRST in (Fields(files.read("config.json")).texts("architectures") or ())
        known = ("size", "tile_size", "min_patches", "max_patches")
        given = {name: value for name, value in files.read("preprocessor_config.json").items() if name in known}
        return cls((DeepseekOcrImages if first else DeepseekOcr2Images)(**given))

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        return self.image_token * int(self.image_processor.embeddings(image_inputs, image_idx))


class UnlimitedOcrProcessor(DeepseekOcrProcessor):
    """Only the one picture of a conversation has tiles."""

    in_company: Mapping[str, object] = {"crop_to_patches": False}
    """Options for pictures beside others."""

    @classmethod
    def of(cls, folder: Path) -> "UnlimitedOcrProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        told = {**(files.read("processor_config.json").get("image_processor") or {})}
        told |= files.read("preprocessor_config.json")
        known = ("size", "tile_size", "min_patches", "max_patches")
        images = UnlimitedOcrImages(**{name: told[name] for name in known if name in told})
        size: Any = images.size  # transformers types it as it is given, not as it is kept
        if size.height <= (least := int(told.get("maximum_pad_value", 640))):
            raise ValueError(f"size is {size.height} pixels a side, expected more than {least}")
        return cls(images)


class IsaacProcessor(GridProcessor):
    """A picture is a token for each square of patches, without marks."""

    image_token = "<image>"
    embedded = "<|image_pad|>"

    @classmethod
    def of(cls, folder: Path) -> "IsaacProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        whole = files.read("config.json")
        told = Fields(
            {**{n.removeprefix("vision_"): whole[n] for n in whole}, **files.read("preprocessor_config.json")}
        )
        vision = Fields(Fields(whole).table("vision_config") or {})
        bounds = {f"{edge}_patches": told.get(f"{edge}_num_patches") for edge in ("min", "max")}
        return cls(
            IsaacImages(
                patch_size=side_of(vision, "patch_size", 16),
                merge_size=vision.integer("pixel_shuffle_scale_factor", 1),
                **{name: value for name, value in bounds.items() if value is not None},
            )
        )


class Phi4SiglipProcessor(OwnProcessor):
    """Of Phi-4-reasoning-vision: a picture is a token for each patch. Its vocabulary has none for them: as in vLLM,
    they take one of those that nothing else uses."""

    image_token = "<image>"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)

    @classmethod
    def of(cls, folder: Path) -> "Phi4SiglipProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        whole = files.read("config.json")
        told = Fields({**whole, **files.read("preprocessor_config.json")})
        patch = side_of(Fields(Fields(whole).table("vision_config") or {}), "patch_size", 16)
        if (own := told.integer("patch_size", patch)) != patch:
            raise ValueError(f"patch_size is {own}, expected that of the tower, {patch}")
        bounds = {f"{edge}_patches": told.integer(f"{edge}_num_patches", most) for edge, most in _PHI4_BOUNDS.items()}
        return cls(Phi4SiglipImages(patch_size=patch, **bounds))

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        return "<|dummy_0|>" * int(image_inputs["spatial_shapes"][image_idx].prod())


class ChatGLM4VProcessor(OwnProcessor):
    """Of GLM-4V 9B: a picture is one square, a token for each four of its patches between two marks."""

    _around = "<|begin_of_image|>", "<|end_of_image|>"
    _embedded = "<|endoftext|>"
    image_token = _embedded.join(_around)

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)
        self._side = 40

    @classmethod
    def of(cls, folder: Path) -> "ChatGLM4VProcessor":
        """From the files of a model."""
        vision = Fields(Fields(ModelFiles(folder).read("config.json")).table("vision_config") or {})
        pixels = side_of(vision, "image_size", 1120)
        square = {"height": pixels, "width": pixels}
        made = cls(transformers.CLIPImageProcessorPil(size=square, do_center_crop=False))
        made._side = pixels // side_of(vision, "patch_size", 14) // 2
        return made

    def grid(self, _: Mapping[str, Any]) -> tuple[int, int, int]:
        """Frames, rows and columns of a picture's embeddings."""
        return 1, self._side, self._side

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        return (self._embedded * self._side**2).join(self._around)


class NemotronParseProcessor(LonePictures):
    """Of Nemotron Parse. Files of the first version leave norms to the encoder (``do_normalize``)."""

    @classmethod
    def of(cls, folder: Path) -> "NemotronParseProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        told = Fields(files.read("preprocessor_config.json"))
        whole = Fields(files.read("config.json"))
        sides = whole.numbers("image_size") or told.numbers("final_size") or _PARSE_SIDES
        size = dict(zip(("height", "width"), map(int, sides), strict=True))
        norms = {name: said for name in ("image_mean", "image_std") if (said := told.numbers(name))}
        if not told.flag("do_normalize"):
            norms = {"image_mean": (0.0,) * 3, "image_std": (1.0,) * 3}
        return cls(ParseImages(size=size, **{name: list(values) for name, values in norms.items()}))


class Pix2StructProcessor(LonePictures):
    """Of Pix2Struct, which sees no more patches than its encoder numbers. Questions that are drawn above a picture are
    left out: the font is in no file of a model."""

    @classmethod
    def of(cls, folder: Path) -> "Pix2StructProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        told, whole = Fields(files.read("preprocessor_config.json")), Fields(files.read("config.json"))
        if told.flag("is_vqa") or whole.flag("is_vqa"):
            raise ValueError("is_vqa is true: questions would be drawn into its pictures, expected a model without any")
        if not told.flag("do_normalize", True):
            raise ValueError("do_normalize is false, expected true")
        patch = Fields(told.table("patch_size") or {})
        sides = {name: patch.integer(name, 16) for name in ("height", "width")}
        if len({*sides.values()}) > 1:
            raise ValueError(f"patch_size is {sides}, expected a square")
        most = Fields(whole.table("vision_config") or {}).integer("seq_len", 4096, least=2) - 1
        patches = min(told.integer("max_patches", Pix2StructImages.max_patches), most)
        return cls(Pix2StructImages(max_patches=patches, patch_size=sides))


class MuseProcessor(GridProcessor):
    """Of Muse Glimmer and Muse Spark: the patches of a picture between two marks."""

    def __init__(self, image_processor: Any = None, names: Mapping[str, str] | None = None) -> None:
        """``names``: the tokens of pictures that files name otherwise."""
        super().__init__(image_processor)
        self.image_token, self._begin, self._end = ({**_MUSE_TOKENS, **(names or {})}[name] for name in _MUSE_TOKENS)

    @classmethod
    def of(cls, folder: Path) -> "MuseProcessor":
        """From the files of a model."""
        told = ModelFiles(folder).read("tokenizer_config.json")
        names = {name: said for name in _MUSE_TOKENS if isinstance(said := told.get(name), str)}
        return cls(MuseImages.from_pretrained(folder), names)

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        return f"{self._begin}{self.embeddings(image_inputs, image_idx)}{self._end}"


class NemotronOmniProcessor(OwnProcessor):
    """Pictures of any shape; videos as a picture of each two frames behind their times; sounds."""

    image_token = "<image>"
    video_token = "<video>"

    def __init__(self, image_processor: Any = None, sounds: ParakeetSounds | None = None) -> None:
        super().__init__(image_processor)
        self._sounds = sounds
        if sounds is not None:
            self.audio_token = "<so_embedding>"

    @classmethod
    def of(cls, folder: Path) -> "NemotronOmniProcessor":
        """From the files of a model."""
        return cls(NemotronOmniImages.from_pretrained(folder), ParakeetSounds.of(ModelFiles(folder)))

    @property
    def feature_extractor(self) -> Any:
        """The feature extractor of audio; None if the model takes none."""
        return self._sounds

    @property
    def unused_input_names(self) -> list[str]:
        return []

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        patches = int(image_inputs["image_grid_hw"][image_idx].prod())
        return self._shown(patches // self.image_processor.merge**2)

    def replace_video_token(self, video_inputs: Any, video_idx: int, **_: Any) -> str:
        stated, shown = video_inputs["video_metadata"][video_idx], self._shown(video_inputs["embeddings"])
        of_a_frame = int(1000 / stated.fps)  # milliseconds
        told = [
            f"rame {number + 1} sampled at {index * of_a_frame / 1000:.2f} seconds"
            for number, index in enumerate(stated.frames_indices)
        ]
        pairs = (told[first : first + 2] for first in range(0, len(told), 2))
        return "\n".join(f"F{' and f'.join(pair)}: {shown}" for pair in pairs)

    def _shown(self, count: int) -> str:
        return f"<img>{self.image_token * count}</img>"

    def _process_audio(self, audio: Any, **_: Any) -> Any:
        assert self._sounds is not None
        found, count = self._sounds(audio[0])
        return found, [f"<so_start>{self.audio_token * count}<so_end>"]
