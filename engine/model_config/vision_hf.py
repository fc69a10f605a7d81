"""From a config.json to a :class:`.vision_spec.VisionSpec`: a reader for each family of models that see. Torch-free."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from .attention_spec import AttentionSpec, RopeConfig
from .config_fields import MOST_LAYERS, ConfigError, Fields
from .mlp_spec import MLPSpec
from .model_spec import LayerSpec, NormKind, Norms
from .vision_spec import AxialRope, ProductActivation, ProjectorNorm, ProjectorProduct, ProjectorSpec, VisionSpec

_ACTIVATIONS: Final[Mapping[str, ProductActivation]] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
_SIGLIP_NORMS: Final = Norms(mixer_in="layer_norm1", mlp_in="layer_norm2", kind="layer", bias=True)
_SIGLIP_HEAD: Final = ("head.",)
_NOT_EMBEDDED: Final = ("logit_scale", "logit_bias", "embeddings.position_ids")
"""By what training multiplies cosines, and a buffer of old files."""
_MOST_SIDE: Final = 1 << 14
"""Pixels or patches of a side, pictures in a grid."""


@dataclass(frozen=True)
class _Model:
    """The whole config.json, and what it says of its tower."""

    whole: Fields
    vision: Fields
    hidden: int
    """Of the decoder."""


def vision_spec_from_hf(config: Mapping[str, object], hidden: int) -> VisionSpec:
    """``hidden``: the decoder's hidden size. Raises :class:`.config_fields.ConfigError` for a tower that is not known
    here, naming the field."""
    whole = Fields(config)
    kind = whole.text("model_type", "")
    vision = whole.table("vision_config")
    if kind not in _READERS or vision is None:
        raise ConfigError(f"the tower of {kind or 'a model without model_type'} is not native")
    spec = _READERS[kind](_Model(whole, Fields(vision), hidden))
    spec.check()
    return spec


def _activation(fields: Fields, name: str, default: str) -> ProductActivation:
    given = fields.text(name, default)
    if given not in _ACTIVATIONS:
        raise ConfigError(f"{name} is {given[:40]!r}, expected one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[given]


def _side(fields: Fields, name: str, default: int) -> int:
    """A number of pixels, or two that are one."""
    sizes = fields.get(name)
    if isinstance(sizes, list | tuple) and len(sizes) == 2 and sizes[0] == sizes[1]:
        return Fields({name: sizes[0]}).integer(name, most=_MOST_SIDE)
    return fields.integer(name, default, most=_MOST_SIDE)


def _attention(heads: int, hidden: int, *, bias: bool, turns: bool = False) -> AttentionSpec:
    """``turns``: by the row and the column of a patch."""
    if hidden % heads:
        raise ConfigError(f"{heads} heads do not divide {hidden} dimensions")
    head_dim = hidden // heads
    rope = RopeConfig() if turns else None
    return AttentionSpec(heads, heads, head_dim, head_dim**-0.5, rope, qkv_bias=bias, output_bias=bias)


def _siglip(
    model: _Model,
    projector: ProjectorSpec,
    *,
    patch: int = 16,
    width: int = 768,
    heads: int = 12,
    activation: str = "gelu_pytorch_tanh",
    eps: float = 1e-6,
) -> VisionSpec:
    """Of a picture of the size that positions were learned for; the options are defaults."""
    vision = model.vision
    hidden = vision.integer("hidden_size", width)
    side = _side(vision, "image_size", 224) // (size := _side(vision, "patch_size", patch))
    mixer = replace(_attention(vision.integer("num_attention_heads", heads), hidden, bias=True), out="out_proj")
    act = _activation(vision, "hidden_act", activation)
    mlp = MLPSpec(vision.integer("intermediate_size", 3072), act, True, ("mlp.fc1",), "mlp.fc2", gated=False)
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="siglip",
        vocab_size=0,
        hidden_size=hidden,
        layers=(LayerSpec(mixer, mlp, _SIGLIP_NORMS),) * vision.integer("num_hidden_layers", 12, most=MOST_LAYERS),
        max_position=side * side,
        norm_eps=vision.positive("layer_norm_eps", eps),
        prefix="encoder.layers",
        patch=size,
        channels=vision.integer("num_channels", 3),
        projector=projector,
        positions="exact",
        final_norm="post_layernorm",
        unused=_SIGLIP_HEAD,
    )


def _clip(model: _Model, projector: ProjectorSpec) -> VisionSpec:
    """As :func:`_siglip`, with a class token, which takes the first of the positions."""
    spec = _siglip(model, projector, patch=32, activation="quick_gelu", eps=1e-5)
    return replace(
        spec,
        max_position=spec.max_position + 1,
        patch_bias=False,
        class_token=True,
        first_norm="pre_layrnorm",
    )


def _pixtral(model: _Model, projector: ProjectorSpec) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("hidden_size", 1024)
    mixer = _attention(vision.integer("num_attention_heads", 16), hidden, bias=False, turns=True)
    names = tuple(f"feed_forward.{which}_proj" for which in ("gate", "up", "down"))
    activation = _activation(vision, "hidden_act", "gelu")
    mlp = MLPSpec(vision.integer("intermediate_size", 4096), activation, into=names[:2], out=names[2])
    norms = Norms(mixer_in="attention_norm", mlp_in="ffn_norm")
    layer = LayerSpec(replace(mixer, name="attention"), mlp, norms)
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="siglip",
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * vision.integer("num_hidden_layers", 24, most=MOST_LAYERS),
        max_position=0,
        norm_eps=1e-5,
        prefix="transformer.layers",
        source="sized",
        patch=_side(vision, "patch_size", 16),
        channels=vision.integer("num_channels", 3),
        patch_name="patch_conv",
        patch_bias=False,
        rope=AxialRope(_theta(vision), columns_between=True),
        first_norm="ln_pre",
        projector=projector,
    )


def _theta(vision: Fields) -> float:
    """The rotary base, which files of both generations name."""
    return Fields(vision.table("rope_parameters") or {}).positive("rope_theta", vision.positive("rope_theta", 10_000.0))


def _idefics3(model: _Model) -> VisionSpec:
    projector = ProjectorSpec((ProjectorProduct("projector.modality_projection.proj", model.hidden, False),))
    spec = _siglip(model, projector, patch=32, width=1152, heads=16)
    return replace(spec, positions="buckets", merge=model.whole.integer("scale_factor", 2), unused=())


def _gemma3(model: _Model) -> VisionSpec:
    name = "projector.mm_input_projection_weight"
    eps = model.vision.positive("layer_norm_eps", 1e-6)
    projector = ProjectorSpec(
        (ProjectorProduct(name, model.hidden, False, transposed=True),),
        join="mean",
        norm=ProjectorNorm("projector.mm_soft_emb_norm", "rms", eps, plus_one=True, joined=True),
    )
    spec = _siglip(model, projector)
    tokens = model.whole.integer("mm_tokens_per_image", 256)
    side = int(tokens**0.5)
    if side * side != tokens or spec.side % side:
        raise ConfigError(
            f"mm_tokens_per_image is {tokens}, expected a square that {spec.side} x {spec.side} divides into"
        )
    return replace(spec, merge=spec.side // side)


def _qwen(
    model: _Model,
    mlp: MLPSpec,
    *,
    hidden: int,
    depth: int,
    kind: NormKind,
    patch: int,
    merger: tuple[str, str, str],
    outputs: int,
) -> VisionSpec:
    """What Qwen2-VL and those that followed it have in common; ``depth`` and ``patch`` are defaults, ``merger`` has the
    names of its norm and products."""
    vision, biased = model.vision, kind == "layer"
    merge = vision.integer("spatial_merge_size", 2, most=_MOST_SIDE)
    norm, into, out = (f"projector.{name}" for name in merger)
    mixer = _attention(vision.integer("num_heads", 16), hidden, bias=True, turns=True)
    layer = LayerSpec(
        replace(mixer, fused=True, name="attn", out="proj"),
        mlp,
        Norms(mixer_in="norm1", mlp_in="norm2", kind=kind, bias=biased),
    )
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="qwen",
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * vision.integer("depth", depth, most=MOST_LAYERS),
        max_position=0,
        norm_eps=1e-6,
        prefix="blocks",
        source="patches",
        patch=_side(vision, "patch_size", patch),
        channels=vision.integer("in_channels", 3),
        frames=vision.integer("temporal_patch_size", 2, most=_MOST_SIDE),
        patch_name="patch_embed.proj",
        patch_bias=False,
        rope=AxialRope(_theta(vision)),
        merge=merge,
        projector=ProjectorSpec(
            (
                ProjectorProduct(into, hidden * merge * merge, True, "gelu"),
                ProjectorProduct(out, outputs, True),
            ),
            norm=ProjectorNorm(norm, kind, 1e-6, bias=biased),
        ),
    )


_QWEN2_MERGER: Final = ("ln_q", "mlp.0", "mlp.2")
_QWEN3_MERGER: Final = ("norm", "linear_fc1", "linear_fc2")


def _qwen2_vl(model: _Model) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("embed_dim", 1280)
    inner = hidden * vision.integer("mlp_ratio", 4)
    activation = _activation(vision, "hidden_act", "quick_gelu")
    mlp = MLPSpec(inner, activation, True, ("mlp.fc1",), "mlp.fc2", gated=False)
    outputs = vision.integer("hidden_size", 3584)
    return _qwen(model, mlp, hidden=hidden, depth=32, kind="layer", patch=14, merger=_QWEN2_MERGER, outputs=outputs)


def _qwen2_5_vl(model: _Model) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("hidden_size", 3584)
    mlp = MLPSpec(vision.integer("intermediate_size", 3420), _activation(vision, "hidden_act", "silu"), True)
    outputs = vision.integer("out_hidden_size", 3584)
    spec = _qwen(model, mlp, hidden=hidden, depth=32, kind="rms", patch=14, merger=_QWEN2_MERGER, outputs=outputs)
    window = vision.integer("window_size", 112) // spec.merge // spec.patch
    if not window:
        raise ConfigError(
            f"a window of attention has less than {spec.merge} patches of {spec.patch} pixels on each side"
        )
    whole = _numbers(vision, "fullatt_block_indexes", (7, 15, 23, 31))
    return replace(spec, window=window, whole_layers=whole)


def _qwen3_vl(model: _Model) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("hidden_size", 1152)
    inner, activation = (
        vision.integer("intermediate_size", 4304),
        _activation(vision, "hidden_act", "gelu_pytorch_tanh"),
    )
    mlp = MLPSpec(inner, activation, True, ("mlp.linear_fc1",), "mlp.linear_fc2", gated=False)
    outputs = vision.integer("out_hidden_size", 3584)
    spec = _qwen(model, mlp, hidden=hidden, depth=27, kind="layer", patch=16, merger=_QWEN3_MERGER, outputs=outputs)
    assert spec.projector.norm is not None
    return replace(
        spec,
        patch_bias=True,
        positions="bilinear",
        position_name="pos_embed",
        max_position=vision.integer("num_position_embeddings", 2304),
        deepstack=_numbers(vision, "deepstack_visual_indexes", (8, 16, 24)),
        deepstack_projector=replace(spec.projector, norm=replace(spec.projector.norm, joined=True)),
    )


def _qwen3_5(model: _Model) -> VisionSpec:
    return replace(_qwen3_vl(model), deepstack=())


def _numbers(fields: Fields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of layers."""
    return tuple(int(number) for number in fields.numbers(name)) if fields.has(name) else default


