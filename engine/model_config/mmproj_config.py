"""From the metadata of a projector file (llama.cpp's ``mmproj``) to the config.json that says the same.

A text model in a GGUF file sees or hears by a second file, which holds the tower and its projector. Keys are
llama.cpp's; what they leave unsaid is read off tensors, or is what all published models of the family have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Final

from .attention_spec import AttentionSpec
from .config_fields import MOST_LAYERS, ConfigError, Fields
from .gguf_fields import Shapes
from .hf_rope import media_axes
from .model_spec import ModelSpec, with_mixers
from .vision_hf import vision_spec_from_hf
from .vision_spec import VisionSpec
from .whisper_config import MOST_MEL_BINS

Values = dict[str, object]
"""Of a config.json."""
_ALONE: Final = "without it, text alone is served"
_SPECIAL: Final = frozenset({2, 3, 4})
"""Types of tokens that are found whole in a text: unknown, control, user-defined."""


@dataclass(frozen=True)
class TextFile:
    """What the pairing asks of the text model's file."""

    metadata: Mapping[str, object]
    spec: ModelSpec

    @property
    def architecture(self) -> str:
        return Fields(self.metadata).text("general.architecture")

    def first_of(self, names: Sequence[str]) -> int | None:
        """The id of the first of these tokens that the vocabulary has, and finds in texts as a whole."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        types = self.metadata.get("tokenizer.ggml.token_type")
        for name in names:
            if isinstance(tokens, list) and name in tokens:
                id = tokens.index(name)
                if not isinstance(types, list) or types[id : id + 1] in ([kind] for kind in _SPECIAL):
                    return id
        return None


@dataclass(frozen=True)
class Projecting:
    """What a projector file says of itself."""

    metadata: Mapping[str, object]
    shapes: Shapes
    """In GGUF's order."""

    @property
    def clip(self) -> Fields:
        return Fields(self.metadata, "clip.")

    @property
    def vision(self) -> Fields:
        return Fields(self.metadata, "clip.vision.")

    @property
    def audio(self) -> Fields:
        return Fields(self.metadata, "clip.audio.")

    @property
    def hears(self) -> bool:
        """Whether its encoder takes sounds, and not pictures."""
        return self.clip.flag("has_audio_encoder") and not self.clip.flag("has_vision_encoder")

    @property
    def encoder(self) -> Fields:
        """What it says of its encoder."""
        return self.audio if self.hears else self.vision

    @property
    def kind(self) -> str:
        """The projector's type. Raises :class:`ConfigError` for one that is not read."""
        if Fields(self.metadata).text("general.architecture", "") != "clip":
            raise ConfigError("it is no projector: general.architecture is not 'clip'")
        sees, hears = (self.clip.flag(f"has_{each}_encoder") for each in ("vision", "audio"))
        old = "mlp" if self.clip.flag("has_llava_projector") else ""
        found = self.clip.text("projector_type", self.encoder.text("projector_type", old))
        if found not in PROJECTORS:
            instead = "its model takes media here as safetensors files" if found in _FROM_CHECKPOINTS else _ALONE
            raise ConfigError(
                f"clip.projector_type is {found[:40]!r}, which is not native here, "
                f"expected one of {', '.join(PROJECTORS)}; {instead}"
            )
        if not sees and not hears:
            raise ConfigError("its encoder takes nothing, expected pictures or sounds (clip.has_vision_encoder)")
        if sees and hears:
            raise ConfigError(
                f"it has an encoder of sounds beside that of pictures ({found}), expected one of them; {_ALONE}"
            )
        if PROJECTORS[found].hears != hears:
            what = "sounds" if hears else "pictures"
            raise ConfigError(f"its encoder takes {what}, and its projector ({found}) does not")
        return found

    def outputs(self, tensor: str) -> int:
        """Of the matrix of this name. Raises :class:`ConfigError`."""
        shape = self.shapes.get(tensor, ())
        if len(shape) < 2:
            raise ConfigError(f"the tensor {tensor} is missing")
        return shape[1]

    @property
    def swapped(self) -> bool:
        """Whether networks have the names of their products the other way round, as old converters wrote them."""
        down = self.shapes.get("v.blk.0.ffn_down.weight", ())
        hidden = self.vision.integer("embedding_length")
        return "v.blk.0.ffn_gate.weight" not in self.shapes and len(down) == 2 and down[0] == hidden != down[1]

    @property
    def inner(self) -> int:
        """Of a layer's network; the key of some files says another size."""
        return self.outputs(f"v.blk.0.ffn_{'down' if self.swapped else 'up'}.weight")

    @property
    def embedding(self) -> int:
        """Columns of what the tower makes; of LLaVA the key says something else."""
        return self.outputs("mm.2.weight") if self.kind == "mlp" else self.encoder.integer("projection_dim")

    def whisper(self) -> Values:
        """``audio_config``, as Whisper and its descendants have it."""
        audio = self.audio
        return {
            "d_model": audio.integer("embedding_length"),
            "encoder_layers": audio.integer("block_count", most=MOST_LAYERS),
            "encoder_attention_heads": audio.integer("attention.head_count"),
            "encoder_ffn_dim": self.outputs("a.blk.0.ffn_up.weight"),
            "num_mel_bins": audio.integer("num_mel_bins", most=MOST_MEL_BINS),
            "max_source_positions": self.outputs("a.position_embd.weight"),
        }

    def tower(self) -> Values:
        """``vision_config``, as most families have it."""
        vision = self.vision
        return {
            "hidden_size": vision.integer("embedding_length"),
            "intermediate_size": self.inner,
            "num_hidden_layers": vision.integer("block_count", most=MOST_LAYERS),
            "num_attention_heads": vision.integer("attention.head_count"),
            "image_size": vision.integer("image_size"),
            "patch_size": vision.integer("patch_size"),
            "layer_norm_eps": vision.number("attention.layer_norm_epsilon"),
        }

    def activation(self, unsaid: str) -> str:
        """``unsaid``: where neither GELU nor SiLU is named."""
        return "gelu" if self.clip.flag("use_gelu") else "silu" if self.clip.flag("use_silu") else unsaid


