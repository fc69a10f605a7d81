"""Towers like SigLIP's, CLIP and Pixtral, with the projectors of their families. Torch-free."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..hf.common import expect
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import MLPSpec
from ..spec.positions import RopeConfig
from .vision_fields import (
    MOST_SIDE,
    VisionFields,
    activation_of,
    attention_of,
    layer_numbers,
    side_of,
    theta_of,
    two_products,
    up_to,
)
from .vision_spec import AxialRope, ProjectorNorm, ProjectorProduct, ProjectorSpec, ResamplerSpec, TileSpec, VisionSpec

_SIGLIP_NORMS: Final = Norms(mixer_in="layer_norm1", mlp_in="layer_norm2", kind="layer", bias=True)
_SIGLIP_HEAD: Final = ("head.",)
_PADDLE_TOWER: Final = {
    **{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16},
    **{"image_size": 384, "patch_size": 14},
}
"""Defaults."""
_NOT_EMBEDDED: Final = ("logit_scale", "logit_bias", "embeddings.position_ids")
"""The factor on cosines in training, and a buffer of old files."""


def siglip_tower(
    model: VisionFields,
    projector: ProjectorSpec,
    *,
    patch: int = 16,
    width: int = 768,
    heads: int = 12,
    activation: str = "gelu_pytorch_tanh",
    eps: float = 1e-6,
) -> VisionSpec:
    """The tower for pictures of the size of its learned positions; the options are defaults."""
    vision = model.vision
    hidden = vision.integer("hidden_size", width)
    side = side_of(vision, "image_size", 224) // (size := side_of(vision, "patch_size", patch))
    mixer = replace(attention_of(vision.integer("num_attention_heads", heads), hidden, bias=True), out="out_proj")
    act = activation_of(vision, "hidden_act", activation)
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


def _clip(model: VisionFields, projector: ProjectorSpec) -> VisionSpec:
    """A tower of SigLIP's kind with a class token at the first position, and a norm before the layers."""
    spec = siglip_tower(model, projector, patch=32, activation="quick_gelu", eps=1e-5)
    return replace(
        spec,
        max_position=spec.max_position + 1,
        patch_bias=False,
        class_token=True,
        first_norm="pre_layrnorm",
    )


def _pixtral(model: VisionFields, projector: ProjectorSpec) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("hidden_size", 1024)
    mixer = attention_of(vision.integer("num_attention_heads", 16), hidden, bias=False, rotates=True)
    names = tuple(f"feed_forward.{which}_proj" for which in ("gate", "up", "down"))
    activation = activation_of(vision, "hidden_act", "gelu")
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
        patch=side_of(vision, "patch_size", 16),
        channels=vision.integer("num_channels", 3),
        patch_name="patch_conv",
        patch_bias=False,
        rope=AxialRope(theta_of(vision), columns_between=True),
        first_norm="ln_pre",
        projector=projector,
    )


def clip(model: VisionFields) -> VisionSpec:
    """CLIP: a picture's vector comes from a class token."""
    spec = _clip(model, ProjectorSpec((ProjectorProduct("visual_projection", model.hidden, False),)))
    return replace(spec, pool="class", unused=_NOT_EMBEDDED)


def siglip(model: VisionFields) -> VisionSpec:
    """SigLIP: a picture's vector comes from a learned query."""
    if not model.vision.flag("vision_use_head", True):
        raise ConfigError("vision_use_head is false, expected true: nothing makes one vector of a picture's patches")
    return replace(siglip_tower(model, ProjectorSpec(())), pool="probe", unused=_NOT_EMBEDDED)


def paligemma(model: VisionFields) -> VisionSpec:
    size = model.whole.integer("projection_dim", model.hidden)
    return siglip_tower(model, ProjectorSpec((ProjectorProduct("projector.linear", size, True),)))


def deepseek_vl(model: VisionFields) -> VisionSpec:
    products = (
        ProjectorProduct("projector.linear1", model.hidden, True, "gelu"),
        ProjectorProduct("projector.linear2", model.hidden, True),
    )
    return siglip_tower(model, ProjectorSpec(products))


