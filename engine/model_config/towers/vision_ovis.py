"""The towers of Ovis 2 and 2.5 (arXiv:2405.20797, arXiv:2508.11737): AIMv2 over tiles, and SigLIP 2 over pictures in
their own size. Each embedding is the mean of visual words, weighted by probability. Torch-free."""

from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import MLPSpec
from .vision_fields import MOST_SIDE, VisionFields, activation_of, attention_of, side_of
from .vision_spec import GRID_MARKS, MARKS, AxialRope, ProjectorNorm, ProjectorProduct, ProjectorSpec, VisionSpec

_THETA: Final = 10_000.0


def ovis2(model: VisionFields) -> VisionSpec:
    """Ovis 2: text tokens that begin, separate and end pictures have embeddings behind those of visual words."""
    vision = model.vision
    if (kind := vision.text("tokenize_function", "softmax")) != "softmax":
        raise ConfigError(f"tokenize_function is {kind[:40]!r}, expected 'softmax'")
    hidden, size = vision.integer("hidden_size", 1024), side_of(vision, "patch_size", 14)
    side, merge = side_of(vision, "image_size", 224) // size, vision.integer("hidden_stride", 1, most=MOST_SIDE)
    if side % merge:
        raise ConfigError(f"hidden_stride is {merge}, which does not divide {side} patches a side")
    given = model.whole.get("visual_indicator_token_ids")
    marks = tuple(given) if isinstance(given, list | tuple) else ()
    if not all(isinstance(token, int) and token >= 0 for token in marks) or len(marks) != vision.integer(
        "num_visual_indicator_tokens", 5, least=0
    ):
        raise ConfigError("visual_indicator_token_ids are not num_visual_indicator_tokens tokens")
    bias = vision.flag("qkv_bias")
    mixer = attention_of(vision.integer("num_attention_heads", 8), hidden, bias=bias)
    inner, act = vision.integer("intermediate_size", 2816), activation_of(vision, "hidden_act", "silu")
    into = "ffn.gate_proj", "ffn.up_proj"
    words = vision.integer("vocab_size", 16_384, least=len(marks) + 1) - len(marks)
    norm = ProjectorNorm("projector.head_norm", "layer", 1e-5, bias=True)
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="ovis2",
        vocab_size=0,
        hidden_size=hidden,
        layers=(
            LayerSpec(
                replace(mixer, name="attention", out="out_proj"),
                MLPSpec(inner, act, vision.flag("mlp_bias"), into, "ffn.down_proj"),
                Norms(mixer_in="rms_norm1", mlp_in="rms_norm2"),
            ),
        )
        * vision.integer("num_hidden_layers", 24, most=MOST_LAYERS),
        max_position=side * side,
        norm_eps=vision.positive("rms_norm_eps", 1e-5),
        prefix="encoder.layers",
        patch=size,
        channels=vision.integer("num_channels", 3),
        positions="exact",
        first_norm="embeddings.rms_norm",
        positions_last=True,
        final_norm="rms_norm",
        merge=merge,
        projector=ProjectorSpec(
            (
                ProjectorProduct("projector.head_linear", words, False, norm=norm, softmax=True),
                ProjectorProduct("projector.table", model.hidden, False, transposed=True),
            )
        ),
        words=marks,
    )


