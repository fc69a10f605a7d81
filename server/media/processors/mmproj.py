"""The processor configuration of a GGUF model with a projector, as the files of transformers' processor.

A projector file has the size and normalisation of pictures, or the number of mel bins. Other settings are those of all
published models of the family.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stentor.engine.loading.checkpoint import Checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.gguf.file import GGUFFile
from stentor.engine.model_config.config_fields import ConfigError, Fields
from stentor.engine.model_config.hf.mistral_params import BY_PARAMS
from stentor.engine.model_config.hf.thinker import thinker

from .model_files import GivenFiles

Values = dict[str, Any]
_QWEN2_BOUNDS: Final = (56 * 56, 28 * 28 * 16384)
_QWEN3_BOUNDS: Final = (1 << 16, 1 << 24)
_GLM_BOUNDS: Final = (112 * 112, 28 * 28 * 15_000)
"""Pixels of a picture, at least and at most."""
_KIMI_PATCHES: Final = 16_384
"""Most patches of a picture of Kimi K2.5."""
_POSITIONS: Final = 1500
"""Positions of Whisper's window, two frames each."""
_POSITIONS_A_SECOND: Final = 50
_OF_QWEN3_ASR: Final = {
    "audio_token": "<|audio_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}


class _Facts:
    """Facts of both files."""

    def __init__(self, metadata: Mapping[str, object], described: Mapping[str, object], image: str) -> None:
        """``described``: the config.json that says the same; ``image``: the token that embeddings replace."""
        self.clip = Fields(metadata, "clip.vision.")
        self.model_type = Fields(described).text("model_type")
        self.described = Fields(thinker(described))
        self.tower = Fields(self.described.table("vision_config") or {})
        self.image = image
        self.patch = self.clip.integer("patch_size")
        self.side = self.clip.integer("image_size")

    @property
    def colours(self) -> Values:
        means, deviations = self.clip.numbers("image_mean"), self.clip.numbers("image_std")
        if len(means) != 3 or len(deviations) != 3 or min(deviations) <= 0:
            raise ConfigError("clip.vision.image_mean and image_std are expected to be three numbers each")
        return {"image_mean": list(means), "image_std": list(deviations)}

    @property
    def square(self) -> Values:
        return {"height": self.side, "width": self.side}

    def tokens(self, merge: int) -> int:
        """Embeddings of a picture of the tower's own size."""
        return (self.side // self.patch // merge) ** 2


class _Processor(msgspec.Struct, frozen=True):
    """One of transformers' processors."""

    name: str
    images: str
    """The name of its image processor, of which the server may have its own."""
    settings: Values
    of_images: Values
    """Settings of the image processor besides colours."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """Attributes of transformers' tokenizer that name tokens."""


def _idefics3(facts: _Facts) -> _Processor:
    longest = facts.clip.integer("preproc_image_size", 4 * facts.side)
    sizes = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": facts.side}}
    tokens = facts.tokens(facts.described.integer("scale_factor"))
    return _Processor("Idefics3Processor", "Idefics3ImageProcessorPil", {"image_seq_len": tokens}, sizes)


def _gemma3(facts: _Facts) -> _Processor:
    tokens = facts.described.integer("mm_tokens_per_image")
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": facts.image}
    settings = {"image_seq_length": tokens}
    return _Processor("Gemma3Processor", "Gemma3ImageProcessorPil", settings, {"size": facts.square}, names)


def _llava(facts: _Facts) -> _Processor:
    kind = facts.tower.text("model_type")
    if kind == "pixtral":
        return _pixtral(facts)
    clip = kind == "clip_vision_model"
    settings = {
        "patch_size": facts.patch,
        "vision_feature_select_strategy": facts.described.text("vision_feature_select_strategy"),
        "num_additional_image_tokens": 1 if clip else 0,
    }
    sizes = {"size": {"shortest_edge": facts.side}, "crop_size": facts.square} if clip else {"size": facts.square}
    images = "CLIPImageProcessorPil" if clip else "SiglipImageProcessorPil"
    return _Processor("LlavaProcessor", images, settings, sizes, {"image_token": facts.image})


def _pixtral(facts: _Facts) -> _Processor:
    settings = {"patch_size": facts.patch, "spatial_merge_size": facts.described.integer("spatial_merge_size", 1)}
    sizes = {"size": {"longest_edge": facts.side}, "patch_size": {"height": facts.patch, "width": facts.patch}}
    return _Processor("PixtralProcessor", "PixtralImageProcessorPil", settings, sizes)


def _lighton_ocr(facts: _Facts) -> _Processor:
    merge = facts.described.integer("spatial_merge_size", 2)
    joined = {"height": merge * facts.patch, "width": merge * facts.patch}
    names = {"image_token": facts.image, "image_break_token": "<|vision_pad|>", "image_end_token": "<|vision_end|>"}
    settings = {"patch_size": facts.patch, "spatial_merge_size": merge}
    sizes = {"size": {"longest_edge": facts.side}, "patch_size": joined}
    return _Processor("LightOnOcrProcessor", "PixtralImageProcessorPil", settings, sizes, names)


def _llama4(facts: _Facts) -> _Processor:
    settings = {"patch_size": facts.patch, "pixel_shuffle_ratio": facts.tower.get("pixel_shuffle_ratio")}
    return _Processor("Llama4Processor", "Llama4Images", settings, {"size": facts.square})


def _qwen(
    name: str, bounds: tuple[int, int], images: str = "Qwen2VLImageProcessorPil", **names: str
) -> Callable[[_Facts], _Processor]:
    def make(facts: _Facts) -> _Processor:
        least = facts.clip.integer("image_min_pixels", bounds[0])
        most = facts.clip.integer("image_max_pixels", bounds[1], least=least)
        sizes = {
            "patch_size": facts.patch,
            "temporal_patch_size": 2,
            "merge_size": facts.tower.integer("spatial_merge_size"),
            "size": {"shortest_edge": least, "longest_edge": most},
        }
        return _Processor(name, images, {}, sizes, names)

    return make


def _omni(name: str, bounds: tuple[int, int], **names: str) -> Callable[[_Facts], _Processor]:
    def make(facts: _Facts) -> _Processor:
        settings = {"feature_extractor": _whisper(facts.described)}
        return replace(_qwen(name, bounds, **names)(facts), settings=settings)

    return make


def _whisper(described: Fields) -> Values:
    """Whisper's feature extractor."""
    audio = Fields(described.table("audio_config") or {})
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": audio.integer("num_mel_bins"),
        "chunk_length": max(1, _positions(described) // _POSITIONS_A_SECOND),
    }


def _positions(described: Fields) -> int:
    return Fields(described.table("audio_config") or {}).integer("max_source_positions", _POSITIONS)


def _gemma4(facts: _Facts) -> _Processor:
    """Its class needs an audio feature extractor, though large models take no audio."""
    sizes = {"patch_size": facts.patch, "pooling_kernel_size": facts.tower.integer("pooling_kernel_size")}
    names = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": facts.image}
    names |= {"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    settings = {"feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"}}
    return _Processor("Gemma4Processor", "Gemma4ImageProcessorPil", settings, sizes, names)


def _internvl(facts: _Facts) -> _Processor:
    tokens = facts.tokens(facts.clip.integer("projector.scale_factor", 2))
    tiles = {
        "crop_to_patches": True,
        "min_patches": facts.clip.integer("preproc_min_tiles", 1),
        "max_patches": facts.clip.integer("preproc_max_tiles", 12),
        "size": facts.square,
    }
    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": facts.image,
        "video_token": "<video>",
    }
    settings = {"image_seq_length": tokens}
    return _Processor("InternVLProcessor", "GotOcr2ImageProcessorPil", settings, tiles, names)


def _lfm2_vl(facts: _Facts) -> _Processor:
    sizes = {"encoder_patch_size": facts.patch, "downsample_factor": facts.described.integer("downsample_factor")}
    return _Processor("Lfm2VlProcessor", "Lfm2VlImageProcessor", {}, sizes)


def _kimi_vl(facts: _Facts) -> _Processor:
    merge = facts.tower.integer("merge_kernel_size")
    sizes = {"patch_size": facts.patch, "merge_kernel_size": [merge, merge]}
    return _Processor("KimiVLProcessor", "KimiVLImageProcessor", {}, sizes)


def _kimi_k25(facts: _Facts) -> _Processor:
    most = facts.clip.integer("image_max_pixels", _KIMI_PATCHES * facts.patch**2) // facts.patch**2
    sizes = {"patch_size": facts.patch, "merge_size": facts.tower.integer("merge_kernel_size"), "max_patches": most}
    return _Processor("Kimi_K25Processor", "KimiImages", {}, sizes, {"image_token": facts.image})


_QWEN3: Final = _qwen("Qwen3VLProcessor", _QWEN3_BOUNDS)
_GLM: Final = _qwen(
    "Glm4vProcessor", _GLM_BOUNDS, "Glm4vImageProcessorPil", image_token="<|image|>", video_token="<|video|>"
)
_MAKERS: Final[Mapping[str, Callable[[_Facts], _Processor]]] = {
    "idefics3": _idefics3,
    "gemma3": _gemma3,
    "llava": _llava,
    "mistral3": _pixtral,
    "lighton_ocr": _lighton_ocr,
    "llama4": _llama4,
    "qwen2_vl": _qwen("Qwen2VLProcessor", _QWEN2_BOUNDS),
    "qwen2_5_vl": _qwen("Qwen2_5_VLProcessor", _QWEN2_BOUNDS),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _QWEN3),
    "internvl": _internvl,
    "lfm2_vl": _lfm2_vl,
    "kimi_vl": _kimi_vl,
    "kimi_k25": _kimi_k25,
    **dict.fromkeys(("glm4v", "glm4v_moe"), _GLM),
    "gemma4": _gemma4,
    "qwen2_5_omni": _omni(
        "Qwen2_5OmniProcessor",
        _QWEN2_BOUNDS,
        image_token="<|IMAGE|>",
        video_token="<|VIDEO|>",
        audio_token="<|AUDIO|>",
        vision_bos_token="<|vision_bos|>",
        vision_eos_token="<|vision_eos|>",
        audio_bos_token="<|audio_bos|>",
        audio_eos_token="<|audio_eos|>",
    ),
    "qwen3_omni_moe": _omni(
        "Qwen3OmniMoeProcessor",
        _QWEN2_BOUNDS,
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        vision_bos_token="<|vision_start|>",
        vision_eos_token="<|vision_end|>",
        **_OF_QWEN3_ASR,
    ),
}
"""By the model type of :mod:`stentor.engine.model_config.gguf.mmproj_config`."""
_MARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "Idefics3Processor": ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"),
    "Gemma3Processor": ("<start_of_image>", "<end_of_image>"),
    "PixtralProcessor": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "InternVLProcessor": ("<img>", "</img>"),
    "Glm4vProcessor": tuple(f"<|{edge}_of_{what}|>" for what in ("image", "video") for edge in ("begin", "end")),
    "Gemma4Processor": ("<|image>", "<image|>"),
    "Llama4Processor": (
        *("<|image|>", "<|image_start|>", "<|image_end|>"),
        *("<|tile_x_separator|>", "<|tile_y_separator|>"),
    ),
    "LightOnOcrProcessor": ("<|vision_pad|>", "<|vision_end|>"),
}
"""Tokens of a picture's text besides the placeholder."""


