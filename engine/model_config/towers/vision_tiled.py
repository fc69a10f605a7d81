"""Towers over tiles whose squares of four patches are projected: Llama 4, Eagle 2.5, Nemotron Nano VL, DeepSeek-VL2,
Molmo.
Torch-free."""

from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..hf.common import expect
from ..hf.deepseek_ocr import is_deepseek_ocr
from ..hf.radio import radio_sizes, radio_tokens
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import MLPSpec
from ..spec.positions import RopeConfig
from .vision_fields import MOST_SIDE, VisionFields, attention_of, side_of, theta_of, up_to
from .vision_siglip import siglip_tower
from .vision_spec import (
    AxialRope,
    ProjectorNorm,
    ProjectorProduct,
    ProjectorSpec,
    SquareAttention,
    TileSpec,
    VisionSpec,
)


def merged_by(fields: Fields, name: str = "downsample_ratio") -> int:
    """Patches on each side of the square that becomes one embedding."""
    ratio = fields.positive(name, 0.5)
    merge = round(1 / ratio)
    if merge * ratio != 1.0:
        raise ConfigError(f"{name} is {ratio}, expected one over a whole number")
    return merge


def mlp1_projector(inner: int, outputs: int) -> ProjectorSpec:
    """A norm of squares of patches, and two products."""
    return ProjectorSpec(
        (ProjectorProduct("mlp1.1", inner, True, "gelu"), ProjectorProduct("mlp1.3", outputs, True)),
        norm=ProjectorNorm("mlp1.0", "layer", 1e-5, bias=True, joined=True),
    )


def eagle(model: VisionFields) -> VisionSpec:
    """Eagle 2.5: SigLIP 2, and two products of squares of patches."""
    whole = model.whole
    kind = model.vision.text("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        raise ConfigError(f"vision_config.model_type is {kind[:40]!r}, expected 'siglip_vision_model'")
    if whole.integer("use_backbone_lora", 0, least=0) or whole.integer("mlp_connector_layers", 2) != 2:
        raise ConfigError("use_backbone_lora is not 0, or mlp_connector_layers not 2, which has no native form")
    projector = mlp1_projector(model.hidden, model.hidden)
    spec = replace(siglip_tower(model, projector), merge=merged_by(whole))
    layer = whole.integer("select_layer", -4, least=-MOST_LAYERS)
    return spec if layer == -1 else up_to(spec, layer)


def nemotron_embed(model: VisionFields) -> VisionSpec:
    """NVIDIA's embedders and rerankers of pictures: as Eagle, behind the last layer and its norm."""
    whole = Fields({"select_layer": -1, **model.whole.values})
    expect(whole, {"pre_feature_reduction": False, "keep_aspect_ratio": False, "ps_version": "v2"})
    return eagle(replace(model, whole=whole))


def llama4(model: VisionFields) -> VisionSpec:
    """Llama 4: learned positions and rotation, by columns first."""
    vision = model.vision
    hidden, inner = vision.integer("hidden_size", 768), vision.integer("intermediate_size", 5632)
    merge, outputs = merged_by(vision, "pixel_shuffle_ratio"), vision.integer("projector_output_dim", 4096)
    if inner != hidden * merge * merge or vision.integer("projector_input_dim", 4096) != outputs:
        raise ConfigError(
            f"intermediate_size is {inner}, expected {hidden * merge * merge}; or projector_input_dim is not "
            f"projector_output_dim, {outputs}"
        )
    mixer = attention_of(vision.integer("num_attention_heads", 16), hidden, bias=True, rotates=True)
    mlp = MLPSpec(inner, "gelu", True, ("mlp.fc1",), "mlp.fc2", gated=False)
    norms = Norms(mixer_in="input_layernorm", mlp_in="post_attention_layernorm", kind="layer", bias=True)
    layer = LayerSpec(replace(mixer, rope=RopeConfig(interleaved=True)), mlp, norms)
    size = side_of(vision, "patch_size", 14)
    side = side_of(vision, "image_size", 448) // size
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="llama4",
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * vision.integer("num_hidden_layers", 34, most=MOST_LAYERS),
        max_position=side * side + 1,
        norm_eps=1e-5,
        prefix="model.layers",
        patch=size,
        channels=vision.integer("num_channels", 3),
        patch_name="patch_embedding.linear",
        patch_bias=False,
        positions="exact",
        position_name="positional_embedding_vlm",
        class_token=True,
        class_name="class_embedding",
        rope=AxialRope(theta_of(vision), columns_first=True),
        first_norm="layernorm_pre",
        final_norm="layernorm_post",
        merge=merge,
        projector=ProjectorSpec(
            (
                ProjectorProduct("vision_adapter.mlp.fc1", outputs, False, "gelu"),
                ProjectorProduct("vision_adapter.mlp.fc2", outputs, False, "gelu"),
                ProjectorProduct("projector.linear_1", model.hidden, False),
            )
        ),
    )


