"""Towers that take patches with a grid: Qwen-VL's and GLM-4V's. Torch-free."""

import math
from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..hf.common import expect
from ..spec.layer import LayerSpec, NormKind, Norms
from ..spec.mlp import MLPSpec
from ..spec.model import dense_mlp
from ..spec.positions import RopeConfig
from .vision_fields import MOST_SIDE, VisionFields, activation_of, attention_of, layer_numbers, side_of, theta_of
from .vision_spec import AbstractorSpec, AxialRope, ProjectorNorm, ProjectorProduct, ProjectorSpec, VisionSpec


def _qwen(
    model: VisionFields,
    mlp: MLPSpec,
    *,
    hidden: int,
    depth: int,
    kind: NormKind,
    patch: int,
    merger: tuple[str, str, str],
    outputs: int,
) -> VisionSpec:
    """The common part of Qwen2-VL and its successors; ``depth`` and ``patch`` are defaults, ``merger`` has the names of
    norm and products."""
    vision, biased = model.vision, kind == "layer"
    merge = vision.integer("spatial_merge_size", 2, most=MOST_SIDE)
    norm, into, out = (f"projector.{name}" for name in merger)
    mixer = attention_of(vision.integer("num_heads", 16), hidden, bias=True, rotates=True)
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
        patch=side_of(vision, "patch_size", patch),
        channels=vision.integer("in_channels", 3),
        frames=vision.integer("temporal_patch_size", 2, most=MOST_SIDE),
        patch_name="patch_embed.proj",
        patch_bias=False,
        rope=AxialRope(theta_of(vision)),
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


def qwen2_vl(model: VisionFields) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("embed_dim", 1280)
    inner = hidden * vision.integer("mlp_ratio", 4)
    activation = activation_of(vision, "hidden_act", "quick_gelu")
    mlp = MLPSpec(inner, activation, True, ("mlp.fc1",), "mlp.fc2", gated=False)
    outputs = vision.integer("hidden_size", 3584)
    return _qwen(model, mlp, hidden=hidden, depth=32, kind="layer", patch=14, merger=_QWEN2_MERGER, outputs=outputs)


_TWO_FRAMES: Final = 2


def ernie4_5_vl(model: VisionFields) -> VisionSpec:
    """ERNIE 4.5 VL: a Qwen2-VL of one frame whose projector also joins two frames, which are both the picture."""
    vision = model.vision
    hidden = vision.integer("hidden_size", 1280)
    for field, known in (("spatial_merge_size", 2), ("temporal_merge_size", _TWO_FRAMES)):
        if vision.integer(field, known) != known:
            raise ConfigError(f"{field} is {vision.integer(field)}, expected {known}")
    inner, activation = vision.integer("intermediate_size", 5120), activation_of(vision, "hidden_act", "quick_gelu")
    mlp = MLPSpec(inner, activation, True, ("mlp.fc1",), "mlp.fc2", gated=False)
    eps = vision.positive("rms_norm_eps", 1e-6)
    spec = _qwen(model, mlp, hidden=hidden, depth=32, kind="layer", patch=14, merger=_QWEN2_MERGER, outputs=hidden)
    joined = hidden * spec.merge * spec.merge

    def layer_norm(name: str) -> ProjectorNorm:
        return ProjectorNorm(name, "layer", eps, bias=True)

    text = Fields(model.whole.table("text_config") or {})
    last = ProjectorNorm("projector.after_norm", "rms", text.positive("rms_norm_eps", 1e-5))
    names = ("projector.spatial_linear", "projector.temporal_linear")
    products = [
        product
        for name, frames in zip(names, (1, _TWO_FRAMES), strict=True)
        for product in (
            ProjectorProduct(f"{name}.0", joined, True, "gelu", repeats=frames),
            ProjectorProduct(f"{name}.2", joined, True, norm=layer_norm(f"{name}.3")),
        )
    ]
    products.append(ProjectorProduct("projector.mlp", model.hidden, True, norm=last))
    projector = ProjectorSpec(tuple(products), norm=layer_norm("ln"))
    return replace(spec, names="ernie", norm_eps=eps, frames=1, projector=projector)