_SOUND_PROCESSORS: Final[Mapping[str, str]] = {
    "ultravox": "UltravoxProcessor",
    "voxtral": "VoxtralProcessor",
    "qwen2_audio": "Qwen2AudioProcessor",
    "qwen3_asr": "Qwen3ASRProcessor",
    "granite_speech": "GraniteSpeechProcessor",
}
"""Processors of sounds by model type."""
_AROUND_SOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "Qwen3ASRProcessor": ("<|audio_start|>", "<|audio_end|>"),
    "VoxtralProcessor": ("[BEGIN_AUDIO]", ""),
}
"""Marks around sounds, for models whose converted chat template only knows text."""


def _given_sounds(described: Mapping[str, object], token: str, id: int) -> GivenFiles:
    """For an audio model whose embeddings replace ``token``."""
    fields = Fields(described)
    name = _SOUND_PROCESSORS[fields.text("model_type")]
    own: Mapping[str, Callable[[], Values]] = {
        "UltravoxProcessor": lambda: {
            "placeholder": token,
            "audio_context_size": 2 * _positions(fields),
            "stack_factor": fields.integer("stack_factor", 1),
        },
        "GraniteSpeechProcessor": lambda: {"settings": _conformer(fields)},
    }
    made = own[name]() if name in own else {}
    extractor = {} if name == "GraniteSpeechProcessor" else {"feature_extractor": _whisper(fields)}
    files = {"processor_config.json": {"processor_class": name, **extractor, **made}, "config.json": {**described}}
    names = _OF_QWEN3_ASR if name == "Qwen3ASRProcessor" else {}
    return GivenFiles(files, {token: id}, names, _AROUND_SOUNDS.get(name, ("", "")))