def _llava(model: _Model) -> VisionSpec:
    """Of any of these towers, up to the layer whose output is taken before it is normed."""
    towers = {"clip_vision_model": _clip, "siglip_vision_model": _siglip, "pixtral": _pixtral}
    kind = model.vision.text("model_type", "clip_vision_model")
    if kind not in towers:
        raise ConfigError(f"vision_config.model_type is {kind[:40]!r}, expected one of {', '.join(towers)}")
    strategy = model.whole.text("vision_feature_select_strategy", "default")
    if (strategy == "default") != (kind == "clip_vision_model"):
        raise ConfigError(f"vision_feature_select_strategy is {strategy[:40]!r}, which a {kind} has no native form of")
    projector = ProjectorSpec(_two_products(model, biased=True))
    return _up_to(towers[kind](model, projector), model.whole.integer("vision_feature_layer", -2, least=-MOST_LAYERS))


def _mistral3(model: _Model) -> VisionSpec:
    merge = model.whole.integer("spatial_merge_size", 2, most=_MOST_SIDE)
    text = Fields(model.whole.table("text_config") or {})
    width = model.vision.integer("hidden_size", 1024)
    projector = ProjectorSpec(
        (
            ProjectorProduct("projector.patch_merger.merging_layer", width, False, channels_first=True),
            *_two_products(model, biased=False),
        ),
        norm=ProjectorNorm("projector.norm", "rms", text.positive("rms_norm_eps", 1e-6)),
    )
    spec = replace(_pixtral(model, projector), merge=merge)
    return _up_to(spec, model.whole.integer("vision_feature_layer", -1, least=-MOST_LAYERS))


