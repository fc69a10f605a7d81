"""Perception LM's tower and projector: a Perception Encoder (arXiv:2504.13181) under timm's names. Torch-free."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import MLPSpec
from ..spec.positions import RopeConfig
from .vision_fields import VisionFields, attention_of, side_of
from .vision_spec import AxialRope, ProjectorProduct, ProjectorSpec, VisionSpec


class _Encoder(NamedTuple):
    """What timm's name of an encoder stands for."""

    image: int
    width: int
    layers: int
    ratio: float
    """Width of networks, in widths."""
    class_token: bool
    final_norm: bool


_GIGANTIC: Final = 8960 / 1536
_ENCODERS: Final[Mapping[str, _Encoder]] = {
    "vit_pe_core_large_patch14_336": _Encoder(336, 1024, 24, 4.0, class_token=True, final_norm=True),
    "vit_pe_core_gigantic_patch14_448": _Encoder(448, 1536, 50, _GIGANTIC, class_token=False, final_norm=True),
    "vit_pe_lang_large_patch14_448": _Encoder(448, 1024, 23, 4.0, class_token=True, final_norm=False),
    "vit_pe_lang_gigantic_patch14_448": _Encoder(448, 1536, 47, _GIGANTIC, class_token=False, final_norm=False),
}
_TAKEN: Final = {
    *("embed_dim", "depth", "num_heads", "mlp_ratio", "patch_size", "img_size", "init_values"),
    *("class_token", "use_post_transformer_norm", "ref_feat_shape", "global_pool"),
}
"""Arguments that are read; the last chooses weights that are not used."""


def perception_lm(model: VisionFields) -> VisionSpec:
    """Learned positions and rotation by columns first, of all but the class token; a layer's two scales are multiplied
    into the preceding products at load."""
    whole, vision = model.whole, model.vision
    if (kind := vision.text("model_type", "timm_wrapper")) != "timm_wrapper":
        raise ConfigError(f"vision_config.model_type is {kind[:40]!r}, expected 'timm_wrapper'")
    named = vision.text("architecture", "")
    known, given = _ENCODERS.get(named), Fields(vision.table("model_args") or {})
    if known is None:
        raise ConfigError(f"vision_config.architecture is {named[:40]!r}, expected one of {', '.join(_ENCODERS)}")
    if unknown := given.values.keys() - _TAKEN:
        raise ConfigError(f"vision_config.model_args has {min(unknown)}, which has no native form")
    hidden, patch = given.integer("embed_dim", known.width), side_of(given, "patch_size", 14)
    side = side_of(given, "img_size", known.image) // patch
    if (counted := side_of(given, "ref_feat_shape", known.image // 14)) != side:
        raise ConfigError(f"ref_feat_shape is {counted}, expected the {side} patches of a side")
    has_class = given.flag("class_token", known.class_token)
    if whole.flag("vision_use_cls_token", True) != has_class:
        raise ConfigError("vision_use_cls_token is not whether the tower has such a token, which has no native form")
    pooled = whole.integer("projector_pooling_ratio", 1)
    if side % pooled:
        raise ConfigError(f"projector_pooling_ratio is {pooled}, which does not divide {side} patches of a side")
    mixer = attention_of(given.integer("num_heads", 16), hidden, bias=True, rotates=True)
    mixer = replace(mixer, rope=RopeConfig(interleaved=True), name="attn", out="proj", fused=True)
    inner = int(hidden * given.positive("mlp_ratio", known.ratio))
    mlp = MLPSpec(inner, "gelu", True, ("mlp.fc1",), "mlp.fc2", gated=False)
    norms = Norms(mixer_in="norm1", mlp_in="norm2", kind="layer", bias=True)
    return VisionSpec(
        architecture=whole.text("model_type"),
        names="perception",
        vocab_size=0,
        hidden_size=hidden,
        layers=(LayerSpec(mixer, mlp, norms),) * given.integer("depth", known.layers, most=MOST_LAYERS),
        max_position=side * side + has_class,
        norm_eps=1e-5,
        prefix="blocks",
        patch=patch,
        patch_name="patch_embed.proj",
        patch_bias=False,
        positions="exact",
        position_name="pos_embed",
        class_token=has_class,
        class_name="cls_token",
        rope=AxialRope(10_000.0, columns_first=True),
        first_norm="norm_pre",
        final_norm="norm" if given.flag("use_post_transformer_norm", known.final_norm) else "",
        merge=pooled,
        projector=ProjectorSpec(
            (
                ProjectorProduct("projector.linear_1", model.hidden, True, "gelu"),
                ProjectorProduct("projector.linear_2", model.hidden, True),
            ),
            join="mean_last",
        ),
        unused=("attn_pool.", "fc_norm.", "head."),
    )