def nemotron_h_vl(model: VisionFields) -> VisionSpec:
    """Nemotron Nano 12B v2 VL: C-RADIO (arXiv:2312.06709), and products with a square."""
    inner = model.whole.integer("projector_hidden_size", 20_480)
    return _radio(
        model,
        ProjectorSpec(
            (ProjectorProduct("mlp1.1", inner, False, "relu2"), ProjectorProduct("mlp1.3", model.hidden, False)),
            norm=ProjectorNorm("mlp1.0", "rms", 1e-5, joined=True),
        ),
    )


def llama_nemotron_vl(model: VisionFields) -> VisionSpec:
    """Llama 3.1 Nemotron Nano VL: the same tower with Llama."""
    inner = model.whole.integer("projector_hidden_size", 4096)
    return _radio(model, mlp1_projector(inner, model.hidden))


def _radio(model: VisionFields, projector: ProjectorSpec) -> VisionSpec:
    """C-RADIO over tiles of one size, to which its positions are resized."""
    whole, vision = model.whole, model.vision
    args = Fields(vision.table("args") or {})
    tokens, (width, layers, heads) = radio_tokens(args), radio_sizes(vision, args, "vision_config")
    mixer = attention_of(heads, width, bias=True)
    mlp = MLPSpec(vision.integer("intermediate_size", 4 * width), "gelu", True, ("mlp.fc1",), "mlp.fc2", gated=False)
    norms = Norms(mixer_in="norm1", mlp_in="norm2", kind="layer", bias=True)
    layer = LayerSpec(replace(mixer, fused=True, name="attn", out="proj"), mlp, norms)
    size = side_of(vision, "patch_size", 16)
    side = side_of(whole, "force_image_size", 512) // size
    return VisionSpec(
        architecture=whole.text("model_type"),
        names="radio",
        vocab_size=0,
        hidden_size=width,
        layers=(layer,) * layers,
        max_position=side * side,
        norm_eps=1e-6,
        prefix="blocks",
        patch=size,
        patch_name="patch_generator.embedder",
        patch_bias=False,
        positions="exact",
        position_name="patch_generator.pos_embed",
        registers=tokens.classes + tokens.registers,
        register_name="patch_generator.cls_token.token",
        merge=merged_by(whole),
        projector=projector,
        unused=("summary_idxs", "input_conditioner."),
    )


_TIMM_NORMS: Final = Norms(mixer_in="norm1", mlp_in="norm2", kind="layer", bias=True)