_PAINTER: Final = ("vqmodel.", "generation_embeddings.", "generation_aligner.", "generation_head.")
"""Parts of Janus that make pictures."""


def janus(model: VisionFields) -> VisionSpec:
    """The vision tower of Janus, without its image generator."""
    vision = model.vision
    if vision.flag("use_qk_norm") or vision.integer("depth", 2) != 2:
        raise ConfigError("use_qk_norm is set, or depth is not 2, which has no native form")
    size, activation = vision.integer("projection_dim", 2048), activation_of(vision, "hidden_act", "gelu")
    products = (
        ProjectorProduct("projector.fc1", size, True, activation),
        ProjectorProduct("projector.hidden_layers.0", size, True),
    )
    width = vision.integer("hidden_size", 1024)
    defaults = {"image_size": 384, "hidden_act": "gelu", "num_hidden_layers": 24}
    inner = int(width * vision.positive("mlp_ratio", 4.0))  # transformers ignores intermediate_size
    tower = replace(model, vision=Fields({**defaults, **vision.values, "intermediate_size": inner}))
    spec = siglip_tower(tower, ProjectorSpec(products), width=1024, heads=16)
    mixer = replace(spec.layers[0].attention, qkv_bias=vision.flag("attention_bias", True), out="projection_layer")
    layers = (replace(spec.layers[0], mixer=mixer),) * len(spec.layers)
    return replace(spec, layers=layers, unused=tuple(f"model.{part}" for part in _PAINTER))


def idefics3(model: VisionFields) -> VisionSpec:
    projector = ProjectorSpec((ProjectorProduct("projector.modality_projection.proj", model.hidden, False),))
    spec = siglip_tower(model, projector, patch=32, width=1152, heads=16)
    return replace(spec, positions="buckets", merge=model.whole.integer("scale_factor", 2), unused=())


_MINICPM_TOWER: Final = {
    **{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16},
    **{"image_size": 980, "patch_size": 14},
}
"""Defaults."""
_RESAMPLER_HEAD: Final = 128
"""Numbers of a head of MiniCPM-V's resampler."""
_MINICPM_O: Final = ("apm.", "audio_projection_layer.", "tts.")
"""Parts of MiniCPM-o that hear and speak."""


