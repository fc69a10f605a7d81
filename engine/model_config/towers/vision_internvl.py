"""InternVL's tower and projector, under transformers' names and under those of its first publication. Torch-free."""

from collections.abc import Mapping

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.layer import LayerSpec, NormKind, Norms
from ..spec.mlp import MLPSpec
from .vision_fields import VisionFields, activation_of, attention_of, side_of, two_products
from .vision_spec import ProjectorNorm, ProjectorSpec, VisionSpec
from .vision_tiled import merged_by, mlp1_projector


def internvl(model: VisionFields) -> VisionSpec:
    """InternVL: a layer's two scales are multiplied into the preceding products at load."""
    vision, whole = model.vision, model.whole
    merge = merged_by(whole)
    if whole.integer("vision_feature_layer", -1, least=-MOST_LAYERS) != -1:
        raise ConfigError("vision_feature_layer is not -1, which has no native form")
    if not vision.flag("use_absolute_position_embeddings", True) or not vision.flag("use_mean_pooling", True):
        raise ConfigError("a tower without learned positions, or with a norm behind its layers, has no native form")
    kinds: Mapping[str, NormKind] = {"layer_norm": "layer", "rms_norm": "rms"}
    kind = vision.one_of("norm_type", kinds, "layer_norm")
    hidden, size = vision.integer("hidden_size", 1024), side_of(vision, "patch_size", 14)
    side = side_of(vision, "image_size", 448) // size
    bias = vision.flag("attention_bias")
    mixer = replace(
        attention_of(vision.integer("num_attention_heads", 16), hidden, bias=bias),
        name="attention",
        out="projection_layer",
        output_bias=True,
        qk_norm="full" if vision.flag("use_qk_norm") else "none",
    )
    act = activation_of(vision, "hidden_act", "gelu")
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
            two_products(model, biased=True),
            norm=ProjectorNorm("projector.layer_norm", "layer", 1e-5, bias=True, joined=True),
        ),
        unused=("embeddings.mask_token",),
    )


def nvlm_d(model: VisionFields) -> VisionSpec:
    """NVLM-D: InternVL's with products as wide as the decoder's network, without biases."""
    text = Fields(model.whole.table("llm_config") or model.whole.table("text_config") or {})
    spec = internvl_chat(model)
    first, last = (replace(each, bias=False) for each in spec.projector.products)
    products = replace(first, outputs=text.integer("intermediate_size")), last
    return replace(spec, projector=replace(spec.projector, products=products))


def internvl_chat(model: VisionFields) -> VisionSpec:
    """InternVL as first published, with other field and tensor names (InternVL 1.5 to 3.5, Qianfan-OCR)."""
    whole, vision = model.whole, model.vision
    if whole.integer("select_layer", -1, least=-MOST_LAYERS) != -1 or whole.text("ps_version", "v2") != "v2":
        raise ConfigError("select_layer is not -1, or ps_version not 'v2', which has no native form")
    values: dict[str, object] = {
        "attention_bias": vision.flag("qkv_bias", vision.flag("attention_bias", True)),
        "use_qk_norm": vision.flag("qk_normalization", vision.flag("use_qk_norm")),
    }
    spec = internvl(replace(model, vision=Fields({**vision.values, **values})))
    layer = spec.layers[0]
    mixer = replace(layer.attention, fused=True, name="attn", out="proj")
    layer = replace(layer, mixer=mixer, norms=replace(layer.norms, mixer_in="norm1", mlp_in="norm2"))
    return replace(
        spec,
        layers=(layer,) * len(spec.layers),
        prefix="encoder.layers",
        patch_name="embeddings.patch_embedding",
        position_name="embeddings.position_embedding",
        class_name="embeddings.class_embedding",
        projector=mlp1_projector(model.hidden, model.hidden),
    )
