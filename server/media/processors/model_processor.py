"""A model's processor, for one piece of media at a time. Runs in the child."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from PIL import Image
from safetensors.numpy import save

from stentor.engine.model_config.hf.thinker import thinker
from stentor.engine.model_config.towers.media_spec import Modality, lacks_timm

from ..decoding.decode_audio import SAMPLE_RATE
from ..decoding.decode_image import Opaque, on_white
from ..decoding.decode_video import Choose, DecodedVideo
from ..refusal import Refusal
from .load_processor import load
from .model_files import GivenFiles, ModelFiles, Source
from .model_videos import VideoSettings
from .processor_classes import ALIKE, ProcessorError, class_name
from .processor_options import LOW_DETAIL_PIXELS, NO_OPTIONS, UNKNOWN_OPTION, with_defaults
from .videos_of_models import VIDEOS

_PAGE_TOKENS: Final[Mapping[str, int]] = {"ColQwen3Processor": 1280, "ColQwen3_5Processor": 1792}
"""Most tokens of a picture of retrievers, whatever their files say, as in their makers' code."""
_COUNTED: Final = frozenset({"rows", "cols", "num_crops", "num_patches", "num_tiles"})
"""Outputs of processors that are not tensors for the model: numbers for the text."""
_BY_COMPANY: Final = frozenset({"LlavaOnevisionProcessor"})
"""Processors that cut a picture into tiles only where it is the conversation's only one."""
_SOUND_SECONDS: Final[Mapping[str, int]] = {"Gemma3nProcessor": 30}
"""Longest sound in seconds of processors that truncate longer ones silently."""
_AT_MOST: Final = ("max_patches", "max_soft_tokens")
"""Options of which no request gets more than the model has."""
_OF_VIDEOS: Final = ("fps", "num_frames")
_PIXEL_MASK: Final = "pixel_attention_mask"
_DOT: Final = Image.new("RGB", (1, 1))


class ModelInputs(NamedTuple):
    """A processor's result for one piece of media."""

    payload: bytes
    """safetensors."""
    replacement: str
    grid: tuple[int, int, int] | None
    interval: float = 1.0
    """Distance of the positions of two frames."""


_NOTHING: Final = re.compile(r"\b(?:height|width)=0\b")
"""In an error of transformers: a picture is resized to nothing."""


