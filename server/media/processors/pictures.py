"""Processors of multimodal models whose own in transformers needs torchvision or another package: the text of a picture
or a video. Run in the child."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import transformers as untyped_transformers
from transformers import Idefics3Processor
from transformers.processing_utils import ProcessorMixin

from stentor.engine.model_config.config_fields import Fields

from ...text.templates.placeholders import AGAIN, SPACE
from .model_files import ModelFiles
from .own_processor import OwnProcessor

transformers: Any = untyped_transformers

_UNITS: Final = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


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
_HY4: Final[Mapping[str, tuple[str, int]]] = {
    "image_token": ("image_token_id", 120_120),
    "video_token": ("video_token_id", 120_124),
}


class HunYuanVLProcessor(transformers.HunYuanVLProcessor):  # type: ignore[misc]
    """Tokens of pictures that the tokenizer's files do not name have the ids of the model's."""

    @classmethod
    def of(cls, folder: Path) -> "HunYuanVLProcessor":
        """From the files of a model."""
        return cls(_images(folder), _naming(folder, _HUNYUAN))


class HYV4VLProcessor(transformers.HYV4VLProcessor):  # type: ignore[misc]
    """Tokens of media that the tokenizer's files do not name have the ids of the model's."""

    @classmethod
    def of(cls, folder: Path) -> "HYV4VLProcessor":
        """From the files of a model."""
        images = _images(folder)
        return cls(images, _naming(folder, _HY4), FrameProcessor(images))

    def check_argument_for_proper_class(self, *_: object) -> None:
        """Takes any: transformers' own class for videos needs torchvision."""

    def grid(self, tensors: Mapping[str, Any]) -> tuple[int, int, int]:
        """One frame; rows and columns of embeddings, with the one at the end of each row."""
        _, rows, columns = (int(number) // self.image_processor.merge_size for number in tensors["image_grid_thw"][0])
        return 1, rows, columns + 1


def _images(folder: Path) -> Any:
    return transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)


def _naming(folder: Path, named: Mapping[str, tuple[str, int]]) -> Any:
    """The tokenizer of a model's files, in which tokens have the names ``named``: where its files do not name them, by
    the field of the model's config.json with their id, and its default."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    config = Fields(ModelFiles(folder).read("config.json"))
    ids = {name: config.integer(field, default) for name, (field, default) in named.items()}
    unnamed = {name: id for name, id in ids.items() if not hasattr(tokenizer, name)}
    if unnamed:
        unnamed = {name: tokenizer.convert_ids_to_tokens(id) for name, id in unnamed.items()}
        tokenizer._set_model_specific_special_tokens(special_tokens=unnamed)
    return tokenizer


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