def _idefics3(file: Projecting, text: TextFile) -> Values:
    return {"scale_factor": file.vision.integer("projector.scale_factor", 2), "vision_config": file.tower()}


def _gemma3(file: Projecting, text: TextFile) -> Values:
    tower = file.tower()
    side = file.vision.integer("image_size") // file.vision.integer("patch_size")
    merged = side // file.vision.integer("projector.scale_factor", 4)
    return {"mm_tokens_per_image": merged * merged, "vision_config": tower}


def _mlp(file: Projecting, text: TextFile) -> Values:
    """LLaVA with CLIP or SigLIP, whose files leave out layers behind the one whose output is taken."""
    if "v.image_newline" in file.shapes or "model.image_newline" in file.shapes:
        raise ConfigError("it is of LLaVA 1.6, whose tiles have no native form; expected one of LLaVA 1.5")
    if "mm.3.weight" in file.shapes or "mm.2.weight" not in file.shapes:
        raise ConfigError("its projector is not LLaVA's of two products, mm.0 and mm.2")
    layers = [int(each) for each in file.vision.numbers("feature_layer")]
    if len(layers) > 1:
        raise ConfigError(f"clip.vision.feature_layer names {len(layers)} layers, expected one")
    clip = "v.class_embd" in file.shapes
    tower = {
        **file.tower(),
        "model_type": "clip_vision_model" if clip else "siglip_vision_model",
        "hidden_act": file.activation("quick_gelu") if clip else "gelu_pytorch_tanh",
    }
    return {
        "vision_config": tower,
        "vision_feature_layer": layers[0] if layers else -1,
        "vision_feature_select_strategy": "default" if clip else "full",
    }


def _pixtral(file: Projecting, text: TextFile) -> Values:
    """Pixtral, or Mistral 3 where neighbours are merged."""
    merges = "mm.patch_merger.weight" in file.shapes
    values: Values = {
        "model_type": "mistral3" if merges else "llava",
        "vision_config": {**file.tower(), "model_type": "pixtral", "hidden_act": file.activation("gelu")},
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": "mm.1.bias" in file.shapes,
        "text_config": {"rms_norm_eps": text.spec.norm_eps},
    }
    return values | ({"spatial_merge_size": file.vision.integer("spatial_merge_size", 2)} if merges else {})


def _qwen(file: Projecting) -> Values:
    vision = file.vision
    return {
        "depth": vision.integer("block_count", most=MOST_LAYERS),
        "num_heads": vision.integer("attention.head_count"),
        "patch_size": vision.integer("patch_size"),
        "hidden_size": vision.integer("embedding_length"),
        "intermediate_size": file.inner,
        "out_hidden_size": file.embedding,
        "spatial_merge_size": vision.integer("spatial_merge_size", 2),
    }