class ModelProcessor:
    """A model's processor, for one piece of media at a time."""

    def __init__(self, source: Source, defaults: Mapping[str, object] = NO_OPTIONS) -> None:
        """``source``: the model's folder, or its replacement. ``defaults``: options that hold where a call has none.
        Raises :class:`.processor_classes.ProcessorError`."""
        self._defaults = defaults
        files = ModelFiles(source)
        named = class_name(files)
        self._name = ALIKE.get(named, named)
        self._processor = load(files, self._name)
        if named in _PAGE_TOKENS:
            images = self._processor.image_processor
            images.size["longest_edge"] = _PAGE_TOKENS[named] * (images.patch_size * images.merge_size) ** 2
        self._around_sounds = source.around_sounds if isinstance(source, GivenFiles) else ("", "")
        self.written: dict[Modality, str] = {}
        self.missing: dict[Modality, str] = {}
        parts: dict[Modality, str] = {"image": "image_processor", "audio": "_audio_processor"}
        if lacks_timm(files.read("config.json")):
            self.missing["image"] = "timm, which encodes them, is not installed"
            del parts["image"]
        for modality, part in parts.items():
            said = getattr(self._processor, f"{modality}_token", None)
            said = getattr(self._processor, f"{modality}_placeholder_token", said)
            if modality == "audio" and _lacks_audio_encoder(files):
                self.missing["audio"] = "the model has no encoder of sounds"
                continue
            if said is not None and getattr(self._processor, part, None) is not None:
                self.written[modality] = said.join(self._around_sounds) if modality == "audio" else said
        self._videos = VIDEOS.get(self._name)
        video = getattr(self._processor, "video_token", None)
        video = getattr(self._processor, "video_placeholder_token", video)
        if video is not None and self._videos is not None:
            self.written["video"] = video
            self._video_settings = VideoSettings.of(files, self._videos.settings)
            self._beat = _tokens_per_second(files)
        elif video is not None:
            self.missing["video"] = f"frames of {self._name}'s videos are put together by torchvision alone"
        if "image" in self.written:
            try:
                self._arguments({})
            except Refusal as refusal:
                raise ProcessorError(f"--mm-processor-kwargs: {refusal}") from None

    @property
    def by_company(self) -> bool:
        """Whether a picture is cut up otherwise where it is not the only one of its conversation."""
        return self._name in _BY_COMPANY or bool(self._in_company)

    @property
    def _in_company(self) -> Mapping[str, object]:
        """Options for a picture that is not the only one of its conversation."""
        return getattr(self._processor, "in_company", {})

    @property
    def opaque(self) -> Opaque:
        """What puts transparent pictures on what the model expects behind them."""
        own: Opaque = getattr(getattr(self._processor, "image_processor", None), "opaque", on_white)
        return own

    def image(self, picture: Image.Image, options: Mapping[str, object], *, alone: bool) -> ModelInputs:
        """Raises :class:`..refusal.Refusal` for an image that the model cannot take."""
        processor = self._processor
        arguments = self._arguments(options)
        if not alone:
            arguments |= self._in_company
        apart = alone or self._name not in _BY_COMPANY
        images, *_ = processor.prepare_inputs_layout(images=[picture] if apart else [[picture, _DOT]])
        try:
            found, (replacement, *_) = processor._process_images(images, **arguments)
        except (ValueError, ZeroDivisionError) as error:
            if isinstance(error, ZeroDivisionError) or _NOTHING.search(str(error)):
                width, height = picture.size
                error = ValueError(f"of its {width} x {height} pixels a side becomes shorter than one")
            raise _refused("picture", error) from None
        tensors = _tensors(found, processor.unused_input_names)
        if not apart:
            tensors = {name: values[:1] for name, values in tensors.items()}
            tensors["batch_num_images"] = np.array([2])
        own = getattr(processor, "grid", None)
        grid = self._grid(tensors.get("image_grid_thw")) if own is None else own(tensors)
        return ModelInputs(_payload(tensors, "image"), replacement, grid)

    def choose_frames(self, options: Mapping[str, object]) -> Choose:
        """The chooser of a video's frames."""
        assert self._videos is not None
        return self._video_settings.choose(with_defaults(options, self._defaults), self._videos.step)

    def video(self, video: DecodedVideo, options: Mapping[str, object] = NO_OPTIONS) -> ModelInputs:
        """Raises :class:`..refusal.Refusal` for a video that the model cannot take."""
        assert self._videos is not None
        images = self._processor.image_processor
        settings = self._video_settings.within(with_defaults(options, self._defaults).get("size"), images)
        try:
            found = self._videos.make(images, video, settings, self._beat)
            replacement = self._processor.replace_video_token(found.figures, 0, **self._videos.arguments)
        except (ValueError, ZeroDivisionError) as error:
            raise _refused("video", error) from None
        modality: Modality = "image" if found.as_pictures else "video"
        return ModelInputs(_payload(found.tensors, modality), replacement, found.grid, found.interval)

    def audio(self, samples: Any) -> ModelInputs:
        """``samples``: of one channel, at :data:`..decoding.decode_audio.SAMPLE_RATE`. Raises
        :class:`..refusal.Refusal`."""
        processor = self._processor
        arguments = {**processor._merge_kwargs()["audio_kwargs"], "sampling_rate": SAMPLE_RATE, "return_tensors": "np"}
        try:
            if (most := _SOUND_SECONDS.get(self._name)) is not None and len(samples) > most * SAMPLE_RATE:
                raise ValueError(f"it takes {most} seconds at most")
            found, (replacement, *_) = processor._process_audio([samples], **arguments)
        except (ValueError, ZeroDivisionError) as error:
            raise _refused("sound", error) from None
        tensors = _tensors(found, processor.unused_input_names)
        if any(0 in values.shape for values in tensors.values()):
            raise _refused("sound", ValueError("it is too short"))
        return ModelInputs(_payload(tensors, "audio"), replacement.join(self._around_sounds), None)

    def _arguments(self, options: Mapping[str, object]) -> dict[str, Any]:
        """Arguments of the image processor: the model's own, and a request's changes."""
        images = self._processor.image_processor
        known = getattr(images, "valid_kwargs", None)
        names: dict[str, Any] = getattr(known, "__annotations__", {})
        given: dict[str, Any] = dict(options)
        if given.pop("detail", "auto") == "low":
            given = with_defaults(given, _coarser(_low_detail(images, names), self._defaults))
        given = with_defaults(given, self._defaults)
        edges = _edges(images, names, given.pop("size", None))
        given = {name: value for name, value in given.items() if name not in _OF_VIDEOS}
        for name in given.keys() & _AT_MOST:
            given[name] = min(given[name], getattr(images, name, 0))
        if "min_patches" in given:
            most = given.get("max_patches", getattr(images, "max_patches", 0))
            given["min_patches"] = min(given["min_patches"], most)
        if unknown := given.keys() - names.keys():
            raise Refusal(f"the model's processor has no {min(unknown)}", UNKNOWN_OPTION)
        merged: dict[str, Any] = self._processor._merge_kwargs(**given)["images_kwargs"]
        return {**merged, **edges, "return_tensors": "np"}

    def _grid(self, patches: Any) -> tuple[int, int, int] | None:
        """``patches``: frames, rows and columns, of each picture."""
        if patches is None:
            return None
        merge = int(getattr(self._processor.image_processor, "merge_size", 1))
        frames, rows, columns = (int(number) for number in patches[0])
        return frames, rows // merge, columns // merge