def qwen2_5_vl(model: VisionFields) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("hidden_size", 3584)
    mlp = MLPSpec(vision.integer("intermediate_size", 3420), activation_of(vision, "hidden_act", "silu"), True)
    outputs = vision.integer("out_hidden_size", 3584)
    spec = _qwen(model, mlp, hidden=hidden, depth=32, kind="rms", patch=14, merger=_QWEN2_MERGER, outputs=outputs)
    window = vision.integer("window_size", 112) // spec.merge // spec.patch
    if not window:
        raise ConfigError(
            f"a window of attention has less than {spec.merge} patches of {spec.patch} pixels on each side"
        )
    whole = layer_numbers(vision, "fullatt_block_indexes", (7, 15, 23, 31))
    return replace(spec, window=window, whole_layers=whole)


def kanana_v(model: VisionFields) -> VisionSpec:
    """Kanana V: a Qwen2-VL whose patches are joined by convolutions, with positions of their own."""
    told = Fields(model.whole.table("projector_config") or {})
    expect(told, {"projector_type": "dynamic-c-abs", "prenorm": False, "num_eos_tokens": 0})
    spec = qwen2_vl(_with(model, in_channels=model.vision.integer("in_chans", 3)))
    merge, count = told.integer("merge_size", 2, most=MOST_SIDE), told.integer("pos_emb_size", 576)
    if merge != spec.merge or told.integer("encoder_hidden_size", 1280) != spec.hidden_size:
        raise ConfigError(
            f"merge_size and encoder_hidden_size of projector_config are not the tower's, {spec.merge} and "
            f"{spec.hidden_size}"
        )
    if math.isqrt(count) ** 2 != count:
        raise ConfigError(f"pos_emb_size is {count}, expected the square of a number")
    index = told.get("feature_layer_index") if told.has("feature_layer_index") else -1
    taken = len(spec.layers) + 1 + index if isinstance(index, int) and index < 0 else index
    if not isinstance(taken, int) or not 0 < taken <= len(spec.layers):
        raise ConfigError(f"feature_layer_index is {str(index)[:40]}, expected a layer of {len(spec.layers)}")
    last, outputs = told.integer("mlp_depth", 2, most=MOST_LAYERS) - 1, told.integer("output_hidden_size", 2048)
    products = (
        ProjectorProduct(f"projector.readout.{2 * number}", outputs, True, None if number == last else "silu")
        for number in range(last + 1)
    )
    width, depth = told.integer("hidden_size", 1024), told.integer("depth", 2, most=MOST_LAYERS)
    return replace(
        spec,
        names="kanana",
        layers=spec.layers[:taken],
        abstractor=AbstractorSpec(width, depth, merge, count if told.flag("pos_emb", True) else 0),
        projector=ProjectorSpec(tuple(products)),
    )


def openpangu_vl(model: VisionFields) -> VisionSpec:
    """openPangu with pictures: a Qwen2.5-VL without gates. Outputs of several layers are normed alike and projected
    each by itself, and their sum once more."""
    vision, eps = model.vision, model.vision.positive("rms_norm_eps", 1e-6)
    defaults = {"hidden_size": 1536, "depth": 26, "intermediate_size": 4608, "hidden_act": "gelu"}
    defaults |= {"fullatt_block_indexes": (5, 12, 19, 25), "in_channels": vision.integer("in_chans", 3)}
    spec = qwen2_5_vl(_with(model, **{field: vision.values.get(field, value) for field, value in defaults.items()}))
    depth = len(spec.layers)
    told = vision.get("mm_unit_vision_select_layer")
    chosen = vision.numbers("mm_unit_vision_select_layer") if isinstance(told, list | tuple) else (-1, -3)
    taken = sorted({depth + int(each) for each in chosen}, reverse=True)
    if not taken or not 0 <= taken[-1] <= taken[0] < depth:
        raise ConfigError(
            f"mm_unit_vision_select_layer is {str(told)[:40]}, expected layers counted from the last, -1 to -{depth}"
        )
    mlp = dense_mlp(spec)
    if mlp.activation != "silu":
        mlp = replace(mlp, into=("mlp.up_proj",), gated=False)
    assert spec.projector.norm is not None
    projector = replace(spec.projector, norm=replace(spec.projector.norm, eps=eps))
    return replace(
        spec,
        names="pangu",
        layers=tuple(replace(layer, mlp=mlp) for layer in spec.layers[: taken[0] + 1]),
        norm_eps=eps,
        final_norm="final_layernorm",
        projector=projector,
        deepstack=tuple(taken[1:]),
        deepstack_projector=projector if taken[1:] else None,
        last=ProjectorSpec((ProjectorProduct("projector.fc1", model.hidden, True),), activation="silu"),
    )


