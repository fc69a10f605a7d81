"""Reads a :class:`.vision_spec.VisionSpec` from a config.json, by family. Torch-free."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec
from ..spec.mlp import MLPSpec
from ..spec.model import SANDWICH
from ..spec.positions import RopeConfig
from .vision_deepseek import deepseek_v41
from .vision_fields import MOST_SIDE, VisionFields, activation_of, side_of
from .vision_internvl import internvl, internvl_chat, nvlm_d
from .vision_moonvit import kimi_k3, kimi_k25, kimi_vl
from .vision_ovis import ovis, ovis2, ovis2_5
from .vision_perception import perception_lm
from .vision_qwen import (
    chatglm_4v,
    dots_ocr,
    ernie4_5_vl,
    exaone4_5,
    glm4v,
    glm_ocr,
    hyperclovax_vision,
    kanana_v,
    ling3_vl,
    llava_onevision2,
    openpangu_vl,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_5,
    qwen3_vl,
)
from .vision_siglip import (
    PHI3_TOWER,
    aya_vision,
    clip,
    cohere2_vision,
    cosmos3_edge,
    deepseek_vl,
    gemma3,
    idefics3,
    janus,
    keye_vl1_5,
    lfm2_vl,
    llava,
    llava_next,
    llava_onevision,
    minicpmv,
    mistral3,
    mistral_large4,
    mistral_pixtral,
    modernvbert,
    normed_onevision,
    paddleocr_vl,
    paligemma,
    phi3_v,
    siglip,
    vipllava,
)
from .vision_siglip2 import isaac, phi4_siglip
from .vision_spec import AxialRope, ProjectorNorm, ProjectorProduct, ProjectorSpec, VisionSpec
from .vision_tiled import deepseek_vl2, eagle, llama4, llama_nemotron_vl, molmo, nemotron_embed, nemotron_h_vl

_TABLES: Final = ("vision_config", "vit_config", "visual_tokenizer_config")


def vision_spec_from_hf(config: Mapping[str, object], hidden: int) -> VisionSpec:
    """The tower's spec; ``hidden``: the decoder's hidden size.

    Raises :class:`..config_fields.ConfigError`, naming the field, if the tower is not supported here.
    """
    whole = Fields(config)
    kind = whole.text("model_type", "")
    named = next((table for name in _TABLES if (table := whole.table(name))), None)
    vision = named or _UNDESCRIBED.get(kind)
    if kind not in _READERS or vision is None:
        raise ConfigError(f"the tower of {kind or 'a model without model_type'} is not native")
    spec = _READERS[kind](VisionFields(whole, Fields(vision), hidden))
    spec.check()
    return spec


def _gemma4(model: VisionFields) -> VisionSpec:
    """Small Gemma 4 models clip products and take audio, which is not supported natively."""
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


_READERS: Final[Mapping[str, Callable[[VisionFields], VisionSpec]]] = {
    "idefics3": idefics3,
    "smolvlm": idefics3,
    "eagle_2_5_vl": eagle,
    "gemma3": gemma3,
    "gemma4": _gemma4,
    "llava": llava,
    "llava_next": llava_next,
    "llava_onevision": llava_onevision,
    "llava_onevision2": llava_onevision2,
    "aya_vision": aya_vision,
    "bailing_moe_v3_vl": ling3_vl,
    "bee": normed_onevision,
    "chatglm_4v": chatglm_4v,
    "cohere2_vision": cohere2_vision,
    "cosmos3_edge": cosmos3_edge,
    "deepseek_vl": deepseek_vl,
    "deepseek_vl_v2": deepseek_vl2,
    "deepseek_v41": deepseek_v41,
    "dots_ocr": dots_ocr,
    "ernie4_5_vl_moe": ernie4_5_vl,
    "exaone4_5": exaone4_5,
    "hyperclovax_vision_v2": hyperclovax_vision,
    "isaac": isaac,
    "janus": janus,
    "lfm2_vl": lfm2_vl,
    "glm4v": glm4v,
    "glm4v_moe": glm4v,
    "glm46v": glm4v,
    "glm_ocr": glm_ocr,
    "kanana-1.5-v": kanana_v,
    "keye": paddleocr_vl,
    "keye_vl1_5": keye_vl1_5,
    "kimi_k25": kimi_k25,
    "kimi_k3": kimi_k3,
    "kimi_vl": kimi_vl,
    "lighton_ocr": mistral3,
    "llama4": llama4,
    "minicpmo": minicpmv,
    "minicpmv": minicpmv,
    "mistral3": mistral3,
    "mistral_large4": mistral_large4,
    "mistral_pixtral": mistral_pixtral,
    "modernvbert": modernvbert,
    "internvl": internvl,
    **dict.fromkeys(("h2ovl_chat", "internvl_chat"), internvl_chat),
    "qianfan_ocr": internvl_chat,
    "molmo": molmo,
    "NVLM_D": nvlm_d,
    "ovis": ovis,
    "ovis2": ovis2,
    "ovis2_5": ovis2_5,
    "opencua": qwen2_5_vl,
    "openpangu_vl": openpangu_vl,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "cosmos3_omni": qwen3_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": qwen3_vl,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5,
    "qwen4_exp": qwen3_5,
    "paddleocr_vl": paddleocr_vl,
    "paligemma": paligemma,
    "phi3_v": phi3_v,
    "phi4_siglip": phi4_siglip,
    "perception_lm": perception_lm,
    "r_4b": normed_onevision,
    "vipllava": vipllava,
    "clip": clip,
    "siglip": siglip,
    "Llama_Nemotron_Nano_VL": llama_nemotron_vl,
    **dict.fromkeys(("llama_nemotron_vl", "llama_nemotron_vl_rerank"), nemotron_embed),
    "NemotronH_Nano_VL_V2": nemotron_h_vl,
}
"""By the model type of the whole model."""
_UNDESCRIBED: Final[Mapping[str, Mapping[str, object]]] = {"molmo": {"image_emb_dim": 1024}, "phi3_v": PHI3_TOWER}
"""Towers of which files tell nothing, by the model type of the whole model."""
NATIVE_TOWERS: Final = frozenset(_READERS)
"""Model types whose towers run on our own layers."""
