"""transformers' processor of a model, built without unneeded parts. Runs in the child.

transformers' own loader (``AutoProcessor``) requires torchvision for every model with videos. The image processors that
use Pillow and numpy do not, so they are loaded here one by one, on every machine: the same picture then gives the same
tensors everywhere.
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import transformers as untyped_transformers
from PIL import Image
from safetensors.numpy import save
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from stentor.engine.model_config.hf import nemotron_omni
from stentor.engine.model_config.hf.text_part import described_part
from stentor.engine.model_config.hf.thinker import thinker
from stentor.engine.model_config.towers.media_spec import Modality, lacks_timm

from ..decoding.decode_audio import SAMPLE_RATE
from ..decoding.decode_video import Choose, DecodedVideo
from ..refusal import Refusal
from .apertus import ApertusProcessor
from .audio import (
    AudioFlamingo3Processor,
    FunAsrNanoProcessor,
    FunAudioChatProcessor,
    GlmAsrProcessor,
    GraniteSpeechProcessor,
    MossTranscribeDiarizeProcessor,
    MusicFlamingoProcessor,
    Qwen3ASRProcessor,
    UltravoxProcessor,
    VoxtralProcessor,
)
from .grids import DotsVLProcessor, KeyeProcessor, KimiVLProcessor, OpenCUAProcessor
from .images.apertus import ApertusImages
from .images.cohere2 import Cohere2VisionImages
from .images.fuyu import FuyuImages
from .images.gemma4 import Gemma4UnifiedImages
from .images.keye import KeyeImages
from .images.kimi import KimiImages, KimiVLImages
from .images.lfm2_vl import Lfm2VlImages, Lfm2VlProcessor
from .images.llama4 import Llama4Images
from .images.minicpm import MiniCPMOcrImages, MiniCPMVImages
from .images.minimax import MiniMaxM3Images
from .images.molmo2 import Molmo2Images
from .images.perception_lm import PerceptionLMImages
from .images.phi4 import Phi4Images
from .images.step import StepImages
from .inkling import InklingProcessor
from .model_files import GivenFiles, ModelFiles, Source
from .model_videos import VideoSettings
from .pictures import (
    Blip2Processor,
    ColModernVBertProcessor,
    Cosmos3EdgeProcessor,
    EagleProcessor,
    FrameProcessor,
    FuyuProcessor,
    GotOcrProcessor,
    H2OVLProcessor,
    HunYuanVLProcessor,
    Idefics2Processor,
    InternVLChatProcessor,
    LonePictures,
    MuseProcessor,
    NemotronOmniProcessor,
    NemotronVLProcessor,
    Ovis25Processor,
    Phi4Processor,
    PixtralProcessor,
    SmolVLMProcessor,
    VideoLlama3Processor,
)
from .processor_name import processor_name
from .processor_options import LOW_DETAIL_PIXELS
from .slices import CanvasSlicesProcessor, MergedSlicesProcessor, SampledSlicesProcessor
from .tiled import DeepseekVL2Processor, MolmoProcessor, NormedOnevisionProcessor, Phi3VProcessor, Phi4MMProcessor
from .videos_of_models import VIDEOS
from .waveforms import VibeVoiceAsrProcessor

transformers: Any = untyped_transformers

_OWN: Final[Mapping[str, Any]] = {
    "Apertus1p5Processor": ApertusProcessor,
    "AudioFlamingo3Processor": AudioFlamingo3Processor,
    "Blip2Processor": Blip2Processor,
    "CLIPProcessor": LonePictures,
    "ColModernVBertProcessor": ColModernVBertProcessor,
    "Cosmos3EdgeProcessor": Cosmos3EdgeProcessor,
    "DeepseekVLV2Processor": DeepseekVL2Processor,
    "DotsVLProcessor": DotsVLProcessor,
    "Eagle2_5_VLProcessor": EagleProcessor,
    "FunAsrNanoProcessor": FunAsrNanoProcessor,
    "FunAudioChatProcessor": FunAudioChatProcessor,
    "FuyuProcessor": FuyuProcessor,
    "GlmAsrProcessor": GlmAsrProcessor,
    "GotOcr2Processor": GotOcrProcessor,
    "GraniteSpeechProcessor": GraniteSpeechProcessor,
    "H2OVLProcessor": H2OVLProcessor,
    "HunYuanVLProcessor": HunYuanVLProcessor,
    "Idefics2Processor": Idefics2Processor,
    "InklingProcessor": InklingProcessor,
    "InternVLChatProcessor": InternVLChatProcessor,
    **dict.fromkeys(("KeyeProcessor", "KeyeVL1_5Processor"), KeyeProcessor),
    "KimiVLProcessor": KimiVLProcessor,
    "Lfm2VlProcessor": Lfm2VlProcessor,
    **dict.fromkeys(("MiniCPMOcrProcessor", "MiniCPMV4_6Processor"), MergedSlicesProcessor),
    **dict.fromkeys(("MiniCPMOProcessor", "MiniCPMVProcessor"), SampledSlicesProcessor),
    "MiniCPMV4_7Processor": CanvasSlicesProcessor,
    "MolmoProcessor": MolmoProcessor,
    "MossTranscribeDiarizeProcessor": MossTranscribeDiarizeProcessor,
    **dict.fromkeys(("MuseGlimmerProcessor", "MuseSparkProcessor"), MuseProcessor),
    "MusicFlamingoProcessor": MusicFlamingoProcessor,
    "NemotronVLProcessor": NemotronVLProcessor,
    "OpenCUAProcessor": OpenCUAProcessor,
    "Ovis2_5Processor": Ovis25Processor,
    "Phi3VProcessor": Phi3VProcessor,
    "Phi4MMProcessor": Phi4MMProcessor,
    "Phi4MultimodalProcessor": Phi4Processor,
    "PixtralProcessor": PixtralProcessor,
    "NormedOnevisionProcessor": NormedOnevisionProcessor,
    "Qwen3ASRProcessor": Qwen3ASRProcessor,
    "Step3VLProcessor": transformers.Step3p7Processor,
    "Siglip2Processor": LonePictures,
    "SiglipProcessor": LonePictures,
    "SmolVLMProcessor": SmolVLMProcessor,
    "UltravoxProcessor": UltravoxProcessor,
    "VibeVoiceAsrProcessor": VibeVoiceAsrProcessor,
    "VideoLlama3Processor": VideoLlama3Processor,
    "VoxtralProcessor": VoxtralProcessor,
    **dict.fromkeys((f"{each}Processor" for each in nemotron_omni.ARCHITECTURES), NemotronOmniProcessor),
}
OWN_IMAGES: Final[Mapping[str, Any]] = {
    "Apertus1p5Processor": ApertusImages,
    "Cohere2VisionProcessor": Cohere2VisionImages,
    "FuyuProcessor": FuyuImages,
    "Gemma4UnifiedProcessor": Gemma4UnifiedImages,
    **dict.fromkeys(("KeyeProcessor", "KeyeVL1_5Processor"), KeyeImages),
    "KimiVLProcessor": KimiVLImages,
    "Kimi_K25Processor": KimiImages,
    "Lfm2VlProcessor": Lfm2VlImages,
    "Llama4Processor": Llama4Images,
    "PerceptionLMProcessor": PerceptionLMImages,
    "Phi4MultimodalProcessor": Phi4Images,
    "MiniCPMOcrProcessor": MiniCPMOcrImages,
    **dict.fromkeys(("MiniCPMOProcessor", "MiniCPMVProcessor"), MiniCPMVImages),
    "MiniMaxM3VLProcessor": MiniMaxM3Images,
    "Molmo2Processor": Molmo2Images,
    **dict.fromkeys(("Step3VLProcessor", "Step3p7Processor"), StepImages),
    "VideoLlavaProcessor": transformers.CLIPImageProcessorPil,
    "PaddleOCRVLProcessor": transformers.PaddleOCRVLImageProcessorPil,
}
"""Image processors by the name of the processor, if transformers has none, or one for torchvision only, or files name
another."""
_UNNAMED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bee", "r_4b"), "NormedOnevisionProcessor"),
    "deepseek_vl_v2": "DeepseekVLV2Processor",
    "dots_ocr": "DotsVLProcessor",
    "eagle_2_5_vl": "Eagle2_5_VLProcessor",
    "funaudiochat": "FunAudioChatProcessor",
    "h2ovl_chat": "H2OVLProcessor",
    "internvl_chat": "InternVLChatProcessor",
    **dict.fromkeys(("keye", "keye_vl1_5"), "KeyeProcessor"),
    "kimi_vl": "KimiVLProcessor",
    "minicpmo": "MiniCPMOProcessor",
    "minicpmv": "MiniCPMVProcessor",
    "Llama_Nemotron_Nano_VL": "NemotronVLProcessor",
    "NemotronH_Nano_VL_V2": "NemotronVLProcessor",
    nemotron_omni.PUBLISHED: f"{nemotron_omni.CLASS}Processor",
    "molmo": "MolmoProcessor",
    "opencua": "OpenCUAProcessor",
    "ovis2_5": "Ovis2_5Processor",
    "phi3_v": "Phi3VProcessor",
    "phi4mm": "Phi4MMProcessor",
    "qwen2_5_omni_thinker": "Qwen2_5OmniProcessor",
    "qwen3_omni_moe_thinker": "Qwen3OmniMoeProcessor",
    "step_vl": "Step3VLProcessor",
    "ultravox": "UltravoxProcessor",
}
"""Processors by model type, if transformers has none and published files name none."""
_ALIKE: Final[Mapping[str, str]] = dict.fromkeys(("ColQwen3Processor", "OpsColQwen3Processor"), "Qwen3VLProcessor")
"""Processors whose code comes with files, by those that process pictures alike."""
_COLQWEN3_TOKENS: Final = 1280
"""Most tokens of a picture of ColQwen3, whatever its files say, as in its makers' code."""
_COUNTED: Final = frozenset({"rows", "cols", "num_crops", "num_patches", "num_tiles"})
"""Outputs of processors that are not tensors for the model: numbers for the text."""
_BY_COMPANY: Final = frozenset({"LlavaOnevisionProcessor"})
"""Processors that cut a picture into tiles only where it is the conversation's only one."""
_SOUND_SECONDS: Final[Mapping[str, int]] = {"Gemma3nProcessor": 30}
"""Longest sound in seconds of processors that truncate longer ones silently."""
_SETTINGS: Final = "processor_config.json"
_OF_IMAGES: Final = "preprocessor_config.json"
_SIZES: Final = ("size", "min_pixels", "max_pixels")
_AT_MOST: Final = ("max_patches", "max_soft_tokens")
"""Options of which no request gets more than the model has."""
_OF_VIDEOS: Final = ("fps", "num_frames")
UNKNOWN_OPTION: Final = "unknown_processor_option"
_PIXEL_MASK: Final = "pixel_attention_mask"
_DOT: Final = Image.new("RGB", (1, 1))


