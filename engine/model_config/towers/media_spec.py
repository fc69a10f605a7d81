"""The media that a model takes, by its config.json, and their placeholder tokens."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final, Literal

import msgspec

from ..config_fields import ConfigError, Fields
from ..hf import fun_asr
from ..hf.deepseek_ocr import PLACEHOLDER, is_deepseek_ocr
from ..hf.nemotron_omni import in_transformers_form
from ..hf.text_part import MEDIA_FAMILIES
from ..hf.thinker import thinker
from ..seq2seq.pictured import CAPTION_TYPE, FLORENCE_TYPE, FORMULAS_TYPE, PAIRED_TYPE, PARSE_TYPE
from ..seq2seq.pix2struct import PATCHES_TYPE

Modality = Literal["image", "video", "audio"]
MediaAxes = Literal["grid", "frames", "blocks", "numbered", "canvas", "corner"]
"""m-rope positions of media: frame, row and column, behind which text follows the longer side of a picture, or also the
last frame of a video, or in which each frame of a video is a picture of its own; or index, column, row and number of
the picture, behind which text has its index; or a canvas's number, row and column, on which a picture lies whole and in
slices; or index, row and column, both from 0 in each picture, behind which text has the next index."""

TWO_TOWERS: Final = ("clip", "siglip", "siglip2")
"""Model types with a text tower and a vision tower in one space."""
_KEYS: Final[Mapping[Modality, tuple[str, ...]]] = {
    "image": (
        "image_token_id",
        "image_token_index",
        "media_placeholder_token_id",
        "img_context_token_id",
        "image_patch_id",
    ),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}

_STILLS: Final = {family.model_type for family in MEDIA_FAMILIES.values()} - {
    family.model_type for family in MEDIA_FAMILIES.values() if "video" in family.takes
}
"""Model types whose videos are not served, although many of their files name a token for them."""
_TEXT_ALONE: Final = {family.model_type for family in MEDIA_FAMILIES.values() if not family.takes}
"""Model types whose media are not served."""
_ENCODED: Final = (PAIRED_TYPE, FLORENCE_TYPE, FORMULAS_TYPE, PARSE_TYPE, CAPTION_TYPE, PATCHES_TYPE)
"""Model types of encoder-decoders whose encoder sees."""
_MARKS: Final[Mapping[object, Mapping[str, int]]] = {
    "ernie4_5_vl_moe": {
        **{"image_start_token_id": 101_304, "image_end_token_id": 101_305},
        **{"video_start_token_id": 101_306, "video_end_token_id": 101_307},
    },
    "molmo2": {
        **{"image_start_token_id": 151_936, "image_end_token_id": 151_937, "image_col_id": 151_939},
        **{"low_res_image_start_token_id": 151_940, "frame_start_token_id": 151_943, "frame_end_token_id": 151_944},
    },
}
"""Fields with tokens around media, and their defaults, by model type."""
_JOINED: Final = ("molmo2",)
"""Model types whose media see each other."""
_ADDED: Final = ("molmo", "molmo2")
"""Model types whose embeddings of media are added to those of their placeholders."""
_AXES: Final[Mapping[object, MediaAxes]] = {
    "chatglm_4v": "corner",
    "hunyuan_vl": "numbered",
    "hy_v4_vl": "blocks",
    "isaac": "corner",
    "minicpmv4_7": "canvas",
}
_ON_CANVAS: Final = ("image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id")
"""Fields with the tokens around pictures and slices that have places on a canvas."""
_BY_TIMM: Final[Mapping[object, str]] = {
    "gemma3n": "gemma3n_vision",
    **dict.fromkeys(("fast_vlm", "perception_lm"), "timm_wrapper"),
}
"""Model types whose pictures transformers encodes by timm, and the default type of their vision part, which does so."""
_TAPS: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("qwen3_vl", "qwen3_omni_moe", "cosmos3_omni"), (8, 16, 24)),
    "granite_docling": (3, 7, 10),
}
"""By beginnings of model types whose towers are tapped: the layers by default."""
_UNTAPPED: Final = ("bailing_moe_v3_vl",)
"""Model types whose files name layers that are not tapped."""
_SPATIAL: Final = (12, 15, 18, 21)
"""Layers before which Granite 4 adds parts of pictures by default."""
_QWENS_PAD: Final = 151_655
"""``<|image_pad|>`` of Qwen2 and 3."""
_OPENCUA_PICTURE: Final = 151_664
"""``<|media_placeholder|>`` of OpenCUA."""
_PANGU_PICTURE: Final = 46_005
"""``[unused19]`` of openPangu."""
_FUYU_PICTURE: Final = 71_011
"""``|SPEAKER|`` of Fuyu."""
_INKLING_PICTURE: Final = 200_054
"""``<|unused_200054|>`` of Inkling 2, where files leave it out."""
_NEMO_VOCAB: Final = 131_072
"""Tokens of Nemotron 3.5 Transcribe, where files leave it out."""
_PHI4_PICTURE: Final = 200_010
"""``<|image|>`` of Phi-4-multimodal, which names it in its tower's fields."""
PICTURE_TOKENS: Final[Mapping[object, str]] = {
    **dict.fromkeys(("h2ovl_chat", "internvl_chat"), "<IMG_CONTEXT>"),
    **dict.fromkeys(("minicpmo", "minicpmv"), "<unk>"),
    "deepseek_vl_v2": "<image>",
    "isaac": "<|image_pad|>",
    "molmo": "<im_patch>",
    "NVLM_D": "<|vision_pad|>",
    "phi3_v": "<|image|>",
    "phi4_siglip": "<|dummy_0|>",
}
"""Placeholders of pictures by model type, if published files name none by number: the tokenizer's files do."""
SOUND_TOKENS: Final[Mapping[object, str]] = {fun_asr.MODEL_TYPE: "<|AUDIO|>"}
"""Likewise of sounds."""
_CONTEXTS: Final[Mapping[object, int]] = {"internlm2": 92_546, "qwen2": 151_667, "qwen3": 151_671, "qwen3_moe": 151_671}
"""``<IMG_CONTEXT>`` of InternVL, by the model type of its decoder."""