def _internvl(model: _Model) -> VisionSpec:
    """The two scales of a layer are multiplied into the products that they follow while these are loaded."""
    vision, whole = model.vision, model.whole
    ratio = whole.positive("downsample_ratio", 0.5)
    merge = round(1 / ratio)
    if merge * ratio != 1.0:
        raise ConfigError(f"downsample_ratio is {ratio}, expected one over a whole number")
    if whole.integer("vision_feature_layer", -1, least=-MOST_LAYERS) != -1:
        raise ConfigError("vision_feature_layer is not -1, which has no native form")
    if not vision.flag("use_absolute_position_embeddings", True) or not vision.flag("use_mean_pooling", True):
        raise ConfigError("a tower without learned positions, or with a norm behind its layers, has no native form")
    kinds: Mapping[str, NormKind] = {"layer_norm": "layer", "rms_norm": "rms"}
    kind = kinds.get(named := vision.text("norm_type", "layer_norm"))
    if kind is None:
        raise ConfigError(f"norm_type is {named[:40]!r}, expected one of {', '.join(kinds)}")
    hidden, size = vision.integer("hidden_size", 1024), _side(vision, "patch_size", 14)
    side = _side(vision, "image_size", 448) // size
    bias = vision.flag("attention_bias")
    mixer = replace(
        _attention(vision.integer("num_attention_heads", 16), hidden, bias=bias),
        name="attention",
        out="projection_layer",
        output_bias=True,
        qk_norm="full" if vision.flag("use_qk_norm") else "none",
    )
    act = _activation(vision, "hidden_act", "gelu")
    mlp = MLPSpec(vision.integer("intermediate_size", 4096), act, True, ("mlp.fc1",), "mlp.fc2", gated=False)
    norms = Norms(mixer_in="layernorm_before", mlp_in="layernorm_after", kind=kind, bias=kind == "layer")
    return VisionSpec(
        architecture=whole.text("model_type"),
        names="internvl",
        vocab_size=0,
        hidden_size=hidden,
        layers=(LayerSpec(mixer, mlp, norms),) * vision.integer("num_hidden_layers", 24, most=MOST_LAYERS),
        max_position=side * side + 1,
        norm_eps=vision.positive("layer_norm_eps", 1e-6),
        prefix="encoder.layer",
        patch=size,
        channels=vision.integer("num_channels", 3),
        patch_name="embeddings.patch_embeddings.projection",
        positions="exact",
        position_name="embeddings.position_embeddings",
        class_token=True,
        class_name="embeddings.cls_token",
        merge=merge,
        projector=ProjectorSpec(
            _two_products(model, biased=True),
            norm=ProjectorNorm("projector.layer_norm", "layer", 1e-5, bias=True, joined=True),
        ),
        unused=("embeddings.mask_token",),
    )


