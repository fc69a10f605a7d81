"""MoonViT, the tower of Kimi-VL (arXiv:2504.07491), Kimi K2.5 and Kimi K3: pictures in their own size, with learned
positions and rotation. Torch-free."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..hf.common import expect
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import MLPSpec
from ..spec.positions import RopeConfig
from .vision_fields import MOST_SIDE, VisionFields, attention_of, side_of
from .vision_spec import AxialRope, ProjectorNorm, ProjectorProduct, ProjectorSpec, VisionSpec

_EPS: Final = 1e-5
"""Epsilon of all its norms."""
_LEAST_EPS: Final = 2.0**-23
"""That of Kimi K3's, which are torch's without one: the precision of float32."""
_K3: Final[Mapping[str, object]] = {
    **{"activation_func": "gelu_pytorch_tanh", "merge_type": "sd2_tpool", "mlp_type": "mlp2", "norm_type": "rmsnorm"},
    **{"mm_projector_type": "patchmergerv2", "pos_emb_interpolation_mode": "bilinear", "pos_emb_type": "divided_fixed"},
    **dict.fromkeys(("attn_bias", "linear_bias", "patch_embed_proj_bias"), False),
    **{"projector_hidden_act": "gelu", "video_attn_type": "spatial_temporal"},
}
"""Fields of Kimi K3 that must have these values."""
_PREFIXED: Final = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
"""Fields with the prefix ``vt_`` in Kimi K2.5."""


def kimi_vl(model: VisionFields) -> VisionSpec:
    vision = model.vision
    hidden = vision.integer("hidden_size", 1152)
    height, width = (vision.integer(f"init_pos_emb_{side}", 64, most=MOST_SIDE) for side in ("height", "width"))
    if height != width:
        raise ConfigError(f"init_pos_emb_height and init_pos_emb_width are {height} and {width}, expected a square")
    merge = side_of(vision, "merge_kernel_size", 2)
    mixer = replace(
        attention_of(vision.integer("num_attention_heads", 16), hidden, bias=True, rotates=True),
        rope=RopeConfig(interleaved=True),
        fused=True,
        name="attn",
        out="proj",
    )
    inner = vision.integer("intermediate_size", 4304)
    mlp = MLPSpec(inner, "gelu_tanh", True, ("mlp.fc0",), "mlp.fc1", gated=False)
    norms = Norms(mixer_in="norm0", mlp_in="norm1", kind="layer", bias=True)
    products = (
        ProjectorProduct("projector.linear_1", hidden * merge * merge, True, "gelu"),
        ProjectorProduct("projector.linear_2", model.hidden, True),
    )
    return VisionSpec(
        architecture=model.whole.text("model_type"),
        names="moonvit",
        vocab_size=0,
        hidden_size=hidden,
        layers=(LayerSpec(mixer, mlp, norms),) * vision.integer("num_hidden_layers", 27, most=MOST_LAYERS),
        max_position=height * width,
        norm_eps=_EPS,
        prefix="encoder.blocks",
        source="rows",
        patch=side_of(vision, "patch_size", 14),
        patch_name="patch_embed.proj",
        positions="sampled",
        position_name="patch_embed.pos_emb",
        rope=AxialRope(10_000.0, alternating=True),
        final_norm="encoder.final_layernorm",
        merge=merge,
        projector=ProjectorSpec(products, norm=ProjectorNorm("projector.pre_norm", "layer", _EPS, bias=True)),
    )


def kimi_k3(model: VisionFields) -> VisionSpec:
    """Kimi K3: without biases, with RMS norms, and heads that are wider together than the hidden size."""
    expect(model.vision, _K3)
    spec, vision = kimi_k25(model), model.vision
    (layer, *_), hidden = spec.layers, spec.hidden_size
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mixer, AttentionSpec)
    assert isinstance(mlp, MLPSpec)
    width = vision.integer("qkv_hidden_size", 1536)
    if width % (4 * mixer.heads):
        raise ConfigError(f"qkv_hidden_size is {width}, expected a multiple of 4 · {mixer.heads} heads")
    head_dim = width // mixer.heads
    mixer = replace(mixer, head_dim=head_dim, scale=head_dim**-0.5, qkv_bias=False, output_bias=False)
    norms = replace(layer.norms, kind="rms", bias=False)
    joined = hidden * spec.merge**2
    last = ProjectorNorm("projector.post_norm", "rms", vision.positive("projector_ln_eps", _EPS))
    products = (
        ProjectorProduct("projector.linear_1", joined, False, "gelu"),
        ProjectorProduct("projector.linear_2", model.hidden, False, norm=last),
    )
    return replace(
        spec,
        layers=(replace(layer, mixer=mixer, mlp=replace(mlp, bias=False), norms=norms),) * len(spec.layers),
        norm_eps=_LEAST_EPS,
        patch_bias=False,
        positions="centred",
        projector=ProjectorSpec(products),
    )


def kimi_k25(model: VisionFields) -> VisionSpec:
    """Kimi K2.5 in transformers' fields or its authors'. Pictures do not use the frame positions of videos."""
    given = model.vision.values
    renamed = {f"vt_{name}": name for name in _PREFIXED}
    renamed |= {f"pos_emb_{side}": f"init_pos_emb_{side}" for side in ("height", "width")}
    named = {own: given[name] for name, own in renamed.items() if name in given}
    return kimi_vl(replace(model, vision=Fields({**given, **named})))
