"""Converts a projector file's metadata (llama.cpp's ``mmproj``) to the equivalent config.json: projector types, their
text models, and the tower's spec.

A GGUF text model takes media by a second file with the tower and its projector.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..hf.rope import media_axes
from ..spec.attention import AttentionSpec
from ..spec.model import ModelSpec, with_mixers
from ..towers.vision_hf import vision_spec_from_hf
from ..towers.vision_spec import VisionSpec
from . import mmproj_sounds as sounds
from . import mmproj_vision as vision
from .mmproj_file import ProjectorFile, TextFile, Values

_ALONE: Final = "without it, text alone is served"


class Projector(msgspec.Struct, frozen=True):
    """The properties of a projector type."""

    model_type: str
    """transformers' model type, unless :attr:`made` sets another."""
    made: Callable[[ProjectorFile, TextFile], Values]
    tokens: tuple[str, ...] = ()
    """Candidates for the picture placeholder, of which the first in the vocabulary is used; empty: no pictures. Old
    vocabularies lack the model's own, and a token that does not occur in texts is used."""
    texts: tuple[str, ...] = ()
    """Architectures of its text models; empty: all that no other type lists."""
    video: str = ""
    """The video placeholder."""
    others: tuple[str, ...] = ()
    """Further model types with this projector."""
    sounds: tuple[str, ...] = ()
    """The placeholders of sounds, as :attr:`tokens` has those of pictures."""