def _conformer(fields: Fields) -> Values:
    """Two frames of mel bins are joined."""
    encoder = Fields(fields.table("encoder_config") or {})
    return {
        "n_mels": encoder.integer("input_dim") // 2,
        "projector_window_size": fields.integer("window_size"),
        "projector_downsample_rate": fields.integer("downsample_rate"),
    }


def _given_by_params(described: Fields) -> GivenFiles:
    """For files of Mistral's own, which have params.json in place of a processor's."""
    vision = Fields(described.table("vision_config") or {})
    patch, side = vision.integer("patch_size", 16), vision.integer("image_size", 1024)
    of_images: Values = {
        **{"image_processor_type": "PixtralImageProcessorPil", "size": {"longest_edge": side}},
        "patch_size": {"height": patch, "width": patch},
    }
    settings = {"patch_size": patch, "spatial_merge_size": described.integer("spatial_merge_size", 1)}
    files: dict[str, Values] = {
        "processor_config.json": {"processor_class": "PixtralProcessor", **settings},
        "preprocessor_config.json": of_images,
        "config.json": {**described.values},
    }
    ids = (described.integer(f"image_{which}token_id", least=0) for which in ("", "break_", "end_"))
    return GivenFiles(files, dict(zip(_MARKS["PixtralProcessor"], ids, strict=True)), {})