def deepseek_vl2(model: VisionFields) -> VisionSpec:
    """DeepSeek-VL2: SigLIP under timm's names over the whole and, behind it, tiles."""
    whole, vision = model.whole, model.vision
    if is_deepseek_ocr(whole.values):
        raise ConfigError("the tower of DeepSeek-OCR is not native")
    expect(whole, {"tile_tag": "2D"})
    projector = Fields(whole.table("projector_config") or {})
    expect(projector, {"projector_type": "downsample_mlp_gelu", "token_pooling": False, "depth": 2})
    expect(vision, {"class_token": False})
    hidden, inner = vision.integer("width", 1152), projector.positive("mlp_ratio", 1.0)
    mixer = replace(attention_of(vision.integer("heads", 16), hidden, bias=True), name="attn", fused=True, out="proj")
    mlp_size = int(hidden * vision.positive("mlp_ratio", 4.0))
    mlp = MLPSpec(mlp_size, "gelu_tanh", True, ("mlp.fc1",), "mlp.fc2", gated=False)
    patch, size = side_of(vision, "patch_size", 14), side_of(vision, "image_size", 384)
    products = (
        ProjectorProduct("projector.layers.0", int(model.hidden * inner), True, "gelu", channels_first=True),
        ProjectorProduct("projector.layers.2", model.hidden, True),
    )
    last = whole.text("global_view_pos", "head")
    if last not in ("head", "tail"):
        raise ConfigError(f"global_view_pos is {last[:40]!r}, expected 'head' or 'tail'")
    return VisionSpec(
        architecture=whole.text("model_type"),
        names="deepseek_vl2",
        vocab_size=0,
        hidden_size=hidden,
        layers=(LayerSpec(mixer, mlp, _TIMM_NORMS),) * vision.integer("layers", 27, most=MOST_LAYERS),
        max_position=(size // patch) ** 2,
        norm_eps=1e-6,
        prefix="blocks",
        patch=patch,
        patch_name="patch_embed.proj",
        positions="exact",
        position_name="pos_embed",
        final_norm="norm",
        filled_up=projector.integer("downsample_ratio", 2, most=MOST_SIDE),
        projector=ProjectorSpec(products),
        tiles=TileSpec((), size, between="view_seperator", whole_last=last == "tail"),
        unused=("attn_pool.", "head."),
    )


_MOLMO_LAYERS: Final = 23
_MOLMO_TAKEN: Final = (-2, -9)
"""Outputs of layers that are taken, side by side."""


def molmo(model: VisionFields) -> VisionSpec:
    """Molmo (arXiv:2409.17146): CLIP over the whole and overlapping tiles, whose squares are joined by attention. Its
    files tell nothing of the tower; ``vision_config`` is read if there is one."""
    whole, vision = model.whole, model.vision
    hidden, heads = vision.integer("image_emb_dim", 1024), vision.integer("image_num_heads", 16)
    count = vision.integer("image_num_layers", _MOLMO_LAYERS, most=MOST_LAYERS)
    taken = tuple(count + 1 + layer for layer in _MOLMO_TAKEN)
    patch, size = side_of(vision, "image_patch_size", 14), side_of(vision, "image_default_input_size", 336)
    mlp = MLPSpec(vision.integer("image_mlp_dim", 4096), "quick_gelu", True, ("mlp.fc1",), "mlp.fc2", gated=False)
    norms = Norms(mixer_in="attention_norm", mlp_in="ffn_norm", kind="layer", bias=True)
    inner = whole.integer("intermediate_size", 37_888) // 2
    margins = [int(margin) for margin in vision.numbers("overlap_margins")] or [4, 4]
    if len(margins) != 2 or margins[0] < 1 or any(margin % 2 for margin in margins) or sum(margins) >= size // patch:
        raise ConfigError(f"overlap_margins is {margins}, expected two even numbers of patches within a tile")
    return VisionSpec(
        architecture=whole.text("model_type"),
        names="molmo",
        vocab_size=0,
        hidden_size=hidden,
        layers=(LayerSpec(attention_of(heads, hidden, bias=True), mlp, norms),) * max(taken),
        max_position=(size // patch) ** 2 + 1,
        norm_eps=1e-5,
        prefix="transformer.resblocks",
        patch=patch,
        patch_name="patch_embedding",
        patch_bias=False,
        positions="exact",
        position_name="positional_embedding",
        class_token=True,
        class_name="class_embedding",
        first_norm="pre_ln",
        merge=2,
        projector=ProjectorSpec(
            (
                ProjectorProduct("projector.w3", inner, False, "silu", gate="projector.w1"),
                ProjectorProduct("projector.w2", model.hidden, False),
            ),
            join="attended",
            attention=SquareAttention(heads, hidden, "projector.pooling"),
        ),
        taken=taken,
        padding="pad_embed",
        tiles=TileSpec((), size, end="", overlap=(margins[0] * patch, margins[1] * patch)),
    )
