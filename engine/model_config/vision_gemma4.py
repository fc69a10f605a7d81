"""The tower of Gemma 4's large models. Torch-free."""

from dataclasses import replace

from .attention_spec import AttentionSpec, RopeConfig
from .config_fields import MOST_LAYERS, ConfigError, Fields
from .mlp_spec import MLPSpec
from .model_spec import SANDWICH, LayerSpec
from .vision_fields import MOST_SIDE, SeeingModel, activation_of, side_of
from .vision_spec import AxialRope, ProjectorNorm, ProjectorProduct, ProjectorSpec, VisionSpec


def gemma4(model: SeeingModel) -> VisionSpec:
    """Small models clip what goes into products and comes out of them, and hear: these have no native form."""
    vision = model.vision
    if vision.flag("use_clipped_linears") or model.whole.table("audio_config") is not None:
        raise ConfigError("a tower of Gemma 4 that clips, or beside one that hears, has no native form")
    hidden, eps = vision.integer("hidden_size", 768), vision.positive("rms_norm_eps", 1e-6)
    heads, head_dim = vision.integer("num_attention_heads", 12), vision.integer("head_dim", 64)
    mixer = AttentionSpec(heads, vision.integer("num_key_value_heads", 12), head_dim, 1.0, RopeConfig())
    inner, activation = vision.integer("intermediate_size", 3072), "hidden_activation"
    mlp = MLPSpec(inner, activation_of(vision, activation, "gelu_pytorch_tanh"))
    layer = LayerSpec(replace(mixer, qk_norm="head", v_norm=True), mlp, SANDWICH)
    theta = Fields(vision.table("rope_parameters") or {}).positive("rope_theta", 100.0)
    projector = ProjectorSpec(
        (ProjectorProduct("projector.embedding_projection", model.hidden, False),),
        join="mean",
        scale=hidden**0.5,
        standard=("std_bias", "std_scale") if vision.flag("standardize") else None,
        norm=ProjectorNorm("", "rms", eps, joined=True),
    )
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="gemma4",
        vocab_size=0,
        hidden_size=hidden,
        layers=(layer,) * vision.integer("num_hidden_layers", 16, most=MOST_LAYERS),
        max_position=2 * vision.integer("position_embedding_size", 10_240),
        norm_eps=eps,
        prefix="encoder.layers",
        source="shaped",
        patch=side_of(vision, "patch_size", 16),
        patch_name="patch_embedder.input_proj",
        patch_bias=False,
        positions="axial",
        position_name="patch_embedder.position_embedding_table",
        rope=AxialRope(theta, columns_first=True),
        merge=vision.integer("pooling_kernel_size", 3, most=MOST_SIDE),
        projector=projector,
        video=True,
        centred=True,
    )