def exaone4_5(model: VisionFields) -> VisionSpec:
    """EXAONE 4.5: a Qwen2.5-VL with fewer key-value heads."""
    spec, heads = qwen2_5_vl(model), model.vision.integer("num_key_value_heads", 8)
    layers = (replace(each, mixer=replace(each.attention, kv_heads=heads)) for each in spec.layers)
    return replace(spec, layers=tuple(layers))


def dots_ocr(model: VisionFields) -> VisionSpec:
    """dots.ocr: a Qwen2-VL with the network of AIMv2, with norms before and behind its layers."""
    vision = model.vision
    if (frames := vision.integer("temporal_patch_size", 1)) != 1 or vision.flag("is_causal"):
        raise ConfigError(f"temporal_patch_size is {frames}, expected 1; or is_causal is set, expected false")
    hidden, bias = vision.integer("embed_dim", 1536), vision.flag("use_bias")
    inner, eps = vision.integer("intermediate_size", 4224), vision.positive("rms_norm_eps", 1e-5)
    mlp = MLPSpec(inner, "silu", bias, ("mlp.fc1", "mlp.fc3"), "mlp.fc2")
    names = {"num_heads": vision.integer("num_attention_heads", 12), "temporal_patch_size": frames}
    names |= {"depth": vision.integer("num_hidden_layers", 42), "in_channels": vision.integer("num_channels", 3)}
    outputs = vision.integer("hidden_size", 1536)
    own = _with(model, **names)
    spec = _qwen(own, mlp, hidden=hidden, depth=42, kind="rms", patch=14, merger=_QWEN2_MERGER, outputs=outputs)
    layer = replace(spec.layers[0], mixer=replace(spec.layers[0].attention, qkv_bias=bias, output_bias=bias))
    return replace(
        spec,
        layers=(layer,) * len(spec.layers),
        norm_eps=eps,
        patch_name="patch_embed.patchifier.proj",
        patch_bias=True,
        first_norm="patch_embed.patchifier.norm",
        final_norm="post_trunk_norm" if vision.flag("post_norm", True) else "",
        projector=replace(spec.projector, norm=ProjectorNorm("projector.ln_q", "layer", 1e-6, bias=True)),
    )


def hyperclovax_vision(model: VisionFields) -> VisionSpec:
    """HyperCLOVA X SEED: a Qwen2.5-VL whose embeddings are multiplied once more."""
    spec = qwen2_5_vl(model)
    last = ProjectorProduct("projector", model.hidden, True)
    return replace(spec, projector=replace(spec.projector, products=(*spec.projector.products, last)))


def qwen3_vl(model: VisionFields) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("hidden_size", 1152)
    inner, activation = (
        vision.integer("intermediate_size", 4304),
        activation_of(vision, "hidden_act", "gelu_pytorch_tanh"),
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
        deepstack=layer_numbers(vision, "deepstack_visual_indexes", (8, 16, 24)),
        deepstack_projector=replace(spec.projector, norm=replace(spec.projector.norm, joined=True)),
    )


_MEASURED: Final = ("time_series.", "model.time_series.")
"""The encoder of InternS2 for series of measurements, which are not taken."""


def qwen3_5(model: VisionFields) -> VisionSpec:
    return replace(qwen3_vl(model), deepstack=(), unused=_MEASURED)


