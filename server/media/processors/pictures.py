"""Processors of multimodal models whose own needs torchvision or another package, or comes with the checkpoint: the
text of a picture or a video. Run in the child."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import transformers as untyped_transformers
from transformers import Idefics3Processor
from transformers.processing_utils import ProcessorMixin

from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.hf.deepseek_ocr import FIRST
from stentor.engine.model_config.towers.vision_fields import side_of

from ...text.templates.placeholders import AGAIN, NUMBER, SPACE
from .audio import ParakeetSounds
from .images.deepseek_ocr import DeepseekOcr2Images, DeepseekOcrImages
from .images.eagle import EagleImages
from .images.h2ovl import H2OVLImages
from .images.muse import MuseImages
from .images.nemotron import NemotronOmniImages
from .images.ovis import Ovis25Images
from .model_files import ModelFiles
from .own_processor import OwnProcessor

transformers: Any = untyped_transformers

_UNITS: Final = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_OVIS_MARKS: Final = 2
"""Embeddings around an image of Ovis 2.5, with the same placeholder token."""
_MUSE_TOKENS: Final[Mapping[str, str]] = {
    **{"image_token": "<|patch|>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"}
}
_EAGLE_EMBEDDED: Final = "<IMG_CONTEXT>"


class PixtralProcessor(OwnProcessor):
    """Also for Mistral 3. A picture is rows of ``[IMG]``, one for each merged patch; ``[IMG_BREAK]`` ends a row,
    ``[IMG_END]`` the last."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: str | None = None,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.image_token = image_token
        self._merged = patch_size * spatial_merge_size
        """Pixels on each side of one token's area."""
        self._break = image_break_token
        self._end = image_end_token

    def _process_images(self, images: Any, **arguments: Any) -> Any:
        return super()._process_images(images, **{**arguments, "patch_size": self._merged})

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        height, width = (int(length) // self._merged for length in image_inputs["image_sizes"][image_idx])
        row = self.image_token * width
        return self._break.join([row] * height) + self._end


class FuyuProcessor(OwnProcessor):
    """A picture is rows of ``|SPEAKER|``, each of which ``|NEWLINE|`` ends. transformers' own class needs torch."""

    image_token = "|SPEAKER|"

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        rows, columns = (int(image_inputs[name][image_idx]) for name in ("rows", "cols"))
        return (self.image_token * columns + "|NEWLINE|") * rows


class SmolVLMProcessor(Idefics3Processor):
    """Spells numbers itself. A video is its frames as pictures that are not cut up, each behind its time."""

    def __init__(
        self, image_processor: Any, tokenizer: Any = None, image_seq_len: int = 169, chat_template: str | None = None
    ) -> None:
        super().__init__(image_processor, tokenizer, image_seq_len, chat_template)
        self.video_token = getattr(tokenizer, "video_token", "<video>")

    def replace_video_token(self, video_inputs: Any, video_idx: int, **_: Any) -> str:
        metadata = video_inputs["video_metadata"][video_idx]
        frames = len(metadata.timestamps)
        hours, minutes, seconds = _clock(metadata.duration)
        text = f"You are provided the following series of {spelled(frames)} frames from a "
        text += f"{hours}:{minutes:02d}:{seconds:02d} [H:MM:SS] video.\n"
        ends = self.fake_image_token
        picture = f"{ends}{self.global_image_tag}{self.image_token * self.image_seq_len}{ends}"
        for time in metadata.timestamps:
            text += f"\nFrame from {int(time // 60):02d}:{int(time % 60):02d}:{picture}"
        return text + "\n\n"


def _clock(seconds: float) -> tuple[int, int, int]:
    minutes, left = divmod(int(seconds), 60)
    return *divmod(minutes, 60), left


def spelled(number: int) -> str:
    """In words, below 1,000."""
    if number < len(_UNITS):
        return _UNITS[number]
    if number < 100:
        tens, units = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_UNITS[units]}" if units else "")
    hundreds, left = divmod(number, 100)
    return f"{_UNITS[hundreds]} hundred" + (f" and {spelled(left)}" if left else "")