def given_files(checkpoint: Checkpoint) -> GivenFiles | None:
    """For a model with a projector file or params.json; None for any other. Raises :class:`CheckpointError`."""
    tower = checkpoint.tower
    if tower is not None and tower.described.get("model_type") == BY_PARAMS:
        return _given_by_params(Fields(tower.described))
    if tower is None or tower.projector is None:
        return None
    with GGUFFile(checkpoint.files[0]) as model, GGUFFile(tower.files[0]) as projector:
        tokens = model.metadata.get("tokenizer.ggml.tokens")
        assert isinstance(tokens, list)  # the placeholder was found among them
        described = Fields(thinker(tower.described))
        sound, picture = described.token_id("audio_token_id"), described.token_id("image_token_id")
        if picture is None:
            assert sound is not None  # one of both is
            return _given_sounds(tower.described, str(tokens[sound]), sound)
        try:
            facts = _Facts(projector.metadata, tower.described, str(tokens[picture]))
            processor = _MAKERS[facts.model_type](facts)
            of_images = {"image_processor_type": processor.images, **facts.colours, **processor.of_images}
        except ConfigError as error:
            raise CheckpointError(f"Cannot load {tower.files[0]}: {error}.") from error
        ids = {str(token): id for id, token in enumerate(tokens)}
    others = [str(tokens[id]) for id in (described.token_id("video_token_id"), sound) if id is not None]
    marks = [facts.image, *_MARKS.get(processor.name, ()), *others]
    settings = {"processor_class": processor.name, **processor.settings}
    files = {
        "processor_config.json": settings,
        "preprocessor_config.json": of_images,
        "config.json": {**tower.described},
    }
    known = {mark: ids[mark] for mark in marks if mark in ids}
    return GivenFiles(files, known, processor.names)