def ling3_vl(model: VisionFields) -> VisionSpec:
    """Ling 3.0 with pictures: a Qwen3-VL without taps, whose projector is outside of its tower. As in vLLM, the eps of
    its norms is the whole model's, and taps that a file names are none."""
    spec, eps = qwen3_vl(model), model.whole.positive("rms_norm_eps", 1e-6)
    assert spec.projector.norm is not None
    products = (
        ProjectorProduct("projector.0", model.hidden, True, "gelu"),
        ProjectorProduct("projector.2", model.hidden, True),
    )
    projector = ProjectorSpec(products, norm=replace(spec.projector.norm, eps=eps))
    return replace(spec, deepstack=(), norm_eps=eps, projector=projector)


def glm4v(model: VisionFields) -> VisionSpec:
    vision = model.vision
    hidden, outputs = vision.integer("hidden_size", 1536), vision.integer("out_hidden_size", 4096)
    eps = vision.positive("rms_norm_eps", 1e-5)
    size = side_of(vision, "patch_size", 14)
    side = side_of(vision, "image_size", 336) // size
    activation = activation_of(vision, "hidden_act", "silu")
    mixer = attention_of(vision.integer("num_heads", 12), hidden, bias=vision.flag("attention_bias"), rotates=True)
    layer = LayerSpec(
        replace(mixer, fused=True, name="attn", out="proj", output_bias=False),
        MLPSpec(outputs, activation),
        Norms(mixer_in="norm1", mlp_in="norm2"),
    )
    inner = vision.integer("intermediate_size", 13_696)
    norm = ProjectorNorm("projector.merger.post_projection_norm", "layer", 1e-5, bias=True)
    products = (
        ProjectorProduct("projector.downsample", outputs, True, channels_first=True),
        ProjectorProduct("projector.merger.proj", outputs, False, "gelu", norm=norm),
        ProjectorProduct("projector.merger.up_proj", inner, False, activation, gate="projector.merger.gate_proj"),
        ProjectorProduct("projector.merger.down_proj", outputs, False),
    )
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="glm",
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * vision.integer("depth", 24, most=MOST_LAYERS),
        max_position=side * side,
        norm_eps=eps,
        prefix="blocks",
        source="patches",
        patch=size,
        channels=vision.integer("in_channels", 3),
        frames=vision.integer("temporal_patch_size", 2, most=MOST_SIDE),
        patch_name="patch_embed.proj",
        rope=AxialRope(theta_of(vision)),
        positions="sampled",
        first_norm="post_conv_layernorm",
        positions_last=True,
        final_norm="post_layernorm",
        merge=vision.integer("spatial_merge_size", 2, most=MOST_SIDE),
        projector=ProjectorSpec(products),
    )


def chatglm_4v(model: VisionFields) -> VisionSpec:
    """GLM-4V 9B: EVA2-CLIP, whose layers norm what they add, and the projector of later GLMs. The tokens around a
    picture have embeddings of the tower."""
    vision, outputs = model.vision, model.hidden
    hidden, heads = vision.integer("hidden_size", 1792), vision.integer("num_heads", 16)
    size, pixels = side_of(vision, "patch_size", 14), side_of(vision, "image_size", 1120)
    side, count = pixels // size, vision.integer("num_positions", 6401)
    if side % 2 or count != side * side + 1:
        raise ConfigError(
            f"num_positions is {count} for pictures of {side} patches a side, expected an even number of these and one "
            "position for each patch and the class token"
        )
    mixer = attention_of(heads, hidden, bias=True)
    inner, activation = vision.integer("intermediate_size", 15_360), activation_of(vision, "hidden_act", "gelu")
    norm = ProjectorNorm("projector.norm1", "layer", 1e-5, bias=True)
    wide = model.whole.integer("ffn_hidden_size", 13_696)
    products = (
        ProjectorProduct("projector.conv", outputs, True, channels_first=True),
        ProjectorProduct("projector.linear_proj", outputs, False, "gelu", norm=norm),
        ProjectorProduct("projector.dense_h_to_4h", wide, False, "silu", gate="projector.gate_proj"),
        ProjectorProduct("projector.dense_4h_to_h", outputs, False),
    )
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="chatglm",
        vocab_size=0,
        hidden_size=hidden,
        layers=(
            LayerSpec(
                replace(mixer, fused=True, name="attention", into="query_key_value", out="dense"),
                MLPSpec(inner, activation, True, ("mlp.fc1",), "mlp.fc2", gated=False),
                Norms(mixer_out="input_layernorm", mlp_out="post_attention_layernorm", kind="layer", bias=True),
            ),
        )
        * vision.integer("num_hidden_layers", 63, most=MOST_LAYERS),
        max_position=count,
        norm_eps=vision.positive("layer_norm_eps", 1e-6),
        prefix="transformer.layers",
        patch=size,
        channels=vision.integer("in_channels", 3),
        patch_name="patch_embedding.proj",
        positions="exact",
        position_name="patch_embedding.position_embedding",
        class_token=True,
        class_name="patch_embedding.cls_embedding",
        merge=2,
        projector=ProjectorSpec(products),
        words=tuple(model.whole.integer(f"{mark}_token_id", least=0) for mark in ("boi", "eoi")),
        word_names=("boi", "eoi"),
        out_scale=1 / vision.positive("scaling_factor", 8.0),
    )