def minicpmv(model: VisionFields) -> VisionSpec:
    """MiniCPM-V 2.6 to 4.5: SigLIP over slices in their own shapes, and learned queries, as many for each slice."""
    width = model.hidden
    if width % _RESAMPLER_HEAD:
        raise ConfigError(f"hidden_size is {width}, expected heads of {_RESAMPLER_HEAD} numbers for the resampler")
    projector = ProjectorSpec(
        (ProjectorProduct("resampler.proj", width, False, transposed=True),),
        norm=ProjectorNorm("resampler.ln_post", "layer", 1e-6, bias=True),
    )
    spec = siglip_tower(replace(model, vision=Fields({**_MINICPM_TOWER, **model.vision.values})), projector)
    queries = model.whole.integer("query_num", 64)
    resampler = ResamplerSpec(queries, width, width // _RESAMPLER_HEAD, projects=spec.hidden_size != width)
    count = len(spec.layers) - model.whole.flag("drop_vision_last_layer")
    return replace(
        spec,
        layers=spec.layers[:count],
        source="rows",
        positions="buckets",
        resampler=resampler,
        unused=(*_SIGLIP_HEAD, "resampler.pos_embed", *_MINICPM_O),
    )


def modernvbert(model: VisionFields) -> VisionSpec:
    projector = ProjectorSpec((ProjectorProduct("projector.modality_projection", model.hidden, False),))
    return replace(siglip_tower(model, projector), merge=model.whole.integer("pixel_shuffle_factor", 4))


def gemma3(model: VisionFields) -> VisionSpec:
    name = "projector.mm_input_projection_weight"
    eps = model.vision.positive("layer_norm_eps", 1e-6)
    projector = ProjectorSpec(
        (ProjectorProduct(name, model.hidden, False, transposed=True),),
        join="mean",
        norm=ProjectorNorm("projector.mm_soft_emb_norm", "rms", eps, plus_one=True, joined=True),
    )
    spec = siglip_tower(model, projector)
    tokens = model.whole.integer("mm_tokens_per_image", 256)
    side = int(tokens**0.5)
    if side * side != tokens or spec.side % side:
        raise ConfigError(
            f"mm_tokens_per_image is {tokens}, expected a square that {spec.side} x {spec.side} divides into"
        )
    return replace(spec, merge=spec.side // side)


def llava(model: VisionFields, layer: int = -2, strategy: str = "default") -> VisionSpec:
    """One of these towers, up to the layer whose output is used without a norm; the options are defaults."""
    towers = {"clip_vision_model": _clip, "siglip_vision_model": siglip_tower, "pixtral": _pixtral}
    kind = model.vision.text("model_type", "clip_vision_model")
    if kind not in towers:
        raise ConfigError(f"vision_config.model_type is {kind[:40]!r}, expected one of {', '.join(towers)}")
    strategy = model.whole.text("vision_feature_select_strategy", strategy)
    if (strategy == "default") != (kind == "clip_vision_model"):
        raise ConfigError(f"vision_feature_select_strategy is {strategy[:40]!r}, which a {kind} has no native form of")
    spec = towers[kind](model, ProjectorSpec(two_products(model, biased=True)))
    if not isinstance(model.whole.get("vision_feature_layer"), list | tuple):
        return up_to(spec, model.whole.integer("vision_feature_layer", layer, least=-MOST_LAYERS))
    layers = layer_numbers(model.whole, "vision_feature_layer", ())
    taken = tuple(number if number >= 0 else len(spec.layers) + 1 + number for number in layers)
    return replace(up_to(spec, max(taken, default=0)), taken=taken)


def vipllava(model: VisionFields) -> VisionSpec:
    """ViP-LLaVA: CLIP, with a norm of what several layers make of a patch."""
    given = {"vision_feature_layer": [-2, -5, -8, -11, 6], **model.whole.values}
    fixed = {"vision_feature_select_strategy": "default", "multimodal_projector_bias": True}
    whole = Fields({**given, **fixed})
    spec = llava(replace(model, whole=whole))
    norm = ProjectorNorm(
        "projector.projector_layernorm", "layer", whole.positive("projector_layernorm_eps", 1e-5), bias=True
    )
    return replace(spec, projector=replace(spec.projector, norm=norm))


_NEXT_CANVASES: Final = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
_SIX: Final = range(1, 7)
_ONEVISION_CANVASES: Final = tuple((384 * rows, 384 * columns) for rows in _SIX for columns in _SIX)


def llava_next(model: VisionFields) -> VisionSpec:
    return _in_tiles(model, llava(model), _NEXT_CANVASES)


def llava_onevision(model: VisionFields) -> VisionSpec:
    ratio = model.whole.text("vision_aspect_ratio", "anyres_max_9")
    most = ratio.removeprefix("anyres_max_")
    if not most.isdecimal():
        raise ConfigError(f"vision_aspect_ratio is {ratio[:40]!r}, expected such as 'anyres_max_9'")
    spec = _in_tiles(model, llava(model, -1, "full"), _ONEVISION_CANVASES)
    assert spec.tiles is not None
    return replace(spec, tiles=replace(spec.tiles, most=int(most)), video=True)


_WIDER: Final = {"bee": 4, "r_4b": 1}
"""Factors of the width between the projector's products."""


def normed_onevision(model: VisionFields) -> VisionSpec:
    """R-4B and Bee: LLaVA-OneVision with a norm of patches before its projector, and without video."""
    spec = llava_onevision(model)
    first, last = spec.projector.products
    first = replace(first, outputs=first.outputs * _WIDER[model.whole.text("model_type")])
    norm = ProjectorNorm("projector.pre_norm", "layer", 1e-6, bias=True)
    return replace(spec, projector=replace(spec.projector, products=(first, last), norm=norm), video=False)


PHI3_TOWER: Final = {
    **{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
    **{"image_size": 336, "patch_size": 14},
}
"""The CLIP of Phi-3-vision, which its files name without its sizes."""
_PHI3_PARTS: Final[Mapping[str, Mapping[str, object]]] = {
    "img_processor": {"name": "clip_vision_model", "type_feature": "patch"},
    "embd_layer": {
        **{"projection_cls": "mlp", "hd_transform_order": "sub_glb"},
        **{"use_hd_transform": True, "with_learnable_separator": True},
    },
}
"""Fields of its parts, with the only known values."""


def phi3_v(model: VisionFields) -> VisionSpec:
    """Phi-3-vision: CLIP over tiles and, behind them, the whole."""
    parts = {name: Fields(model.whole.table(name) or {}) for name in _PHI3_PARTS}
    for name, known in _PHI3_PARTS.items():
        expect(parts[name], known)
    products = (
        ProjectorProduct("projector.0", model.hidden, True, "gelu"),
        ProjectorProduct("projector.2", model.hidden, True),
    )
    spec = _clip(model, ProjectorSpec(products))
    side = side_of(model.vision, "image_size", 336)
    return replace(
        up_to(spec, parts["img_processor"].integer("layer_idx", -2, least=-MOST_LAYERS)),
        names="phi3",
        merge=2,
        tiles=TileSpec((), side, end="sub_GN", between="glb_GN", whole_last=True, joined=True),
        unused=(*_SIGLIP_HEAD, "post_layernorm.", "embeddings.position_ids"),
    )


def _in_tiles(model: VisionFields, spec: VisionSpec, canvases: tuple[tuple[int, int], ...]) -> VisionSpec:
    """``canvases``: a default."""
    side = side_of(model.vision, "image_size", 336)
    given = model.whole.get("image_grid_pinpoints")
    if given is not None:
        if not isinstance(given, list | tuple) or not all(map(_is_size, given)):
            raise ConfigError("image_grid_pinpoints is no list of heights and widths")
        canvases = tuple((height, width) for height, width in given)
    if spec.positions != "exact" or any(length % side or not length for canvas in canvases for length in canvas):
        raise ConfigError(f"image_grid_pinpoints are not made of tiles of {side} x {side} pixels")
    return replace(spec, tiles=TileSpec(canvases, side))


def _is_size(given: object) -> bool:
    return (
        isinstance(given, list | tuple)
        and len(given) == 2
        and all(isinstance(length, int) and 0 < length <= MOST_SIDE for length in given)
    )


def _gated_products(model: VisionFields, inner: int) -> tuple[ProjectorProduct, ...]:
    """Cohere's products: the second half of the first gates the first half."""
    return (
        ProjectorProduct("projector.linear_1", inner // 2, True, "silu", gated_by_half=True),
        ProjectorProduct("projector.linear_2", model.hidden, True),
    )


def aya_vision(model: VisionFields) -> VisionSpec:
    inner = model.whole.integer("alignment_intermediate_size", model.hidden)
    eps = model.whole.positive("adapter_layer_norm_eps", 1e-6)
    norm = ProjectorNorm("projector.layernorm", "layer", eps, bias=True, joined=True)
    spec = siglip_tower(model, ProjectorSpec(_gated_products(model, inner), norm=norm))
    spec = up_to(spec, model.whole.integer("vision_feature_layer", -1, least=-MOST_LAYERS))
    return replace(spec, merge=model.whole.integer("downsample_factor", 2, most=MOST_SIDE))


def cohere2_vision(model: VisionFields) -> VisionSpec:
    inner = model.whole.integer("alignment_intermediate_size", 36_864)
    spec = siglip_tower(model, ProjectorSpec(_gated_products(model, inner)))
    return replace(spec, merge=model.whole.integer("downsample_factor", 2, most=MOST_SIDE))


def lfm2_vl(model: VisionFields) -> VisionSpec:
    """SigLIP 2 over patches of pictures of any shape."""
    whole, vision = model.whole, model.vision
    bias = whole.flag("projector_bias", True)
    inner = whole.integer("projector_hidden_size", 2560)
    products = (
        ProjectorProduct("projector.linear_1", inner, bias, activation_of(whole, "projector_hidden_act", "gelu")),
        ProjectorProduct("projector.linear_2", model.hidden, bias),
    )
    norm = ProjectorNorm("projector.layer_norm", "layer", 1e-5, bias=True, joined=True)
    has_norm = whole.flag("projector_use_layernorm", True)
    return replace(
        siglip_tower(model, ProjectorSpec(products, norm=norm if has_norm else None)),
        source="shaped",
        positions="antialiased",
        max_position=vision.integer("num_patches", 256),
        merge=whole.integer("downsample_factor", 2, most=MOST_SIDE),
    )


def cosmos3_edge(model: VisionFields) -> VisionSpec:
    """Cosmos 3 Edge: SigLIP 2 over patches with a grid, joined as Qwen3-VL's."""
    merge = model.vision.integer("spatial_merge_size", 2, most=MOST_SIDE)
    tower = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
    model = replace(model, vision=Fields({**tower, **model.vision.values}))
    inner = model.whole.integer("projector_hidden_size", 11_520)
    products = (
        ProjectorProduct("projector.linear_fc1", inner, True, "gelu"),
        ProjectorProduct("projector.linear_fc2", model.hidden, True),
    )
    norm = ProjectorNorm("projector.norm", "layer", 1e-6, bias=True)
    return replace(
        siglip_tower(model, ProjectorSpec(products, norm=norm)),
        names="cosmos3_edge",
        source="patches",
        positions="antialiased",
        max_position=model.vision.integer("num_patches", 256),
        merge=merge,
    )


def mistral3(model: VisionFields) -> VisionSpec:
    merge = model.whole.integer("spatial_merge_size", 2, most=MOST_SIDE)
    text = Fields(model.whole.table("text_config") or {})
    width = model.vision.integer("hidden_size", 1024)
    projector = ProjectorSpec(
        (
            ProjectorProduct("projector.patch_merger.merging_layer", width, False, channels_first=True),
            *two_products(model, biased=False),
        ),
        norm=ProjectorNorm("projector.norm", "rms", text.positive("rms_norm_eps", 1e-6)),
    )
    spec = replace(_pixtral(model, projector), merge=merge)
    return up_to(spec, model.whole.integer("vision_feature_layer", -1, least=-MOST_LAYERS))


def mistral_large4(model: VisionFields) -> VisionSpec:
    """Mistral Large 4: Mistral 3's tower under Mistral's own names."""
    text = {"rms_norm_eps": 1e-5, **(model.whole.table("text_config") or {})}
    whole = Fields({**model.whole.values, "text_config": text})
    return replace(mistral3(replace(model, whole=whole)), names="mistral")


def mistral_pixtral(model: VisionFields) -> VisionSpec:
    """Pixtral and Mistral 3 under Mistral's own names."""
    if model.whole.integer("spatial_merge_size", 1, most=MOST_SIDE) > 1:
        return mistral_large4(model)
    return replace(_pixtral(model, ProjectorSpec(two_products(model, biased=True))), names="mistral")


def paddleocr_vl(model: VisionFields) -> VisionSpec:
    """PaddleOCR-VL: SigLIP over pictures of any shape, also rotated by row and column."""
    model = replace(model, vision=Fields({**_PADDLE_TOWER, **model.vision.values}))
    width = model.vision.integer("hidden_size")
    merge = model.vision.integer("spatial_merge_size", 2, most=MOST_SIDE)
    projector = ProjectorSpec(
        (
            ProjectorProduct("projector.linear_1", width * merge * merge, True, "gelu"),
            ProjectorProduct("projector.linear_2", model.hidden, True),
        ),
        norm=ProjectorNorm("projector.pre_norm", "layer", 1e-5, bias=True),
    )
    spec = siglip_tower(model, projector)
    return replace(
        spec,
        layers=tuple(replace(each, mixer=replace(each.attention, rope=RopeConfig())) for each in spec.layers),
        source="rows",
        positions="centred",
        rope=AxialRope(theta_of(model.vision)),
        merge=merge,
        unused=(*_SIGLIP_HEAD, "embeddings.packing_position_embedding."),
    )


def keye_vl1_5(model: VisionFields) -> VisionSpec:
    """Keye-VL 1.5: PaddleOCR-VL's tower, which is that of Keye-VL, with the norm over joined patches."""
    spec = paddleocr_vl(model)
    assert spec.projector.norm is not None
    return replace(spec, projector=replace(spec.projector, norm=replace(spec.projector.norm, joined=True)))