class MediaSpec(msgspec.Struct, frozen=True):
    """Ids of the placeholder tokens, which embeddings replace."""

    placeholders: Mapping[Modality, int]
    layers: tuple[int, ...] = ()
    """Decoder layers behind which something is added for pictures."""
    axes: MediaAxes = "grid"
    """Positions with m-rope."""
    marks: tuple[int, ...] = ()
    """Tokens around media that use the experts of media too (ERNIE 4.5 VL), or with :attr:`joined` see media."""
    joined: bool = False
    """Whether the tokens of all media of a prompt see each other, with those around them (Molmo 2)."""
    added: bool = False
    """Whether embeddings are added to those of the placeholders, in place of standing there (Molmo)."""
    canvas: tuple[int, ...] = ()
    """Tokens around pictures and slices that have places on a canvas."""
    alone: bool = False
    """Whether a picture is a prompt of its own, encoded by its own tower (CLIP)."""
    encoded: bool = False
    """Whether a request has one picture, which stands nowhere in its prompt: all tokens attend to it (TrOCR)."""
    prompt: int | None = None
    """The token in place of which prompts bring embeddings of their own; None: none are taken."""


def media_spec(config: Mapping[str, object]) -> MediaSpec | None:
    """The media of a model; None for a text-only model."""
    if config.get("model_type") in TWO_TOWERS:
        return MediaSpec({"image": 0}, alone=True)  # any token can be the placeholder
    if config.get("model_type") in _ENCODED:
        return MediaSpec({"image": 0}, encoded=True)  # no token is a placeholder
    if config.get("model_type") in _TEXT_ALONE:
        return None
    speaks = "thinker_config" in config or str(config.get("model_type")).endswith("_thinker")
    config = in_transformers_form(thinker(config))
    found: dict[Modality, int] = {}
    for modality, keys in _KEYS.items():
        token = next((config[key] for key in keys if isinstance(config.get(key), int)), None)
        if isinstance(token, int):
            found[modality] = _within(token, config)
    if (missing := _unnamed(config)) is not None:
        found.setdefault("image", missing)
    if lacks_timm(config):
        found = {modality: token for modality, token in found.items() if modality == "audio"}
    if config.get("model_type") in _STILLS:
        found.pop("video", None)
    axes = _AXES.get(config.get("model_type"), "frames" if speaks else "grid")
    if not found:
        return None
    canvas = tuple(mark for name in _ON_CANVAS if isinstance(mark := config.get(name), int)) if axes == "canvas" else ()
    joined, added = (config.get("model_type") in kinds for kinds in (_JOINED, _ADDED))
    return MediaSpec(found, _changed_layers(config), axes, _marks(config), joined, added, canvas)


def prompt_token(vocab_size: int) -> int:
    """The token that stands for each embedding of a prompt of these: the last one, which is seldom written, so that
    penalties on a prompt's tokens change nothing."""
    return vocab_size - 1


def check_canvas(config: Mapping[str, object]) -> None:
    """Raise :class:`..config_fields.ConfigError` if a file leaves out a token around pictures on a canvas."""
    if _AXES.get(config.get("model_type")) == "canvas":
        for name in _ON_CANVAS:
            Fields(config).integer(name, least=0)