class ProcessorError(Exception):
    """The model's processor cannot be loaded; one line for the operator."""


class ModelInputs(NamedTuple):
    """A processor's result for one piece of media."""

    payload: bytes
    """safetensors."""
    replacement: str
    grid: tuple[int, int, int] | None
    interval: float = 1.0
    """Distance of the positions of two frames."""


class ModelProcessor:
    """A model's processor, for one piece of media at a time."""

    def __init__(self, source: Source) -> None:
        """``source``: the model's folder, or its replacement. Raises :class:`ProcessorError`."""
        files = ModelFiles(source)
        named = _class_name(files)
        self._name = _ALIKE.get(named, named)
        self._processor = _load(files, self._name)
        if named == "ColQwen3Processor":
            images = self._processor.image_processor
            images.size["longest_edge"] = _COLQWEN3_TOKENS * (images.patch_size * images.merge_size) ** 2
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

    @property
    def by_company(self) -> bool:
        """Whether a picture is cut up otherwise where it is not the only one of its conversation."""
        return self._name in _BY_COMPANY or bool(self._in_company)

    @property
    def _in_company(self) -> Mapping[str, object]:
        """Options for a picture that is not the only one of its conversation."""
        return getattr(self._processor, "in_company", {})

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
        return self._video_settings.choose(options, self._videos.step)

    def video(self, video: DecodedVideo) -> ModelInputs:
        """Raises :class:`..refusal.Refusal` for a video that the model cannot take."""
        assert self._videos is not None
        images = self._processor.image_processor
        try:
            found = self._videos.make(images, video, self._video_settings, self._beat)
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
        given = dict(options)
        if given.pop("detail", "auto") == "low":
            given = {**_low_detail(images, names), **given}
        edges = _edges(images, given)
        given = {name: value for name, value in given.items() if name not in (*_SIZES, *_OF_VIDEOS)}
        for name in given.keys() & _AT_MOST:
            given[name] = min(int(str(given[name])), getattr(images, name, 0))
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