_QWEN_TOKENS: Final = ("<|image_pad|>",)
_RESERVED: Final = ("<|audio|>", "<|reserved_special_token_247|>", "<unused0>", "<|vision_pad|>")
"""Ultravox's placeholders, since its own is in no vocabulary: unused tokens of Llama 3, Gemma 3 and Qwen3."""
PROJECTORS: Final[Mapping[str, Projector]] = {
    "idefics3": Projector("idefics3", vision.idefics3, ("<image>",), others=("smolvlm",)),
    "gemma3": Projector("gemma3", vision.gemma3, ("<image_soft_token>", "<unused0>", "<pad>"), ("gemma3",)),
    "mlp": Projector("llava", vision.mlp, ("<image>", "<unk>")),
    "pixtral": Projector("llava", vision.pixtral, ("[IMG]",), others=("mistral3",)),
    "qwen2vl_merger": Projector("qwen2_vl", vision.qwen2, _QWEN_TOKENS, ("qwen2vl",), "<|video_pad|>"),
    "qwen2.5vl_merger": Projector("qwen2_5_vl", vision.qwen2_5, _QWEN_TOKENS, ("qwen2vl",), "<|video_pad|>"),
    "qwen3vl_merger": Projector(
        "qwen3_vl",
        vision.qwen3,
        _QWEN_TOKENS,
        ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
        "<|video_pad|>",
        others=("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
    ),
    "internvl": Projector("internvl", vision.internvl, ("<IMG_CONTEXT>",)),
    "lfm2": Projector("lfm2_vl", vision.lfm2, ("<image>",), ("lfm2",)),
    "kimivl": Projector("kimi_vl", vision.kimi_vl, ("<|media_pad|>",), ("deepseek2",)),
    "kimik25": Projector("kimi_k25", vision.kimi_k25, ("<|media_pad|>",), ("deepseek2",)),
    "glm4v": Projector("glm4v", vision.glm4v, ("<|image|>",), ("glm4", "glm4moe"), "<|video|>", others=("glm4v_moe",)),
    "gemma4v": Projector("gemma4", vision.gemma4, ("<|image|>",), ("gemma4",), "<|video|>"),
    "lightonocr": Projector("lighton_ocr", vision.lighton_ocr, _QWEN_TOKENS),
    "llama4": Projector("llama4", vision.llama4, ("<|patch|>",), ("llama4",)),
    "ultravox": Projector("ultravox", sounds.ultravox, sounds=_RESERVED),
    "voxtral": Projector("voxtral", sounds.voxtral, sounds=("[AUDIO]",)),
    "qwen2a": Projector("qwen2_audio", sounds.qwen2_audio, sounds=("<|AUDIO|>",)),
    "qwen3a": Projector("qwen3_asr", sounds.qwen3_asr, texts=("qwen3vl",), sounds=("<|audio_pad|>",)),
    "granite_speech": Projector("granite_speech", sounds.granite_speech, sounds=("<|audio|>",)),
    "qwen2.5o": Projector(
        "qwen2_5_omni", sounds.qwen2_5_omni, ("<|IMAGE|>",), ("qwen2vl",), "<|VIDEO|>", sounds=("<|AUDIO|>",)
    ),
    "qwen3vl_merger+qwen3a": Projector(
        "qwen3_omni_moe", sounds.qwen3_omni, _QWEN_TOKENS, ("qwen3vlmoe",), "<|video_pad|>", sounds=("<|audio_pad|>",)
    ),
    "gemma4v+gemma4a": Projector(
        "gemma4", sounds.gemma4_small, ("<|image|>",), ("gemma4",), "<|video|>", sounds=("<|audio|>",)
    ),
}
"""By llama.cpp's names, those of two encoders joined by a plus."""
_THINKERS: Final = frozenset({"qwen2_5_omni", "qwen3_omni_moe"})
"""Model types whose config.json has the text model in a part of it."""
_FROM_CHECKPOINTS: Final = frozenset({"glma", "musicflamingo", "nemotron_v2_vl"})
"""Projector types of models that take media here only as safetensors."""
_NAMED: Final = frozenset(each for projector in PROJECTORS.values() for each in projector.texts)


def projector_names(model_type: str) -> list[str]:
    """Projector types in files of a model type; empty if not supported."""
    return [name for name, row in PROJECTORS.items() if model_type in (row.model_type, *row.others)]


def described_by(file: ProjectorFile, text: TextFile) -> Values:
    """The config.json of both files, as far as media are concerned. Raises :class:`ConfigError` if they do not fit."""
    kind, projector = file.kind, _projector_of(file)
    architecture = text.architecture
    if architecture not in projector.texts if projector.texts else architecture in _NAMED:
        belongs = " or ".join(projector.texts) or "another"
        raise ConfigError(
            f"its projector ({kind}) is of a text model of {belongs}, and the text model is {architecture}"
        )
    if file.embedding != text.spec.hidden_size:
        raise ConfigError(
            f"it makes embeddings of {file.embedding} columns, and those of the text model have {text.spec.hidden_size}"
        )
    values = projector.made(file, text)
    for name, tokens in (("image_token_id", projector.tokens), ("audio_token_id", projector.sounds)):
        if tokens and (token := text.first_of(tokens)) is None:
            raise ConfigError(f"the text model's vocabulary has no token {' or '.join(tokens)}")
        values |= {name: token} if tokens else {}
    if projector.video and (token := text.first_of((projector.video,))) is not None:
        values["video_token_id"] = token
    if projector.model_type in _THINKERS:
        values = {"thinker_config": {"model_type": f"{projector.model_type}_thinker", **values}}
    return {"model_type": projector.model_type, **values}


def _projector_of(file: ProjectorFile) -> Projector:
    """The projector's type. Raises :class:`ConfigError` if it is not supported, or does not fit its encoders."""
    found = file.kind
    projector = PROJECTORS.get(found)
    if projector is None:
        instead = "its model takes media here as safetensors files" if found in _FROM_CHECKPOINTS else _ALONE
        raise ConfigError(
            f"clip.projector_type is {found[:40]!r}, which is not native here, "
            f"expected one of {', '.join(PROJECTORS)}; {instead}"
        )
    if not file.sees and not file.hears:
        raise ConfigError("its encoder takes nothing, expected pictures or sounds (clip.has_vision_encoder)")
    sees, hears = bool(projector.tokens), bool(projector.sounds)
    if file.sees and file.hears and not (sees and hears):
        raise ConfigError(
            f"it has an encoder of sounds beside that of pictures ({found}), expected one of them; {_ALONE}"
        )
    if (file.sees, file.hears) != (sees, hears):
        what = "pictures" if file.sees else "sounds"
        alone = " alone" if sees and hears else ""
        raise ConfigError(f"its encoder takes {what}{alone}, and its projector ({found}) does not")
    return projector


def is_native(described: Mapping[str, object]) -> bool:
    """Whether the tower runs on our own layers: not with an audio encoder, nor with clipping (small Gemma 4 models)."""
    fields = Fields(described)
    sees = fields.table("vision_config")
    return sees is not None and not fields.has("audio_config") and not Fields(sees).flag("use_clipped_linears")


def tower_spec(file: ProjectorFile, described: Mapping[str, object], hidden: int) -> VisionSpec:
    """The tower's spec as stored in the file, for a decoder of this hidden size. Raises :class:`ConfigError`."""
    spec = vision_spec_from_hf(described, hidden)
    fused = "v.blk.0.attn_qkv.weight" in file.shapes
    layers = tuple(replace(layer, mixer=replace(layer.attention, fused=fused)) for layer in spec.layers)
    spec = replace(spec, layers=layers)
    norm = spec.projector.norm
    if norm is not None and norm.plus_one:  # stored with 1 added
        spec = replace(spec, projector=replace(spec.projector, norm=replace(norm, plus_one=False)))
    return spec


def seeing(spec: ModelSpec, metadata: Mapping[str, object], described: Mapping[str, object]) -> ModelSpec:
    """The text model's spec for use with a tower. Raises :class:`ConfigError`."""
    architecture = Fields(metadata).text("general.architecture")
    spec = replace(spec, text_part=True, scales_media=architecture.startswith("granite"))
    if described["model_type"] == "gemma3":
        return with_mixers(spec, whole_spans=True)  # bidirectional attention within pictures
    if described["model_type"] == "gemma4":
        if not is_native(described):
            return spec
        windows = [bool(layer.attention.window) for layer in spec.layers]
        return with_mixers(spec, windows, whole_spans=True, windowed_spans=True)
    sections = Fields(metadata, f"{architecture}.").numbers("rope.dimension_sections")
    if architecture not in _NAMED or not sections or "audio_token_id" in described:
        return spec
    mixer = next(each for layer in spec.layers if isinstance(each := layer.mixer, AttentionSpec))
    assert mixer.rope is not None
    pairs = (mixer.rope.rotary_dim or mixer.head_dim) // 2
    table = {"rope_parameters": {"mrope_section": list(sections[:3])}}
    axes = media_axes(table, (), pairs, interleaved=architecture not in ("qwen2vl", "glm4", "glm4moe"))
    return with_mixers(spec, rope=replace(mixer.rope, axes=axes))