def _two_products(model: _Model, *, biased: bool) -> tuple[ProjectorProduct, ProjectorProduct]:
    """``biased`` is a default."""
    bias = model.whole.flag("multimodal_projector_bias", biased)
    activation = _activation(model.whole, "projector_hidden_act", "gelu")
    return (
        ProjectorProduct("projector.linear_1", model.hidden, bias, activation),
        ProjectorProduct("projector.linear_2", model.hidden, bias),
    )


def _up_to(spec: VisionSpec, output: int) -> VisionSpec:
    """Without the layers behind an output: number 0 is what the first layer takes, -1 what the last one gives."""
    count = output if output >= 0 else len(spec.layers) + 1 + output
    if not 0 < count <= len(spec.layers):
        raise ConfigError(f"vision_feature_layer is {output}, expected one of {len(spec.layers)} layers")
    return replace(spec, layers=spec.layers[:count], final_norm="", unused=(*spec.unused, "post_layernorm."))


def _clip_picture(model: _Model) -> VisionSpec:
    """CLIP's own tower, of which a class token makes the vector of a picture."""
    spec = _clip(model, ProjectorSpec((ProjectorProduct("visual_projection", model.hidden, False),)))
    return replace(spec, pool="class", unused=_NOT_EMBEDDED)


def _siglip_picture(model: _Model) -> VisionSpec:
    if not model.vision.flag("vision_use_head", True):
        raise ConfigError("vision_use_head is false, expected true: nothing makes one vector of a picture's patches")
    return replace(_siglip(model, ProjectorSpec(())), pool="probe", unused=_NOT_EMBEDDED)


def _paligemma(model: _Model) -> VisionSpec:
    return _siglip(model, ProjectorSpec((ProjectorProduct("projector.linear", model.hidden, True),)))


_READERS: Final[Mapping[str, Callable[[_Model], VisionSpec]]] = {
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
    "gemma3": _gemma3,
    "llava": _llava,
    "mistral3": _mistral3,
    "internvl": _internvl,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5,
    "paligemma": _paligemma,
    "clip": _clip_picture,
    "siglip": _siglip_picture,
}
"""By the model type of the whole."""
NATIVE_TOWERS: Final = frozenset(_READERS)
"""Model types whose towers run on our own layers."""