def unnamed_token(config: Mapping[str, object]) -> tuple[str, str] | None:
    """The field of a placeholder that a config.json leaves out, and how the tokenizer spells the token; None if no
    tokenizer has to be asked."""
    modalities: Mapping[Modality, Mapping[object, str]] = {"image": PICTURE_TOKENS, "audio": SOUND_TOKENS}
    for modality, spelled in modalities.items():
        told = spelled.get(config.get("model_type"))
        if told is not None and not any(isinstance(config.get(key), int) for key in _KEYS[modality]):
            return f"{modality}_token_id", told
    return None


def _marks(config: Mapping[str, object]) -> tuple[int, ...]:
    known = _MARKS.get(config.get("model_type"), {})
    return tuple(mark for name, default in known.items() if isinstance(mark := config.get(name, default), int))


def _unnamed(config: Mapping[str, object]) -> int | None:
    """The placeholder of pictures that published files omit."""
    if is_deepseek_ocr(config):
        return PLACEHOLDER
    match config.get("model_type"), config.get("llm_config"):
        case "chameleon" | "emu3", _:
            words = config.get("vocabulary_map")
            token = words.get("<image>") if isinstance(words, Mapping) else None
            return token if isinstance(token, int) else None
        case "chatglm_4v", _:
            token = config.get("pad_token_id")
            return token if isinstance(token, int) else None
        case "ovis", Mapping() as decoder:
            return _QWENS_PAD if decoder.get("model_type", "qwen2") == "qwen2" else None
        case "ovis2_5" | "keye" | "keye_vl1_5" | "llava_onevision2", _:
            return _QWENS_PAD
        case "fuyu", _:
            return _FUYU_PICTURE
        case "inkling2" | "inkling2_loop", _:
            return _INKLING_PICTURE
        case "opencua", _:
            return _OPENCUA_PICTURE
        case "kanana-1.5-v", _:
            text = config.get("text_config")
            ends = Fields(text).token_ids("eos_token_id") if isinstance(text, Mapping) else ()
            return ends[0] + 1 if ends else None
        case "openpangu_vl", _:
            return _PANGU_PICTURE
        case "phi4_multimodal" | "phi4mm", _:
            vision = config.get("vision_config")
            token = vision.get("image_token_id") if isinstance(vision, Mapping) else None
            return token if isinstance(token, int) else _PHI4_PICTURE
        case "internvl_chat", Mapping() as text:
            return _CONTEXTS.get(text.get("model_type"))
        case _:
            return None


def lacks_timm(config: Mapping[str, object]) -> bool:
    """Whether pictures are not encoded since timm is not installed, and the tower is none of our own layers."""
    vision, needed = config.get("vision_config"), _BY_TIMM.get(config.get("model_type"))
    kind = vision.get("model_type", needed) if isinstance(vision, Mapping) else needed
    if needed is None or kind != needed or find_spec("timm") is not None:
        return False
    from .vision_hf import vision_spec_from_hf  # late: ten readers, of which few models need one here

    try:
        vision_spec_from_hf(config, 1)
    except ConfigError:
        return True
    return False


def tapped_layers(config: Mapping[str, object]) -> Sequence[int]:
    """Layers of the vision tower with an output for the first decoder layers."""
    config = thinker(config)
    vision = config.get("vision_config")
    kind = str(config.get("model_type"))
    if kind in _UNTAPPED:
        return ()
    default = next((taps for begins, taps in _TAPS.items() if kind.startswith(begins)), ())
    taps = vision.get("deepstack_visual_indexes", default) if isinstance(vision, Mapping) else None
    return taps if isinstance(taps, Sequence) else ()


def _changed_layers(config: Mapping[str, object]) -> tuple[int, ...]:
    """Decoder layers behind which something is added for pictures: the first ones, or those before the layers that
    Granite 4 names."""
    if config.get("model_type") != "granite4_vision":
        return tuple(range(len(tapped_layers(config))))
    mapped, spatial = config.get("deepstack_layer_map"), config.get("spatial_target_layers")
    named = [pair[-1] for pair in mapped if isinstance(pair, Sequence) and pair] if isinstance(mapped, Sequence) else []
    named += spatial if isinstance(spatial, Sequence) else _SPATIAL
    return tuple(sorted({layer - 1 for layer in named if isinstance(layer, int) and layer > 0}))


def _within(token: int, config: Mapping[str, object]) -> int:
    """The token; or, if Ultravox's is behind the text model's vocabulary, the last token of that, which transformers'
    tokenizers reserve, and if Nemotron 3.5 Transcribe's is, token 0, as which transformers embeds it."""
    text = config.get("text_config")
    if config.get("model_type") == "nemo_speechlm" and isinstance(text, Mapping):
        return token if token < Fields(text).integer("vocab_size", _NEMO_VOCAB) else 0
    most = config.get("vocab_size")
    outside = config.get("model_type") == "ultravox" and isinstance(most, int) and token >= most
    return most - 1 if outside and isinstance(most, int) else token
