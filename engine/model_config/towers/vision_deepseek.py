"""The tower of DeepSeek V4.1: pictures in their own size, which rotate by row and column, with an embedding of three by
three patches, and others around them and behind each row. Torch-free."""

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import MLPSpec
from .vision_fields import MOST_SIDE, VisionFields, attention_of, side_of
from .vision_spec import AxialRope, ProjectorProduct, ProjectorSpec, VisionSpec

_EPS = 1e-6
"""Of all its norms."""


def deepseek_v41(model: VisionFields) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("hidden_size", 1024)
    mixer = attention_of(vision.integer("num_attention_heads", 16), hidden, bias=True, rotates=True)
    mlp = MLPSpec(vision.integer("intermediate_size", 2816), into=("mlp.w1",), out="mlp.w2")
    layer = LayerSpec(replace(mixer, fused=True, name="attn", out="wo"), mlp, Norms(mixer_in="norm1", mlp_in="norm2"))
    if (layers := vision.integer("num_hidden_layers", 0, least=0, most=MOST_LAYERS)) == 0:
        raise ConfigError("vision_config.num_hidden_layers is 0: the model sees nothing")
    products = (
        ProjectorProduct("projector.w1", model.hidden, True, "gelu", channels_first=True),
        ProjectorProduct("projector.w2", model.hidden, True),
    )
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="deepseek_v41",
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * layers,
        max_position=0,
        norm_eps=_EPS,
        prefix="blocks",
        source="rows",
        patch=side_of(vision, "patch_size", 14),
        patch_name="patch_embed.proj",
        rope=AxialRope(vision.positive("rope_theta", 10_000.0)),
        final_norm="norm",
        filled_up=vision.integer("downsample_ratio", 3, most=MOST_SIDE),
        projector=ProjectorSpec(products),
        lines=("image_start", "image_newline", "image_end"),
    )