class ColModernVBertProcessor(Idefics3Processor):
    """transformers' own class needs torch for features that are not used here."""

    def __init__(
        self, image_processor: Any, tokenizer: Any = None, image_seq_len: int = 64, chat_template: str | None = None
    ) -> None:
        super().__init__(image_processor, tokenizer, image_seq_len, chat_template)


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

    def __init__(self, image_processor: Any = None) -> None:
        super().__init__(image_processor)
        self._tokens = 256

    @classmethod
    def of(cls, folder: Path) -> "NemotronVLProcessor":
        """From the files of a model."""
        files = ModelFiles(folder)
        whole = Fields(files.read("config.json"))
        settings = Fields({**whole.values, **files.read("preprocessor_config.json")})
        if not settings.flag("use_thumbnail", True):
            raise ValueError("use_thumbnail is false, expected true")
        vision = Fields(whole.table("vision_config") or {})
        side = side_of(whole, "force_image_size", side_of(vision, "image_size", 512))
        norms = {name: settings.numbers(cls.names[name]) for name in ("image_mean", "image_std")}
        made = cls(
            cls.images(
                size={"height": side, "width": side},
                crop_to_patches=True,
                max_patches=settings.integer(cls.names["max_patches"], 12),
                **{name: list(values) for name, values in norms.items() if values},
            )
        )
        patch = side_of(vision, "patch_size", 16)
        made._tokens = int(side // patch * whole.positive("downsample_ratio", 0.5)) ** 2
        return made

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        count = int(image_inputs["num_patches"][image_idx]) * self._tokens
        return f"<img>{self.embedded * count}</img>"


class InternVLChatProcessor(NemotronVLProcessor):
    """Of InternVL as first published, and of Qianfan-OCR."""

    embedded = "<IMG_CONTEXT>"
    names: Mapping[str, str] = {
        "image_mean": "image_mean",
        "image_std": "image_std",
        "max_patches": "max_dynamic_patch",
    }


class H2OVLProcessor(InternVLChatProcessor):
    """Of H2OVL-Mississippi, which cuts the one picture of a conversation into two grids."""

    images: Any = H2OVLImages
    in_company: Mapping[str, object] = {"use_msac": False}
    """Options for pictures beside others."""

    @classmethod
    def of(cls, folder: Path) -> "NemotronVLProcessor":
        made = super().of(folder)
        whole = Fields(ModelFiles(folder).read("config.json"))
        made.image_processor.use_msac = whole.flag("use_msac", True)
        made.image_processor.min_patches = whole.integer("min_dynamic_patch", 1)
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


class MuseProcessor(OwnProcessor):
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
        count = int(image_inputs["image_grid_thw"][image_idx].prod()) // self.image_processor.merge_size**2
        return f"{self._begin}{self.image_token * count}{self._end}"


class Idefics2Processor(OwnProcessor):
    """A picture, or each of its parts, stands between marks; two pictures share one."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        image_seq_len: int = 64,
        chat_template: str | None = None,
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.image_token = getattr(tokenizer, "image_token", "<image>")
        self._mark = getattr(tokenizer, "image_boundary_token", "<fake_token_around_image>")
        self._tokens = image_seq_len

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        parts = image_inputs["pixel_values"].shape[1]
        found: str = self._mark + AGAIN + (self.image_token * self._tokens + self._mark) * parts + SPACE
        return found


class Blip2Processor(OwnProcessor):
    """A picture is a fixed number of tokens. transformers' own puts them before the whole prompt."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, num_query_tokens: int = 32) -> None:
        super().__init__(image_processor, tokenizer)
        self.image_token = getattr(tokenizer, "image_token", "<image>")
        self._tokens = num_query_tokens

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        found: str = self.image_token * self._tokens
        return found


class GotOcrProcessor(transformers.GotOcr2Processor):  # type: ignore[misc]
    """transformers' own looks for the options of a whole call where pictures alone are given."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        num_image_tokens: int = 256,
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template)
        self.num_image_tokens = num_image_tokens

    def prepare_inputs_layout(self, images: Any = None, text: Any = None, **_: Any) -> Any:
        return ProcessorMixin.prepare_inputs_layout(self, images=images, text=text)

    def _process_images(self, images: Any, **arguments: Any) -> Any:
        return super()._process_images(images, **{**arguments, "num_image_tokens": self.num_image_tokens})


class Phi4Processor(OwnProcessor):
    """Pictures alone. transformers' own needs torchvision for them, and torch for sounds."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.image_token = tokenizer.image_token

    @property
    def unused_input_names(self) -> list[str]:
        return ["num_img_tokens"]

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        found: str = self.image_token * int(image_inputs["num_img_tokens"][image_idx])
        return found


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


class Cosmos3EdgeProcessor(transformers.Cosmos3EdgeProcessor):  # type: ignore[misc]
    @property
    def video_placeholder_token(self) -> str:
        """The placeholder with the marks around it: each frame has marks of its own."""
        return f"{self.vision_start_token}{self.video_token}{self.vision_end_token}"


class VideoLlama3Processor(transformers.VideoLlama3Processor):  # type: ignore[misc]
    """transformers' own counts what is kept of a video's frames by masks of torch."""

    def replace_video_token(self, video_inputs: Any, video_idx: int, **_: Any) -> str:
        times = video_inputs["video_metadata"][video_idx].timestamps
        counted = zip(times, video_inputs["kept"], strict=True)
        return ",".join(f"Time {time:.1f}s:{self.video_token * count}" for time, count in counted)


_HUNYUAN: Final[Mapping[str, tuple[str, int]]] = {
    "image_token": ("image_token_id", 120_120),
    "image_start_token": ("im_start_id", 120_118),
    "image_end_token": ("im_end_id", 120_119),
}


class HunYuanVLProcessor(transformers.HunYuanVLProcessor):  # type: ignore[misc]
    """Tokens of pictures that the tokenizer's files do not name have the ids of the model's."""

    @classmethod
    def of(cls, folder: Path) -> "HunYuanVLProcessor":
        """From the files of a model."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        config = Fields(ModelFiles(folder).read("config.json"))
        ids = {name: config.integer(field, default) for name, (field, default) in _HUNYUAN.items()}
        unnamed = {name: id for name, id in ids.items() if not hasattr(tokenizer, name)}
        if unnamed:
            unnamed = {name: tokenizer.convert_ids_to_tokens(id) for name, id in unnamed.items()}
            tokenizer._set_model_specific_special_tokens(special_tokens=unnamed)
        images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
        return cls(images, tokenizer)


class LonePictures:
    """For models whose pictures are not part of a text (CLIP). Its tokenizer is not loaded: the picture is the whole
    prompt."""

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


class FrameProcessor:
    """Replaces a video processor, which needs torchvision: has the attributes for writing a video's text.
    :mod:`.model_videos` makes the frames."""

    model_input_names: Final = ()

    def __init__(self, images: Any) -> None:
        """``images``: the image processor that makes the frames."""
        self.merge_size: Final = getattr(images, "merge_size", 1)
        self.temporal_patch_size: Final = getattr(images, "temporal_patch_size", 1)