def _edges(images: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """``size``, if the request changes it: never beyond the model's own, which its tower may not support."""
    own = {edge: getattr(images.size, edge, None) for edge in ("shortest_edge", "longest_edge")}
    wanted = dict(given.get("size") or {})
    if "min_pixels" in given:
        wanted["shortest_edge"] = given["min_pixels"]
    if "max_pixels" in given:
        wanted["longest_edge"] = given["max_pixels"]
    most = own["longest_edge"]
    if not wanted:
        return {}
    if most is None:
        raise Refusal("the model sees all pictures in one size", UNKNOWN_OPTION)
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


def _class_name(files: ModelFiles) -> str:
    config = files.read("config.json")
    model_type, said = described_part(config).get("model_type"), processor_name(files.source)
    other = said not in _OWN and model_type != config.get("model_type")  # named by the code of another's files
    if said is not None and not (other and not hasattr(transformers, said)):
        return said
    known = {**transformers.models.auto.processing_auto.PROCESSOR_MAPPING_NAMES, **_UNNAMED}
    found = known.get(str(model_type))
    if not isinstance(found, str):
        raise ProcessorError(f"no file of {files} names a processor_class, and none is known for {model_type!r}")
    return found


def _load(files: ModelFiles, name: str) -> Any:
    kind = _OWN.get(name) or getattr(transformers, name, None)
    if kind is None:
        raise ProcessorError(f"transformers {transformers.__version__} has no {name}")
    try:
        source = files.source
        if isinstance(source, Path) and (read := getattr(kind, "of", None)) is not None:
            return read(source)  # by more than its settings
        if isinstance(source, GivenFiles):
            settings = files.read(_SETTINGS)
        else:
            settings, _ = kind.get_processor_dict(os.fspath(source))
        parts: dict[str, Any] = {}
        for part in sorted(kind.get_attributes(), key="video_processor".__eq__):  # it is made of the pictures' one
            if part == "video_processor":
                parts[part] = FrameProcessor(parts["image_processor"])
            elif isinstance(source, GivenFiles):
                parts[part] = _given_part(source, name, part)
            else:
                parts[part] = _part(source, name, part)
        taken = inspect.signature(kind.__init__).parameters.keys() - parts.keys()
        return _unchecked(kind)(**parts, **{name: value for name, value in settings.items() if name in taken})
    except ProcessorError:
        raise
    except Exception as error:  # any error of transformers, for the operator
        raise ProcessorError(f"{name}: {' '.join(str(error).split())[:300]}") from error


def _unchecked(kind: Any) -> Any:
    """The same class without checks of its parts: to check a video processor's, transformers searches classes that need
    torchvision."""
    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})