def glm_ocr(model: VisionFields) -> VisionSpec:
    """GLM-OCR: a GLM-4V without learned positions, with norms of heads and biases."""
    vision = model.vision
    hidden, outputs = vision.integer("hidden_size", 1024), vision.integer("out_hidden_size", 1536)
    spec = glm4v(_with(model, hidden_size=hidden, out_hidden_size=outputs, num_heads=vision.integer("num_heads", 16)))
    bias, inner = vision.flag("attention_bias", True), vision.integer("intermediate_size", 4096)
    layer = spec.layers[0]
    mixer = replace(layer.attention, qkv_bias=bias, output_bias=bias, qk_norm="head")
    layer = replace(layer, mixer=mixer, mlp=replace(dense_mlp(spec), inner=inner, bias=bias))
    downsample, proj, up, down = spec.projector.products
    products = (downsample, proj, replace(up, outputs=outputs * spec.channels), down)
    return replace(
        spec,
        layers=(layer,) * len(spec.layers),
        positions="none",
        max_position=0,
        first_norm="",
        positions_last=False,
        projector=ProjectorSpec(products),
    )


def llava_onevision2(model: VisionFields) -> VisionSpec:
    """LLaVA-OneVision 2 for pictures: patches of one frame, rotated by time, row and column; a norm before the layers
    and none behind them."""
    vision = model.vision
    expect(vision, {"temporal_patch_size": 1, "hidden_act": "gelu"})
    hidden, eps = vision.integer("hidden_size", 1024), vision.positive("layer_norm_eps", 1e-6)
    mlp = MLPSpec(vision.integer("intermediate_size", 4096), "gelu", True, ("mlp.fc1",), "mlp.fc2", gated=False)
    names = {"num_heads": vision.integer("num_attention_heads", 16), "temporal_patch_size": 1}
    names |= {"depth": vision.integer("num_hidden_layers", 24), "in_channels": vision.integer("num_channels", 3)}
    own = _with(model, **names)
    spec = _qwen(own, mlp, hidden=hidden, depth=24, kind="layer", patch=14, merger=_QWEN2_MERGER, outputs=model.hidden)
    layer, norm = spec.layers[0], spec.projector.norm
    assert norm is not None
    mixer = replace(layer.attention, rope=RopeConfig(interleaved=True))
    layer = replace(layer, mixer=mixer, norms=replace(layer.norms, mixer_in="layer_norm1", mlp_in="layer_norm2"))
    return replace(
        spec,
        layers=(layer,) * len(spec.layers),
        prefix="encoder.layers",
        norm_eps=eps,
        patch_name="embeddings.patch_embedding",
        first_norm="layernorm_pre",
        rope=AxialRope(theta_of(vision), timed=True),
        projector=replace(spec.projector, norm=replace(norm, eps=eps)),
    )


def _with(model: VisionFields, **values: object) -> VisionFields:
    """The model with these fields of its tower."""
    return replace(model, vision=Fields({**model.vision.values, **values}))