def _refused(what: str, error: Exception) -> Refusal:
    return Refusal(f"the model's processor refuses the {what}: {' '.join(str(error).split())[:200]}")


def _lacks_audio_encoder(files: ModelFiles) -> bool:
    """Whether the model has none of its family's encoders of sounds: large ones of Gemma 4."""
    return files.read("config.json").get("audio_config", "") is None


def _tokens_per_second(files: ModelFiles) -> float:
    """Positions of a second of a video; 0 if positions do not depend on time."""
    config = thinker(files.read("config.json"))
    vision = config.get("vision_config")
    beat = vision.get("tokens_per_second") if isinstance(vision, dict) else None
    return float(beat or config.get("position_id_per_seconds") or 0)  # type: ignore[arg-type]


def _low_detail(images: Any, names: Mapping[str, object]) -> dict[str, object]:
    """The fewest tiles, or at most :data:`.processor_options.LOW_DETAIL_PIXELS` pixels."""
    if (own := getattr(images, "low_detail", None)) is not None:
        return dict(own)
    if "do_image_splitting" in names:
        return {"do_image_splitting": False}
    if "crop_to_patches" in names:
        return {"crop_to_patches": False}
    if "max_pixels" in names:
        return {"max_pixels": LOW_DETAIL_PIXELS}
    if getattr(images.size, "longest_edge", None):
        return {"size": {"longest_edge": int(LOW_DETAIL_PIXELS**0.5)}}
    return {}


def _coarser(options: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """``options`` with no number above that of ``defaults``."""
    low, usual = with_defaults(options, {}), with_defaults({}, defaults)
    return {name: _lower(value, usual.get(name)) for name, value in low.items()}


def _lower(value: object, usual: object) -> object:
    if isinstance(value, dict) and isinstance(usual, dict):
        return {name: _lower(each, usual.get(name)) for name, each in value.items()}
    return min(value, usual) if isinstance(value, int) and isinstance(usual, int) else value


def _edges(images: Any, names: Mapping[str, object], wanted: Any) -> dict[str, Any]:
    """``size``, if the request changes it: never beyond the model's own, which its tower may not support."""
    own = {edge: getattr(images.size, edge, None) for edge in ("shortest_edge", "longest_edge")}
    most = own["longest_edge"]
    if not wanted:
        return {}
    if most is None:
        other = "; it takes max_patches" if "max_patches" in names else ": it sees all pictures in one size"
        raise Refusal(f"the model's processor has no bounds of pixels{other}", UNKNOWN_OPTION)
    longest = min(wanted.get("longest_edge", most), most)
    if own["shortest_edge"] is None:
        return {"size": {"longest_edge": longest}}
    shortest = min(wanted.get("shortest_edge", own["shortest_edge"]), longest)
    return {"size": {"shortest_edge": shortest, "longest_edge": longest}}


def _tensors(found: Mapping[str, Any], unused: Sequence[str]) -> dict[str, Any]:
    tensors = {}
    for name, value in found.items():
        if name not in _COUNTED and name not in unused:
            array = np.asarray(value)
            if name == _PIXEL_MASK and array.ndim > 2 and array.all():
                continue  # the default of the model, and two thirds the size of the pixels
            tensors[name] = array.astype(np.float32) if array.dtype == np.float64 else array
    return tensors


def _payload(tensors: Mapping[str, Any], modality: Modality) -> bytes:
    whole = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    return save(whole, metadata={"modality": modality})