def _qwen2(file: Projecting, text: TextFile) -> Values:
    hidden = file.vision.integer("embedding_length")
    if file.inner % hidden:
        raise ConfigError(f"networks of {file.inner} are no multiple of {hidden} columns")
    tower = {"embed_dim": hidden, "mlp_ratio": file.inner // hidden, "hidden_size": file.embedding}
    return {"vision_config": {**_qwen(file), **tower, "hidden_act": file.activation("quick_gelu")}}


def _qwen2_5(file: Projecting, text: TextFile) -> Values:
    """Windows are of 112 pixels in all files; videos have 2 positions a second."""
    pattern, layers = file.vision.integer("n_wa_pattern"), file.vision.integer("block_count", most=MOST_LAYERS)
    whole = [layer for layer in range(layers) if (layer + 1) % pattern == 0]
    own = {"window_size": 112, "fullatt_block_indexes": whole, "tokens_per_second": 2}
    return {"vision_config": {**_qwen(file), **own, "hidden_act": file.activation("silu")}}


def _qwen3(file: Projecting, text: TextFile) -> Values:
    """Qwen3-VL, or Qwen3.5, which adds nothing behind layers."""
    layers = range(file.vision.integer("block_count", most=MOST_LAYERS))
    taps = [layer for layer in layers if f"v.deepstack.{layer}.fc1.weight" in file.shapes]
    own = {"num_position_embeddings": file.outputs("v.position_embd.weight"), "deepstack_visual_indexes": taps}
    kinds = {"qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe", "qwen3vlmoe": "qwen3_vl_moe"}
    return {
        "model_type": kinds.get(text.architecture, "qwen3_vl"),
        "vision_config": {**_qwen(file), **own, "hidden_act": "gelu_pytorch_tanh"},
    }


def _internvl(file: Projecting, text: TextFile) -> Values:
    own = {
        "hidden_act": file.activation("gelu"),
        "attention_bias": "v.blk.0.attn_q.bias" in file.shapes,
        "norm_type": "layer_norm" if "v.blk.0.ln1.bias" in file.shapes else "rms_norm",
        "use_qk_norm": "v.blk.0.attn_q_norm.weight" in file.shapes,
    }
    ratio = 1 / file.vision.integer("projector.scale_factor", 2)
    return {"downsample_ratio": ratio, "vision_config": {**file.tower(), **own}}


def _lfm2(file: Projecting, text: TextFile) -> Values:
    """SigLIP 2 over patches of pictures of any shape."""
    return {
        "downsample_factor": file.vision.integer("projector.scale_factor", 2),
        "projector_hidden_size": file.outputs("mm.1.weight"),
        "projector_bias": "mm.1.bias" in file.shapes,
        "projector_use_layernorm": "mm.input_norm.weight" in file.shapes,
        "vision_config": {**file.tower(), "num_patches": file.outputs("v.position_embd.weight")},
    }


def _kimi_vl(file: Projecting, text: TextFile) -> Values:
    side = isqrt(file.outputs("v.position_embd.weight"))
    own = {"init_pos_emb_height": side, "init_pos_emb_width": side}
    return {
        "vision_config": {
            **file.tower(),
            **own,
            "merge_kernel_size": file.vision.integer("projector.scale_factor", 2),
        }
    }


def _glm4v(file: Projecting, text: TextFile) -> Values:
    """GLM-4.1V, or with experts GLM-4.5V."""
    vision = file.vision
    own = {
        "intermediate_size": file.outputs("mm.up.weight"),
        "image_size": isqrt(file.outputs("v.position_embd.weight")) * vision.integer("patch_size"),
        "hidden_act": file.activation("silu"),
        "rms_norm_eps": vision.number("attention.layer_norm_epsilon"),
        "attention_bias": "v.blk.0.attn_qkv.bias" in file.shapes,
    }
    kind = "glm4v_moe" if text.architecture == "glm4moe" else "glm4v"
    return {"model_type": kind, "vision_config": {**_qwen(file), **own}}


def _gemma4(file: Projecting, text: TextFile) -> Values:
    """Of the large models, whose files have no encoder of sounds. No key says how many heads of keys there are."""
    if any(name.endswith(".input_max") for name in file.shapes):
        raise ConfigError("its tower clips what goes into products (Gemma 4 E2B and E4B), which has no native form")
    vision, table = file.vision, file.shapes.get("v.position_embd.weight", ())
    if len(table) != 3 or table[2] != 2:
        raise ConfigError(f"v.position_embd.weight has the shape {list(table)}, expected rows of columns and of rows")
    heads = vision.integer("attention.head_count")
    head_dim = file.outputs("v.blk.0.attn_q.weight") // heads or 1
    own = {
        "num_key_value_heads": file.outputs("v.blk.0.attn_k.weight") // head_dim,
        "head_dim": head_dim,
        "rms_norm_eps": vision.number("attention.layer_norm_epsilon"),
        "position_embedding_size": table[1],
        "pooling_kernel_size": vision.integer("projector.scale_factor", 3),
        "standardize": "v.std_scale" in file.shapes,
    }
    unsaid = ("image_size", "layer_norm_eps")
    tower = {name: value for name, value in file.tower().items() if name not in unsaid}
    return {"audio_config": None, "vision_config": {**tower, **own}}


def _ultravox(file: Projecting, text: TextFile) -> Values:
    """Since version 0.5; files of those before lack a norm."""
    if "mm.a.norm_mid.weight" not in file.shapes:
        raise ConfigError("the tensor mm.a.norm_mid.weight is missing")
    return {
        "hidden_size": file.outputs("mm.a.mlp.1.weight"),
        "stack_factor": file.audio.integer("projector.stack_factor"),
        "projector_act": "swiglu",
        "projector_ln_mid": True,
        "audio_config": {**file.whisper(), "model_type": "whisper"},
    }


def _voxtral(file: Projecting, text: TextFile) -> Values:
    return {"text_config": _decoder(text, "llama"), "audio_config": file.whisper()}


def _qwen2_audio(file: Projecting, text: TextFile) -> Values:
    return {"text_config": _decoder(text, "qwen2"), "audio_config": file.whisper()}


def _qwen3_asr(file: Projecting, text: TextFile) -> Values:
    """A second of audio is encoded by itself in all published models."""
    own = {"output_dim": file.embedding, "downsample_hidden_size": file.shapes.get("a.conv2d.1.weight", (0,))[-1]}
    encoder = {name: value for name, value in file.whisper().items() if name != "max_source_positions"}
    return {"text_config": _decoder(text, "qwen3"), "audio_config": {**encoder, **own}}


def _decoder(text: TextFile, model_type: str) -> Values:
    """``text_config`` for a class of transformers whose decoder is left out: what its projector asks of it."""
    one = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"), 1)
    sizes = {"hidden_size": text.spec.hidden_size, "vocab_size": text.spec.vocab_size}
    return {"model_type": model_type, **sizes, **one}


@dataclass(frozen=True)
class Projector:
    """What a type of projector implies."""

    model_type: str
    """Of the model in transformers, unless :attr:`made` says another."""
    made: Callable[[Projecting, TextFile], Values]
    tokens: tuple[str, ...]
    """Tokens that stand for pictures, or for sounds: the first that the vocabulary has. Old vocabularies end before the
    model's own, and another that no text holds takes its place."""
    texts: tuple[str, ...] = ()
    """Architectures of the text models that it belongs to; none: all those that no other type names."""
    video: str = ""
    """The token that stands for videos."""
    others: tuple[str, ...] = ()
    """Further model types that have it."""
    hears: bool = False


_QWEN_TOKENS: Final = ("<|image_pad|>",)
_RESERVED: Final = ("<|audio|>", "<|reserved_special_token_247|>", "<unused0>", "<|vision_pad|>")
"""Of Ultravox, whose own token stands in no vocabulary: one of Llama 3, Gemma 3 and Qwen3 that no text holds."""
PROJECTORS: Final[Mapping[str, Projector]] = {
    "idefics3": Projector("idefics3", _idefics3, ("<image>",), others=("smolvlm",)),
    "gemma3": Projector("gemma3", _gemma3, ("<image_soft_token>", "<unused0>", "<pad>"), ("gemma3",)),
    "mlp": Projector("llava", _mlp, ("<image>", "<unk>")),
    "pixtral": Projector("llava", _pixtral, ("[IMG]",), others=("mistral3",)),
    "qwen2vl_merger": Projector("qwen2_vl", _qwen2, _QWEN_TOKENS, ("qwen2vl",), "<|video_pad|>"),
    "qwen2.5vl_merger": Projector("qwen2_5_vl", _qwen2_5, _QWEN_TOKENS, ("qwen2vl",), "<|video_pad|>"),
    "qwen3vl_merger": Projector(
        "qwen3_vl",
        _qwen3,
        _QWEN_TOKENS,
        ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
        "<|video_pad|>",
        others=("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
    ),
    "internvl": Projector("internvl", _internvl, ("<IMG_CONTEXT>",)),
    "lfm2": Projector("lfm2_vl", _lfm2, ("<image>",), ("lfm2",)),
    "kimivl": Projector("kimi_vl", _kimi_vl, ("<|media_pad|>",), ("deepseek2",)),
    "glm4v": Projector("glm4v", _glm4v, ("<|image|>",), ("glm4", "glm4moe"), "<|video|>", others=("glm4v_moe",)),
    "gemma4v": Projector("gemma4", _gemma4, ("<|image|>",), ("gemma4",), "<|video|>"),
    "ultravox": Projector("ultravox", _ultravox, _RESERVED, hears=True),
    "voxtral": Projector("voxtral", _voxtral, ("[AUDIO]",), hears=True),
    "qwen2a": Projector("qwen2_audio", _qwen2_audio, ("<|AUDIO|>",), hears=True),
    "qwen3a": Projector("qwen3_asr", _qwen3_asr, ("<|audio_pad|>",), ("qwen3vl",), hears=True),
}
"""By the names that llama.cpp gives them."""
_FROM_CHECKPOINTS: Final = frozenset(
    {"glma", "granite_speech", "kimik25", "lightonocr", "llama4", "musicflamingo", "nemotron_v2_vl", "qwen2.5o"}
)
"""Types of projectors of models that see or hear here as safetensors files alone."""
_NAMED: Final = frozenset(each for projector in PROJECTORS.values() for each in projector.texts)


def projector_names(model_type: str) -> list[str]:
    """What files call the projector of a model; none where they are not read."""
    return [name for name, row in PROJECTORS.items() if model_type in (row.model_type, *row.others)]


def described_by(file: Projecting, text: TextFile) -> Values:
    """The config.json of both files together, as far as what sees or hears is concerned. Raises :class:`ConfigError`
    where they do not belong together."""
    projector = PROJECTORS[file.kind]
    architecture = text.architecture
    if architecture not in projector.texts if projector.texts else architecture in _NAMED:
        belongs = " or ".join(projector.texts) or "another"
        raise ConfigError(
            f"its projector ({file.kind}) is of a text model of {belongs}, and the text model is {architecture}"
        )
    if file.embedding != text.spec.hidden_size:
        raise ConfigError(
            f"it makes embeddings of {file.embedding} columns, and those of the text model have {text.spec.hidden_size}"
        )
    token = text.first_of(projector.tokens)
    if token is None:
        raise ConfigError(f"the text model's vocabulary has no token {' or '.join(projector.tokens)}")
    name = "audio_token_id" if projector.hears else "image_token_id"
    values = {"model_type": projector.model_type, **projector.made(file, text), name: token}
    video = text.first_of((projector.video,)) if projector.video else None
    return values if video is None else {**values, "video_token_id": video}


def tower_spec(file: Projecting, described: Mapping[str, object], hidden: int) -> VisionSpec:
    """The tower as the file stores it, of a decoder of this hidden size. Raises :class:`ConfigError`."""
    spec = vision_spec_from_hf(described, hidden)
    fused = "v.blk.0.attn_qkv.weight" in file.shapes
    layers = tuple(replace(layer, mixer=replace(layer.attention, fused=fused)) for layer in spec.layers)
    spec = replace(spec, layers=layers)
    norm = spec.projector.norm
    if norm is not None and norm.plus_one:  # stored with their 1 added
        spec = replace(spec, projector=replace(spec.projector, norm=replace(norm, plus_one=False)))
    return spec


def seeing(spec: ModelSpec, metadata: Mapping[str, object], described: Mapping[str, object]) -> ModelSpec:
    """The text model beside a tower. Raises :class:`ConfigError`."""
    spec = replace(spec, text_part=True)
    if described["model_type"] == "gemma3":
        return with_mixers(spec, whole_spans=True)  # tokens of a picture see each other
    if described["model_type"] == "gemma4":
        return with_mixers(spec, [bool(layer.attention.window) for layer in spec.layers], whole_spans=True)
    architecture = Fields(metadata).text("general.architecture")
    sections = Fields(metadata, f"{architecture}.").numbers("rope.dimension_sections")
    if architecture not in _NAMED or not sections or "audio_token_id" in described:
        return spec
    mixer = next(each for layer in spec.layers if isinstance(each := layer.mixer, AttentionSpec))
    assert mixer.rope is not None
    pairs = (mixer.rope.rotary_dim or mixer.head_dim) // 2
    table = {"rope_parameters": {"mrope_section": list(sections[:3])}}
    axes = media_axes(table, (), pairs, interleaved=architecture not in ("qwen2vl", "glm4", "glm4moe"))
    return with_mixers(spec, rope=replace(mixer.rope, axes=axes))