def ovis(model: VisionFields) -> VisionSpec:
    """Ovis 2 as published: AIMv2 (arXiv:2411.14402), whose last layer's output is not normed."""
    seen = model.vision
    backbone = Fields(seen.table("backbone_config") or {})
    if (kind := backbone.text("model_type", "aimv2")) not in ("aimv2", "aimv2_vision_model"):
        raise ConfigError(f"backbone_config.model_type is {kind[:40]!r}, expected 'aimv2'")
    if (kind := seen.text("tokenize_function", "softmax")) != "softmax":
        raise ConfigError(f"tokenize_function is {kind[:40]!r}, expected 'softmax'")
    hidden, size = backbone.integer("hidden_size", 1024), side_of(backbone, "patch_size", 14)
    side, merge = side_of(backbone, "image_size", 224) // size, seen.integer("hidden_stride", 1, most=MOST_SIDE)
    if side % merge:
        raise ConfigError(f"hidden_stride is {merge}, which does not divide {side} patches a side")
    mixer = attention_of(backbone.integer("num_attention_heads", 8), hidden, bias=backbone.flag("qkv_bias"))
    bias = backbone.flag("use_bias")
    mlp = MLPSpec(backbone.integer("intermediate_size", 2816), "silu", bias, ("mlp.fc1", "mlp.fc3"), "mlp.fc2")
    mixer = replace(mixer, fused=True, name="attn", out="proj", output_bias=bias)
    words = seen.integer("vocab_size", 16_384, least=GRID_MARKS + 1) - GRID_MARKS
    norm = ProjectorNorm("projector.head.1", "layer", 1e-5, bias=True)
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="ovis",
        vocab_size=0,
        hidden_size=hidden,
        layers=(LayerSpec(mixer, mlp, Norms(mixer_in="norm_1", mlp_in="norm_2")),)
        * backbone.integer("num_hidden_layers", 24, most=MOST_LAYERS),
        max_position=side * side,
        norm_eps=backbone.positive("rms_norm_eps", 1e-5),
        prefix="blocks",
        patch=size,
        patch_name="proj",
        channels=backbone.integer("num_channels", 3),
        positions="exact",
        position_name="pos_embed",
        first_norm="norm",
        positions_last=True,
        merge=merge,
        projector=ProjectorSpec(
            (
                ProjectorProduct("projector.head.0", words, False, norm=norm, softmax=True),
                ProjectorProduct("projector.vte", model.hidden, False, transposed=True),
            )
        ),
        marks="marks",
        gridded=True,
        unused=("post_trunk_norm.",),
    )


def ovis2_5(model: VisionFields) -> VisionSpec:
    vision = model.vision
    if (kind := vision.text("model_type", "siglip2_navit")) != "siglip2_navit":
        raise ConfigError(f"vit_config.model_type is {kind[:40]!r}, expected 'siglip2_navit'")
    hidden, size = vision.integer("hidden_size", 1024), side_of(vision, "patch_size", 16)
    learned = vision.integer("num_patches", -1, least=-1)
    count = learned if learned > 0 else (side_of(vision, "image_size", 512) // size) ** 2
    rotates, positions = vision.flag("use_rope", True), vision.flag("preserve_original_pe", True)
    mixer = attention_of(vision.integer("num_attention_heads", 16), hidden, bias=True, rotates=rotates)
    inner, act = vision.integer("intermediate_size", 4096), activation_of(vision, "hidden_act", "gelu_pytorch_tanh")
    mlp = MLPSpec(inner, act, True, ("mlp.fc1",), "mlp.fc2", gated=False)
    norms = Norms(mixer_in="layer_norm1", mlp_in="layer_norm2", kind="layer", bias=True)
    merge = vision.integer("hidden_stride", 2, most=MOST_SIDE)
    words = model.whole.integer("visual_vocab_size", 65_536, least=MARKS + 1) - MARKS
    products = (
        ProjectorProduct(
            "projector.head.0",
            words,
            False,
            norm=ProjectorNorm("projector.head.1", "layer", 1e-5, bias=True),
            softmax=True,
        ),
        ProjectorProduct("projector.vte", model.hidden, False, transposed=True),
    )
    whole = _layers(vision.text("fullatt_block_indexes", ""))
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="ovis2_5",
        vocab_size=0,
        hidden_size=hidden,
        layers=(LayerSpec(replace(mixer, out="out_proj"), mlp, norms),)
        * vision.integer("num_hidden_layers", 24, most=MOST_LAYERS),
        max_position=count if positions else 0,
        norm_eps=vision.positive("layer_norm_eps", 1e-6),
        prefix="encoder.layers",
        source="patches",
        patch=size,
        channels=vision.integer("num_channels", 3),
        frames=vision.integer("temporal_patch_size", 1, most=MOST_SIDE),
        positions="sampled" if positions else "none",
        rope=AxialRope(_THETA) if rotates else None,
        final_norm="post_layernorm",
        merge=merge,
        window=vision.integer("window_size", 112) // merge // size if whole else 0,
        whole_layers=whole,
        marks="marks",
        projector=ProjectorSpec(products),
    )


def _layers(said: str) -> tuple[int, ...]:
    """Layers with attention to whole pictures, from numbers between bars; empty: all."""
    numbers = said.split("|") if said else []
    if not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"fullatt_block_indexes is {said[:40]!r}, expected such as '7|15'")
    return tuple(map(int, numbers))