def _part(folder: Path, name: str, part: str) -> Any:
    path = os.fspath(folder)
    match part:
        case "image_processor" if name in OWN_IMAGES:
            return OWN_IMAGES[name].from_pretrained(path)
        case "image_processor":
            return transformers.AutoImageProcessor.from_pretrained(path, backend="pil", trust_remote_code=False)
        case "tokenizer":
            return transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        case "feature_extractor" if name == "Qwen3ASRProcessor":  # its own needs torch, and makes the same features
            return transformers.WhisperFeatureExtractor.from_pretrained(path)
        case "feature_extractor" | "audio_processor":
            return transformers.AutoFeatureExtractor.from_pretrained(path, trust_remote_code=False)
        case _:
            raise ProcessorError(f"it has a part {part}, which is not known here")


def _given_part(given: GivenFiles, name: str, part: str) -> Any:
    """A tokenizer with only the tokens of media."""
    match part:
        case "image_processor":
            settings = dict(given.files[_OF_IMAGES])
            kind = settings.pop("image_processor_type")
            return (OWN_IMAGES.get(name) or getattr(transformers, kind))(**settings)
        case "feature_extractor":
            settings = dict(given.files[_SETTINGS]["feature_extractor"])
            return getattr(transformers, settings.pop("feature_extractor_type"))(**settings)
        case "tokenizer":
            backend = Backend(WordLevel(given.tokens, unk_token=next(iter(given.tokens))))
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in given.tokens])
            return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=given.names)
        case _:
            raise ProcessorError(f"it has a part {part}, which is not known here")
